// One text that is written: its ring, its signal, its words, and how it ended.

import { detail, verdict } from "./landed.js";
import { say } from "./lengths.js";
import { EVEN, ODD } from "./signal.js";

export class Sheet {
  /** `hint` is shown while there is no text; `retry` writes this sheet again; `announce` tells those who cannot see. */
  constructor({ hint, retry, announce }) {
    const copy = document.querySelector("#sheet").content.cloneNode(true);
    this.element = copy.firstElementChild;
    this.find = (selector) => this.element.querySelector(selector);
    for (const path of this.element.querySelectorAll(".wave path")) {
      path.setAttribute("d", path.classList.contains("odd") ? ODD : EVEN);
    }
    Object.assign(this, { hint, announce });
    this.find(".retry").addEventListener("click", () => retry(this));
    this.find(".copy").addEventListener("click", () => this.copy());
    this.find(".download").addEventListener("click", () => this.download());
    this.clear();
  }

  /** Say what the next text is to be. */
  aim(target, unit) {
    this.aimed = { target, unit };
    if (this.state === "empty") this.measure(0, target, unit);
  }

  clear() {
    this.words = "";
    this.show("empty", this.hint);
    this.find(".end").hidden = true;
  }

  begin() {
    this.clear();
    this.measure(0, this.aimed.target, this.aimed.unit);
    this.show("waiting", "Waiting for the model …");
  }

  piece({ text, progress, target, unit, stage }) {
    if (!text) {
      if (stage && !this.words) this.show("waiting", `${stage} …`);
      return;
    }
    if (this.state !== "writing") this.show("writing", "");
    this.words += text;
    const piece = document.createElement("span");
    piece.textContent = text;
    this.find(".text").append(piece);
    this.measure(progress, target, unit);
  }

  finish({ text, report }, landing) {
    this.words = text;
    this.show("done", text);
    this.measure(report.length, report.target, report.unit);
    this.element.dataset.landed = report.landed;
    this.end(verdict(report), detail(report, landing));
  }

  stop() {
    this.show("stopped", this.words);
    const { words, progress, target, unit } = this;
    this.end(words ? `Stopped at ${say(progress, unit)} of ${target.toLocaleString("en")}.` : "Stopped before it began.");
  }

  fail({ message, wait }) {
    this.show("failed", this.words);
    const then = wait ? `${wait} second${wait === 1 ? "" : "s"}` : "a moment";
    this.end(wait === undefined ? message : `The server is busy with other texts. Try again in ${then}.`);
  }

  // What follows is how.

  show(state, text) {
    this.state = this.element.dataset.state = state;
    delete this.element.dataset.landed;
    this.element.setAttribute("aria-busy", state === "waiting" || state === "writing");
    this.find(".text").textContent = text;
    this.find(".retry").hidden = state !== "failed";
  }

  measure(progress, target, unit) {
    Object.assign(this, { progress, target, unit });
    const ring = this.find(".ring");
    ring.setAttribute("aria-valuemax", target);
    ring.setAttribute("aria-valuenow", Math.min(progress, target));
    const over = Math.max(0, progress - target);
    ring.setAttribute("aria-valuetext", `${progress} of ${say(target, unit)}${over ? `, ${over} too many` : ""}`);
    this.find(".count").textContent = progress.toLocaleString("en");
    this.find(".of").textContent = `of ${say(target, unit)}`;
    this.element.style.setProperty("--ratio", Math.min(1, progress / target));
    this.element.style.setProperty("--over", Math.min(1, over / target)); // a second lap, around the first
  }

  end(said, more = "") {
    this.said = `${said} ${more}`.trim();
    this.find(".verdict").textContent = said;
    this.find(".detail").textContent = more;
    this.find(".copy").hidden = this.find(".download").hidden = !this.words;
    this.find(".end").hidden = false;
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.words);
    } catch {
      // There is no clipboard over plain HTTP, and a browser may refuse it; a selection can still be copied.
      getSelection().selectAllChildren(this.find(".text"));
      document.execCommand("copy");
      getSelection().removeAllRanges();
    }
    this.find(".copy").textContent = "Copied";
    this.announce("Copied.");
    setTimeout(() => { this.find(".copy").textContent = "Copy"; }, 1600);
  }

  download() {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([`${this.words}\n`], { type: "text/plain;charset=utf-8" }));
    link.download = `text-${this.progress}-${this.unit}.txt`;
    link.click();
    URL.revokeObjectURL(link.href);
  }
}
