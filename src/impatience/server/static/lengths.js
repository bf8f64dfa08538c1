// What length means on this page: counting, the stops of the slider, and going from one unit to another.

// White space as the server has it when it splits words.
const SPACE = "[\\p{White_Space}\\x1c-\\x1f]";
const WORD = new RegExp(`[^${SPACE.slice(1, -1)}]+`, "gu");
const EDGES = new RegExp(`^${SPACE}+|${SPACE}+$`, "gu");
const SENTENCES = new Intl.Segmenter("en", { granularity: "sentence" });

// `per` is how many of a unit there are in a hundred words of plain English; the slider goes from `least` to `most`.
const UNITS = {
  words: { per: 100, least: 5, most: 1000, one: "word" },
  characters: { per: 600, least: 40, most: 6000, one: "character" },
  sentences: { per: 6, least: 1, most: 40, one: "sentence" },
  tokens: { per: 135, least: 8, most: 1500, one: "token" },
};

/** Count a text. Sentences and tokens are the server's to count: here they are estimates. */
export function count(text, unit) {
  const stripped = text.replace(EDGES, "");
  if (unit === "words") return (stripped.match(WORD) ?? []).length;
  if (unit === "characters") return codePoints(stripped);
  if (unit === "sentences") return [...SENTENCES.segment(stripped)].length;
  return Math.round(codePoints(stripped) / 4.5);
}

export const isEstimate = (unit) => unit === "sentences" || unit === "tokens";

function codePoints(text) {
  let number = 0;
  for (const _ of text) number += 1;
  return number;
}

/** "1 word", "1,200 words". */
export function say(number, unit) {
  return `${number.toLocaleString("en")} ${number === 1 ? UNITS[unit].one : unit}`;
}

const STEPS = [[30, 1], [100, 5], [300, 10], [1000, 50], [3000, 100], [Infinity, 500]];
const step = (value) => STEPS.find(([end]) => value < end)[1];

/** The values a slider stops at, closer together where they are small; the server writes at most so many `tokens`. */
export function stops(unit, tokens) {
  const { least, per } = UNITS[unit];
  const most = Math.max(least + 1, Math.min(UNITS[unit].most, Math.floor((tokens * per) / UNITS.tokens.per)));
  const values = [];
  for (let value = least; value <= most; value += step(value) - (value % step(value))) values.push(value);
  return values;
}

/** The place of the stop that is nearest to a value. */
export function nearest(values, value) {
  let best = 0;
  values.forEach((one, place) => { if (Math.abs(one - value) < Math.abs(values[best] - value)) best = place; });
  return best;
}

/** About the same length in another unit, as a round number. */
export function convert(value, from, to) {
  return from === to ? value : rounded((value * UNITS[to].per) / UNITS[from].per);
}

function rounded(value) {
  const size = step(value);
  return Math.max(1, Math.round(value / size) * size);
}

/** So many lengths around one, from short to long, no two the same: half of it, itself, twice as much and so on. */
export function around(value, number) {
  const factors = { 3: [0.5, 1, 2], 4: [0.5, 1, 2, 4], 5: [0.25, 0.5, 1, 2, 4] }[number];
  let last = 0;
  return factors.map((factor) => (last = Math.max(last + 1, factor === 1 ? value : rounded(value * factor))));
}
