// The page: reads the controls, writes one text or several side by side, and keeps slider, field and cards in step.

import { readModel, write } from "./api.js";
import { Instruction } from "./instruction.js";
import { convert, formatCount, formatTarget, ladderLengths, nearestIndex, sliderValues } from "./lengths.js";
import { showPresets } from "./presets.js";
import { ResultCard } from "./result_card.js";
import { Source } from "./source.js";

const find = (selector) => document.querySelector(selector);
const selected = (name) => find(`input[name=${name}]:checked`).value;
const [length, last, slider, status] = ["#length", "#last", "#slider", "#status"].map(find);

const LANDING_HELP = {
  natural: "The model chooses where to end, near the length.",
  exact: "Ends at exactly this length, even if the model would go on.",
  at_most: "Never longer; ends earlier if a sentence ends in time.",
};
const RANGE = 1.25; // the last length of a new range, as a multiple of the first
const MIN_RUNGS = 3;
const MAX_RUNGS = 5;

let model = {};
let enteredLength = { length: 40, last: 0, unit: "words" }; // entered by the reader; other units are converted from it
let running = 0; // number of texts being written
let controller = null;
let rungs = []; // the cards of the ladder

const announce = (text) => { status.textContent = text; };
const source = new Source(() => showShareOfSource());
const instruction = new Instruction();
const newCard = (hint) => new ResultCard({ hint, announce, retry: (card) => run([card]) });
const single = newCard("The new text will appear here.");
find("#single").append(single.element);

// Length and unit.

const hasRange = () => !find("#range").hidden;

/** Sets the length, and the last length of the range if there is one. */
function setLength(value, { end = Number(last.value), entered = true } = {}) {
  const unit = selected("unit");
  if (entered) enteredLength = { length: value, last: end, unit };
  if (Number(length.value) !== value) length.value = value;
  last.min = value;
  if (hasRange() && Number(last.value) !== end) last.value = end;
  updateSlider();
  single.setTarget(value, unit, hasRange() ? end : 0);
  setRungs(ladderLengths(value, rungs.length || 4));
  showShareOfSource();
}

const currentSliderValues = () => sliderValues(selected("unit"), model.max_target_tokens ?? Infinity);

function updateSlider() {
  const values = currentSliderValues();
  slider.max = values.length - 1;
  slider.value = nearestIndex(values, Number(length.value));
  const range = formatTarget(Number(length.value), Number(last.value));
  const [first, unit] = [Number(length.value), selected("unit")];
  slider.setAttribute("aria-valuetext", hasRange() ? `${range} ${unit}` : formatCount(first, unit));
  slider.style.setProperty("--filled", slider.value / slider.max);
}

function showShareOfSource() {
  const sourceLength = source.length(selected("unit"));
  const percent = Math.round((100 * Number(length.value)) / sourceLength);
  const share = percent > 100 ? "longer than your text" : `about ${Math.max(1, percent)} % of your text`;
  find("#share").textContent = sourceLength ? share : "";
}

for (const field of [length, last]) {
  field.addEventListener("input", () => {
    last.min = length.value;
    if (length.validity.valid) setLength(Number(length.value));
  });
}
slider.addEventListener("input", () => moveRange(currentSliderValues()[slider.value]));

/** Sets the length, and moves a range with it; the fields may be empty. */
function moveRange(value) {
  const { target, last: end } = single.next;
  setLength(value, { end: Math.round((value * end) / target) });
}

find("#units").addEventListener("change", () => {
  source.unit = selected("unit");
  source.update();
  const [value, end] = [enteredLength.length, enteredLength.last].map(
    (number) => number && convert(number, enteredLength.unit, selected("unit")),
  );
  setLength(value, { end, entered: false });
});
find("#landings").addEventListener("change", () => {
  if (selected("landing") === "exact") useRange(false);
  showLandingHelp();
});

/** Adds a last length, or takes it away; an exact length has none, and neither has a ladder. */
function useRange(wanted) {
  const value = Number(length.value);
  find("#range").hidden = !wanted;
  last.required = wanted;
  last.value = wanted ? Math.max(value + 1, Math.round(value * RANGE)) : "";
  find("#use-range").textContent = wanted ? "No range" : "Allow a range";
  if (wanted && selected("landing") === "exact") find("input[name=landing][value=natural]").click();
  if (length.validity.valid) setLength(value);
}

find("#use-range").addEventListener("click", () => {
  useRange(!hasRange());
  if (hasRange()) last.focus();
});

function usePreset(preset) {
  useRange(false);
  for (const [name, value] of [["unit", preset.unit], ["landing", preset.landing], ["task", preset.task]]) {
    const radio = find(`input[name=${name}][value=${value}]`) ?? find(`input[name=${name}]`);
    (radio.closest("label").hidden ? find(`input[name=${name}]`) : radio).checked = true;
  }
  source.unit = selected("unit");
  source.update();
  showLandingHelp();
  setLength(preset.length);
}

function showLandingHelp() {
  find("#landing-help").textContent = LANDING_HELP[selected("landing")];
}

// The ladder: several lengths side by side.

function setRungs(lengths) {
  while (rungs.length > lengths.length) rungs.pop().element.remove();
  while (rungs.length < lengths.length) rungs.push(newRung());
  lengths.forEach((value, index) => {
    const rung = rungs[index];
    rung.find(".target input").value = value;
    rung.find(".target .visually-hidden").textContent = `Length ${index + 1}`;
    rung.find(".target .unit").textContent = selected("unit");
    rung.find(".remove").setAttribute("aria-label", `Remove length ${index + 1}`);
    rung.find(".remove").hidden = lengths.length <= MIN_RUNGS;
    rung.setTarget(value, selected("unit"));
  });
  find("#add-length").hidden = lengths.length >= MAX_RUNGS;
}

function newRung() {
  const rung = newCard("Not written yet.");
  const field = rung.find(".target input");
  rung.find(".target").hidden = false;
  field.addEventListener("input", () => {
    if (field.validity.valid) rung.setTarget(Number(field.value), selected("unit"));
  });
  rung.find(".remove").addEventListener("click", () => {
    const index = rungs.indexOf(rung);
    rung.element.remove();
    rungs.splice(index, 1);
    setRungs(rungs.map((other) => other.next.target));
    rungs[Math.min(index, rungs.length - 1)].find(".target input").focus();
  });
  find("#rungs").append(rung.element);
  return rung;
}

find("#add-length").addEventListener("click", () => {
  const lengths = rungs.map((rung) => rung.next.target);
  setRungs([...lengths, 2 * lengths.at(-1)]);
  rungs.at(-1).find(".target input").focus();
});

function showView() {
  if (selected("view") !== "single") useRange(false);
  find("#use-range").hidden = selected("view") !== "single";
  document.body.dataset.view = selected("view");
  find("#single").hidden = selected("view") !== "single";
  find("#ladder").hidden = selected("view") !== "ladder";
}

find("#views").addEventListener("change", () => {
  stop();
  showView();
});

// Writing.

const visibleCards = () => (selected("view") === "single" ? [single] : [...rungs]);
const lengthFields = () =>
  (selected("view") === "single" ? [length, ...(hasRange() ? [last] : [])] : rungs.map((rung) => rung.find(".target input")));

async function run(cards) {
  const invalid = lengthFields().find((field) => !field.validity.valid);
  if (invalid) invalid.reportValidity();
  if (invalid || !source.check({ optional: Boolean(instruction.text) })) return;
  const request = { text: source.text, landing: selected("landing") };
  Object.assign(request, instruction.text ? { instruction: instruction.text } : { task: selected("task") || null });
  controller ??= new AbortController();
  running += cards.length;
  showButtons();
  announce("Writing.");
  const { signal } = controller;
  scrollToCard(cards[0].element);
  await Promise.all(cards.map((card) => writeCard(card, request, signal)));
  running -= cards.length;
  if (running) return;
  controller = null;
  showButtons();
  announce(visibleCards().map((card) => card.report).join(" "));
  if (!model.id) loadModel(); // the key may have been missing when the page was opened
}

async function writeCard(card, request, signal) {
  const { target, last: end, unit } = card.next;
  card.start();
  try {
    const cardRequest = { ...request, target: { [unit]: end ? [target, end] : target } };
    card.finish(await write(cardRequest, (piece) => card.addPiece(piece), signal), request.landing);
  } catch (error) {
    if (signal.aborted) card.stop();
    else card.fail(error);
  }
}

function stop() {
  controller?.abort();
}

/** Shows Stop while texts are written, else Write; moves the focus from one to the other. */
function showButtons() {
  const [hide, show] = running ? ["#write", "#stop"] : ["#stop", "#write"];
  const focused = document.activeElement === find(hide);
  find(show).hidden = false;
  if (focused) find(show).focus();
  find(hide).hidden = true;
  find("#write-shortcut").hidden = Boolean(running);
  find("#stop-shortcut").hidden = !running;
}

/** Scrolls to a card that starts below the window. */
function scrollToCard(element) {
  if (element.getBoundingClientRect().top < innerHeight - 160) return;
  const reduceMotion = matchMedia("(prefers-reduced-motion: reduce)").matches;
  element.scrollIntoView({ block: "start", behavior: reduceMotion ? "auto" : "smooth" });
}

find("#request").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) run(visibleCards());
});
find("#stop").addEventListener("click", stop);
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("#request").requestSubmit();
  if (event.key === "Escape") stop();
});

// Colours.

const systemDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (systemDark.matches ? "dark" : "light")) === "dark";
const showTheme = () => find("#theme").setAttribute("aria-pressed", isDark());

find("#theme").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
  showTheme();
});
systemDark.addEventListener("change", showTheme);

// The model: offer only what it can do.

async function loadModel() {
  model = await readModel();
  source.maxCharacters = model.max_source_characters ?? Infinity;
  source.offer(model.documents ?? [], model.max_document_bytes ?? 0);
  instruction.offer(Boolean(model.instructions));
  showPresets(find("#presets"), model.presets ?? {}, usePreset);
  for (const [group, values] of [["#units", model.units], ["#landings", model.landings], ["#tasks", model.tasks]]) {
    const radios = [...document.querySelectorAll(`${group} input`)];
    const offered = radios.filter((radio) => !values || !radio.value || values.includes(radio.value));
    for (const radio of radios) radio.closest("label").hidden = !offered.includes(radio);
    if (!offered.some((radio) => radio.checked)) offered[0]?.click();
  }
  find("#model").textContent = model.id ? `Model: ${model.id}.` : "";
  updateSlider();
}

if (/Mac|iPhone|iPad/.test(navigator.platform)) find("#write-shortcut kbd").textContent = "⌘";
showView();
showTheme();
showLandingHelp();
setLength(enteredLength.length);
loadModel();
