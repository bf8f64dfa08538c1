// Sentences about the length and the ending of a text.

import { formatCount } from "./lengths.js";

/** Names what is wrong with a text, whatever its length. */
const fault = ({ finished, looping }) =>
  !finished ? "the text breaks off" : looping ? "the text repeats itself" : "";

/** Compares the length with the target. */
export function lengthSentence(report) {
  const { length, target, unit, landed } = report;
  const written = formatCount(length, unit);
  const limit = target.toLocaleString("en");
  if (length === target) return fault(report) ? `${written}, but ${fault(report)}.` : `${written}, as requested.`;
  if (landed !== "missed") return `${written}, within your limit of ${limit}.`;
  const difference = Math.abs(length - target).toLocaleString("en");
  return `${written}, ${difference} ${length > target ? "more" : "fewer"} than the ${limit} you asked for.`;
}

/** Explains how the text ended. */
export function endingSentences(report, landing) {
  const { length, target, landed, eos_probability: probability, taken_back: removed, note } = report;
  const percent = probability < 0.01 ? "less than 1 %" : `${Math.round(100 * probability)} %`;
  return [
    landed === "natural" && `The model chose to end here, with a probability of ${percent}.`,
    landed === "forced" && !fault(report) && `The length was enforced: the model's own probability of ending here was ${percent}.`,
    landed === "missed" && landing === "natural" && "Choose Exact or At most to enforce the length.",
    length !== target && fault(report) && `Also, ${fault(report)}.`,
    removed > 0 && `${formatCount(removed, "characters")} shown at the end ${removed === 1 ? "was" : "were"} removed.`,
    note,
  ].filter(Boolean).join(" ");
}
