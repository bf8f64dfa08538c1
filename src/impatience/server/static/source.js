// The text to write from: pasted, dropped, opened, or the example; and how long it is.

import { count, isEstimate, say } from "./lengths.js";

const find = (selector) => document.querySelector(selector);
const area = find("#source");
const TEXT_FILE = /\.(txt|md|markdown)$/i;

export class Source {
  /** `onChange` is called whenever the text is another. */
  constructor(onChange) {
    this.onChange = onChange;
    this.most = Infinity;
    this.unit = "words";
    area.addEventListener("input", () => this.changed());
    find("#clear").addEventListener("click", () => { this.set(""); area.focus(); });
    find("#open").addEventListener("click", () => find("#file").click());
    find("#file").addEventListener("change", (event) => this.read(event.target.files[0]));
    find("#example").addEventListener("click", async () => {
      const example = await fetch("/static/example.txt");
      this.set((await example.text()).trim());
      area.focus();
    });
    this.takeDrops();
  }

  get text() {
    return area.value;
  }

  set(text) {
    area.value = text;
    area.setSelectionRange(0, 0);
    area.scrollTop = 0;
    this.changed();
  }

  /** The length in a unit; nothing to count gives 0. */
  length(unit) {
    return count(this.text, unit);
  }

  changed() {
    this.complain("");
    const length = this.length(this.unit);
    const about = isEstimate(this.unit) ? "about " : "";
    find("#source-length").textContent = length ? about + say(length, this.unit) : "";
    find("#clear").hidden = !this.text;
    find("#example").hidden = Boolean(this.text);
    const characters = this.length("characters");
    if (characters > this.most) this.complain(`This text has ${say(characters, "characters")}; ${this.limit}.`);
    this.onChange();
  }

  /** Tell whether there is something to write from; if not, the reader is told. */
  check() {
    this.changed();
    if (!this.length("words")) this.complain("There is no text yet: paste one, or open a file.");
    if (!find("#source-problem").hidden) area.focus();
    return find("#source-problem").hidden;
  }

  get limit() {
    return `the server reads ${this.most.toLocaleString("en")} at most`;
  }

  complain(message) {
    find("#source-problem").textContent = message;
    find("#source-problem").hidden = !message;
    area.setAttribute("aria-invalid", Boolean(message));
  }

  async read(file) {
    find("#file").value = "";
    if (!file) return;
    if (file.size > 4 * this.most) { // a character has four bytes at most; a page that reads too much stands still
      this.complain(`${file.name} has ${say(Math.ceil(file.size / 4), "characters")} or more; ${this.limit}.`);
      return;
    }
    try {
      if (!file.type.startsWith("text/") && !TEXT_FILE.test(file.name)) throw new TypeError();
      this.set(new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer()));
    } catch {
      this.complain(`${file.name} could not be read as text. Give a .txt or .md file in UTF-8.`);
    }
  }

  takeDrops() {
    const over = (event, is) => {
      if (!event.dataTransfer?.types.includes("Files")) return false;
      event.preventDefault();
      find("#drop").classList.toggle("over", is);
      return true;
    };
    document.addEventListener("dragover", (event) => over(event, true));
    document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) over(event, false); });
    document.addEventListener("drop", (event) => { if (over(event, false)) this.read(event.dataTransfer.files[0]); });
  }
}
