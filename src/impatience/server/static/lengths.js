// Counts texts, converts lengths between units, and lists the values of the slider.

// White space as Python's str.split() defines it.
const SPACE = "[\\p{White_Space}\\x1c-\\x1f]";
const WORD = new RegExp(`[^${SPACE.slice(1, -1)}]+`, "gu");
const EDGES = new RegExp(`^${SPACE}+|${SPACE}+$`, "gu");
const SENTENCES = new Intl.Segmenter("en", { granularity: "sentence" });

// `per100Words` is how many of a unit 100 words of plain English have; the slider goes from `min` to `max`.
const UNITS = {
  words: { per100Words: 100, min: 5, max: 1000, singular: "word" },
  characters: { per100Words: 600, min: 40, max: 6000, singular: "character" },
  sentences: { per100Words: 6, min: 1, max: 40, singular: "sentence" },
  tokens: { per100Words: 135, min: 8, max: 1500, singular: "token" },
};

/** Counts a text. Only the server can count sentences and tokens exactly: these are estimates. */
export function count(text, unit) {
  const stripped = text.replace(EDGES, "");
  if (unit === "words") return (stripped.match(WORD) ?? []).length;
  if (unit === "characters") return countCodePoints(stripped);
  if (unit === "sentences") return [...SENTENCES.segment(stripped)].length;
  return Math.round(countCodePoints(stripped) / 4.5);
}

export const isEstimate = (unit) => unit === "sentences" || unit === "tokens";

function countCodePoints(text) {
  let number = 0;
  for (const _ of text) number += 1;
  return number;
}

/** Returns "1 word", "1,200 words". */
export function formatCount(number, unit) {
  return `${number.toLocaleString("en")} ${number === 1 ? UNITS[unit].singular : unit}`;
}

/** Names a length or, with a last length, a range: "120–160". */
export function formatTarget(first, last) {
  return [first, last].filter(Boolean).map((length) => length.toLocaleString("en")).join("–");
}

const STEPS = [[30, 1], [100, 5], [300, 10], [1000, 50], [3000, 100], [Infinity, 500]];
const stepAt = (value) => STEPS.find(([end]) => value < end)[1];

/** Lists the values of the slider, closer together where they are small, up to about `maxTokens`. */
export function sliderValues(unit, maxTokens) {
  const { min, per100Words } = UNITS[unit];
  const limit = Math.floor((maxTokens * per100Words) / UNITS.tokens.per100Words);
  const max = Math.max(min + 1, Math.min(UNITS[unit].max, limit));
  const values = [];
  for (let value = min; value <= max; value += stepAt(value) - (value % stepAt(value))) values.push(value);
  return values;
}

/** Returns the index of the value nearest to a number. */
export function nearestIndex(values, number) {
  const distances = values.map((value) => Math.abs(value - number));
  return distances.indexOf(Math.min(...distances));
}

/** Returns about the same length in another unit, as a round number. */
export function convert(length, from, to) {
  return from === to ? length : roundToStep((length * UNITS[to].per100Words) / UNITS[from].per100Words);
}

function roundToStep(value) {
  const step = stepAt(value);
  return Math.max(1, Math.round(value / step) * step);
}

/** Returns `number` different lengths around one, from short to long: half of it, itself, twice as much and so on. */
export function ladderLengths(length, number) {
  const factors = { 3: [0.5, 1, 2], 4: [0.5, 1, 2, 4], 5: [0.25, 0.5, 1, 2, 4] }[number];
  let previous = 0;
  return factors.map((factor) => {
    previous = Math.max(previous + 1, factor === 1 ? length : roundToStep(length * factor));
    return previous;
  });
}
