// A card that shows one text while it is written: progress ring, signal curve, text and report.

import { formatCount, formatTarget } from "./lengths.js";
import { showMarked } from "./marked_text.js";
import { endingSentences, isBroken, lengthSentence } from "./report_text.js";
import { COSINE_PATH, SINE_PATH } from "./signal_curve.js";

export class ResultCard {
  /** `hint` is shown while there is no text; `retry` writes this card again; `announce` speaks to screen readers. */
  constructor({ hint, retry, announce }) {
    const copy = document.querySelector("#result-card").content.cloneNode(true);
    this.element = copy.firstElementChild;
    this.find = (selector) => this.element.querySelector(selector);
    for (const path of this.element.querySelectorAll(".wave path")) {
      path.setAttribute("d", path.classList.contains("sine") ? SINE_PATH : COSINE_PATH);
    }
    Object.assign(this, { hint, announce });
    this.find(".retry").addEventListener("click", () => retry(this));
    this.find(".copy").addEventListener("click", () => this.copy());
    this.find(".download").addEventListener("click", () => this.download());
    this.clear();
  }

  /** Sets the length of the next text; `last` is the last length on target, 0 if there is no range. */
  setTarget(target, unit, last = 0) {
    this.next = { target, unit, last };
    if (this.state === "empty") this.showProgress(0, this.next);
  }

  clear() {
    this.text = "";
    this.showState("empty", this.hint);
    this.find(".report").hidden = true;
  }

  start() {
    this.clear();
    this.showProgress(0, this.next);
    this.showState("waiting", "Waiting for the model …");
  }

  addPiece({ text, progress, stage }) {
    if (!text) {
      if (stage && !this.text) this.showState("waiting", `${stage} …`);
      return;
    }
    if (this.state !== "writing") this.showState("writing", "");
    this.text += text;
    const piece = document.createElement("span");
    piece.textContent = text;
    this.find(".text").append(piece);
    this.showProgress(progress, { target: this.target, last: this.last, unit: this.unit });
  }

  finish({ text, report }, landing) {
    this.text = text;
    this.showState("done", text);
    showMarked(this.find(".text"), text, report.unsupported);
    const [target, last] = report.within ?? [report.target, 0];
    this.showProgress(report.length, { target, last, unit: report.unit });
    this.element.dataset.broken = isBroken(report);
    this.showReport(lengthSentence(report), endingSentences(report, landing));
  }

  stop() {
    this.showState("stopped", this.text);
    const progress = `${formatCount(this.progress, this.unit)} of ${formatTarget(this.target, this.last)}`;
    this.showReport(this.text ? `Stopped at ${progress}.` : "Stopped before the first word.");
  }

  fail({ message, retryAfter }) {
    this.showState("failed", this.text);
    const delay = retryAfter ? `${retryAfter} second${retryAfter === 1 ? "" : "s"}` : "a moment";
    this.showReport(retryAfter === undefined ? message : `The server is busy with other texts. Try again in ${delay}.`);
  }

  showState(state, text) {
    this.state = this.element.dataset.state = state;
    delete this.element.dataset.broken;
    this.element.setAttribute("aria-busy", state === "waiting" || state === "writing");
    this.find(".text").textContent = text;
    this.find(".retry").hidden = state !== "failed";
  }

  showProgress(progress, { target, last = 0, unit }) {
    Object.assign(this, { progress, target, last, unit });
    const asked = last ? `${formatTarget(target, last)} ${unit}` : formatCount(target, unit);
    const ring = this.find(".ring");
    ring.setAttribute("aria-valuemax", target);
    ring.setAttribute("aria-valuenow", Math.min(progress, target));
    const excess = Math.max(0, progress - (last || target));
    const tooMany = excess ? `, ${excess} too many` : "";
    ring.setAttribute("aria-valuetext", `${progress} of ${asked}${tooMany}`);
    this.find(".count").textContent = progress.toLocaleString("en");
    this.find(".of").textContent = `of ${asked}`;
    this.element.style.setProperty("--ratio", Math.min(1, progress / target));
    this.element.style.setProperty("--excess", Math.min(1, excess / target)); // drawn as a second ring
  }

  showReport(summary, details = "") {
    this.report = `${summary} ${details}`.trim();
    this.find(".summary").textContent = summary;
    this.find(".details").textContent = details;
    this.find(".copy").hidden = this.find(".download").hidden = !this.text;
    this.find(".report").hidden = false;
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.text);
    } catch {
      // Browsers offer no clipboard over plain HTTP, and may deny it; a selection can still be copied.
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
    link.href = URL.createObjectURL(new Blob([`${this.text}\n`], { type: "text/plain;charset=utf-8" }));
    link.download = `text-${this.progress}-${this.unit}.txt`;
    link.click();
    URL.revokeObjectURL(link.href);
  }
}
