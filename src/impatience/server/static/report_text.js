// Sentences about the length and the ending of a text.

import { formatCount, formatTarget } from "./lengths.js";

/** Names what is wrong with a text, whatever its length. */
const fault = ({ finished, looping }) =>
  !finished ? "the text breaks off" : looping ? "the text repeats itself" : "";

/** Says how many words of a text its source does not have. */
function unsupportedWords({ unsupported = [] }) {
  const number = unsupported.length;
  return number ? `${formatCount(number, "words")} ${number === 1 ? "is" : "are"} not in the source` : "";
}

/** Checks whether a text breaks off, repeats itself or has another length than it should. */
export const isBroken = (report) => Boolean(fault(report)) || report.landed === "missed";

/** Compares the length with the target. */
export function lengthSentence(report) {
  const { length, target, within, unit, landed } = report;
  const [first, last] = within ?? [target, target];
  const asked = formatTarget(...(within ?? [target]));
  const written = formatCount(length, unit);
  if (landed === "missed" && (length < first || length > last)) {
    const difference = (length > last ? length - last : first - length).toLocaleString("en");
    return `${written}, ${difference} ${length > last ? "more" : "fewer"} than the ${asked} you asked for.`;
  }
  const problem = fault(report) || unsupportedWords(report);
  if (problem) return `${written}, but ${problem}.`;
  if (within) return `${written}, within your range of ${asked}.`;
  return length === target ? `${written}, as requested.` : `${written}, within your limit of ${asked}.`;
}

/** Explains how the text ended. */
export function endingSentences(report, landing) {
  const { landed, eos_probability: probability, taken_back: removed, unsupported = [], note } = report;
  const percent = probability < 0.01 ? "less than 1 %" : `${Math.round(100 * probability)} %`;
  const unsaid = lengthSentence(report).includes(fault(report)) ? "" : fault(report);
  return [
    landed === "natural" && `The model chose to end here, with a probability of ${percent}.`,
    landed === "forced" && !fault(report) && `The length was enforced: the model's own probability of ending here was ${percent}.`,
    landed === "missed" && landing === "natural" &&
      `Choose ${report.within ? "" : "Exact or "}At most to enforce the length.`,
    unsaid && `Also, ${unsaid}.`,
    unsupported.length > 0 && `Not in the source: ${unsupported.join(", ")}.`,
    removed > 0 && `${formatCount(removed, "characters")} shown at the end ${removed === 1 ? "was" : "were"} removed.`,
    note,
  ].filter(Boolean).join(" ");
}
