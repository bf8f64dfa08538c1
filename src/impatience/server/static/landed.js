// How a text landed, in words for a writer.

import { say } from "./lengths.js";

/** Length and target in a sentence. */
export function verdict({ length, target, unit, landed }) {
  const written = say(length, unit);
  const wanted = target.toLocaleString("en");
  if (length === target) return landed === "missed" ? `${written}, but no end.` : `${written}, just as you asked.`;
  if (landed !== "missed") return `${written}, within your limit of ${wanted}.`;
  const off = Math.abs(length - target).toLocaleString("en");
  return `${written}, ${off} ${length > target ? "more" : "fewer"} than the ${wanted} you asked for.`;
}

/** How it ended, and what else there is to say. */
export function detail({ landed, eos_probability: chance, taken_back: back, note }, landing) {
  const percent = chance < 0.01 ? "less than 1 %" : `${Math.round(100 * chance)} %`;
  return [
    landed === "natural" && `The model ended here by itself, ${percent} sure that the text was over.`,
    landed === "forced" && `It was held to your length: the model gave an end here a chance of ${percent}.`,
    landed === "missed" && landing === "natural" && "Choose Exact or At most to hold it to the length.",
    back > 0 && `${say(back, "characters")} at the end that you saw ${back === 1 ? "was" : "were"} taken back.`,
    note,
  ].filter(Boolean).join(" ");
}
