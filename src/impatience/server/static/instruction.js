// The field for what to write: with it, the task does not count, and there need not be a source text.

const find = (selector) => document.querySelector(selector);
const field = find("#instruction");

export class Instruction {
  constructor() {
    field.addEventListener("input", () => this.update());
    this.update();
  }

  /** Offers the field only if the model takes instructions. */
  offer(offered) {
    find("#instruction-part").hidden = !offered;
    this.update();
  }

  get text() {
    return find("#instruction-part").hidden ? "" : field.value.trim();
  }

  update() {
    const own = Boolean(this.text);
    find("#task-part").classList.toggle("unused", own);
    for (const radio of document.querySelectorAll("#tasks input")) radio.disabled = own;
  }
}
