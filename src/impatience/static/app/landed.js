// How a text landed, in words for a writer.

import { say } from "./lengths.js";

/** One or two sentences on length, target and end. */
export function verdict({ length, target, unit, landed }, landing) {
  const written = say(length, unit);
  if (landed === "missed") {
    if (length === target) return `${written}, as you asked, but the text did not come to an end.`;
    const off = `${Math.abs(length - target).toLocaleString("en")} ${length > target ? "more" : "fewer"}`;
    const advice = landing === "natural" ? " Choose Exact or At most to hold it to the length." : "";
    return `${written}: ${off} than the ${target.toLocaleString("en")} you asked for.${advice}`;
  }
  const hit = length === target ? `${written}, just as you asked.` : `${written}, within your limit of ${target.toLocaleString("en")}.`;
  return landed === "natural"
    ? `${hit} The model ended here by itself.`
    : `${hit} It was held to your length: left alone, the model would not have ended here.`;
}

/** What else there is to say, or nothing. */
export function detail({ landed, eos_probability: chance, taken_back: back, note }) {
  const percent = chance < 0.01 ? "less than 1 %" : `${Math.round(100 * chance)} %`;
  return [
    landed === "natural" && `It was ${percent} sure that the text was over.`,
    landed === "forced" && `It gave an end here a chance of ${percent}.`,
    back > 0 && `${say(back, "characters")} at the end that you saw ${back === 1 ? "was" : "were"} taken back.`,
    note,
  ].filter(Boolean).join(" ");
}
