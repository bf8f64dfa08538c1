// The source text: pasted, dropped, opened from a file, or the example. Shows its length and problems with it.

import { readDocument } from "./api.js";
import { count, formatCount, isEstimate } from "./lengths.js";

const find = (selector) => document.querySelector(selector);
const field = find("#source");
const TEXT_FILE = /\.(txt|md|markdown)$/i;
const DOCUMENT = /\.(pdf|html?)$/i; // the server reads these
const TEXT_TYPES = ".txt,.md,.markdown,text/plain,text/markdown";
const TYPES = { pdf: ".pdf,application/pdf", html: ".html,.htm,text/html" };

export class Source {
  /** `onChange` is called whenever the text changes. */
  constructor(onChange) {
    this.onChange = onChange;
    this.maxCharacters = Infinity;
    this.offer([], 0);
    this.unit = "words";
    field.addEventListener("input", () => this.update());
    find("#clear").addEventListener("click", () => { this.setText(""); field.focus(); });
    find("#open").addEventListener("click", () => find("#file").click());
    find("#file").addEventListener("change", (event) => this.readFile(event.target.files[0]));
    find("#example").addEventListener("click", async () => {
      const example = await fetch("/static/example.txt");
      this.setText((await example.text()).trim());
      field.focus();
    });
    this.acceptDroppedFiles();
  }

  /** Sets which formats the server reads, and the most bytes of a file. */
  offer(formats, maxBytes) {
    Object.assign(this, { formats, maxBytes });
    find("#file").accept = [TEXT_TYPES, ...formats.map((format) => TYPES[format]).filter(Boolean)].join(",");
  }

  get text() {
    return field.value;
  }

  setText(text) {
    field.value = text;
    field.setSelectionRange(0, 0);
    field.scrollTop = 0;
    this.update();
  }

  length(unit) {
    return count(this.text, unit);
  }

  /** Shows the length of the text, and whether it is too long. */
  update() {
    this.showProblem("");
    const length = this.length(this.unit);
    const about = isEstimate(this.unit) ? "about " : "";
    find("#source-length").textContent = length ? about + formatCount(length, this.unit) : "";
    find("#clear").hidden = !this.text;
    find("#example").hidden = Boolean(this.text);
    const characters = this.length("characters");
    if (characters > this.maxCharacters) {
      this.showProblem(`This text has ${formatCount(characters, "characters")}; ${this.limit}.`);
    }
    this.onChange();
  }

  /** Checks that there is a text of acceptable length; if not, shows the problem. With an instruction it is optional. */
  check({ optional }) {
    this.update();
    if (!optional && !this.length("words")) this.showProblem("There is no text yet: paste one, or open a file.");
    if (!find("#source-problem").hidden) field.focus();
    return find("#source-problem").hidden;
  }

  get limit() {
    return `the server accepts ${this.maxCharacters.toLocaleString("en")} at most`;
  }

  showProblem(message) {
    find("#source-problem").textContent = message;
    find("#source-problem").hidden = !message;
    field.setAttribute("aria-invalid", Boolean(message));
  }

  async readFile(file) {
    find("#file").value = "";
    if (!file) return;
    if (DOCUMENT.test(file.name) || file.type === "application/pdf") {
      await this.readDocument(file);
      return;
    }
    if (file.size > 4 * this.maxCharacters) { // a character has at most four bytes; a huge file would freeze the page
      const characters = formatCount(Math.ceil(file.size / 4), "characters");
      this.showProblem(`${file.name} has ${characters} or more; ${this.limit}.`);
      return;
    }
    try {
      if (!file.type.startsWith("text/") && !TEXT_FILE.test(file.name)) throw new TypeError();
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (text.includes("\0")) throw new TypeError(); // only binary files have it
      if (text.trim()) this.setText(text);
      else this.showProblem(`${file.name} is empty.`);
    } catch {
      this.showProblem(`${file.name} could not be read as text. Use a .txt or .md file in UTF-8.`);
    }
  }

  /** Has the server read a PDF or HTML file. */
  async readDocument(file) {
    const format = /\.html?$/i.test(file.name) ? "html" : "pdf";
    if (!this.formats.includes(format)) {
      this.showProblem(`This server reads no ${format.toUpperCase()} files. Copy the text, and paste it.`);
      return;
    }
    if (file.size > this.maxBytes) {
      const [size, most] = [file.size, this.maxBytes].map((bytes) => (bytes / 1e6).toLocaleString("en"));
      this.showProblem(`${file.name} has ${size} MB; the server accepts ${most} MB at most.`);
      return;
    }
    this.showProblem("");
    find("#source-length").textContent = `Reading ${file.name} …`;
    try {
      this.setText((await readDocument(file)).trim());
    } catch (error) {
      this.update();
      this.showProblem(error.message);
    }
  }

  acceptDroppedFiles() {
    const drag = (event, isOver) => {
      if (!event.dataTransfer?.types.includes("Files")) return false;
      event.preventDefault();
      find("#drop").classList.toggle("drag-over", isOver);
      return true;
    };
    document.addEventListener("dragover", (event) => drag(event, true));
    document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) drag(event, false); });
    document.addEventListener("drop", (event) => {
      if (drag(event, false)) this.readFile(event.dataTransfer.files[0]);
    });
  }
}
