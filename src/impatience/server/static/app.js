// The page: reads the controls, writes one text or several side by side, and keeps slider, field and cards in step.

import { readModel, write } from "./api.js";
import { convert, formatCount, ladderLengths, nearestIndex, sliderValues } from "./lengths.js";
import { ResultCard } from "./result_card.js";
import { Source } from "./source.js";

const find = (selector) => document.querySelector(selector);
const selected = (name) => find(`input[name=${name}]:checked`).value;
const [length, slider, status] = ["#length", "#slider", "#status"].map(find);

const LANDING_HELP = {
  natural: "The model chooses where to end, near the length.",
  exact: "Ends at exactly this length, even if the model would go on.",
  at_most: "Never longer; ends earlier if a sentence ends in time.",
};
const MIN_RUNGS = 3;
const MAX_RUNGS = 5;

let model = {};
let enteredLength = { length: 40, unit: "words" }; // entered by the reader; lengths in other units are converted from it
let running = 0; // number of texts being written
let controller = null;
let rungs = []; // the cards of the ladder

const announce = (text) => { status.textContent = text; };
const source = new Source(() => showShareOfSource());
const newCard = (hint) => new ResultCard({ hint, announce, retry: (card) => run([card]) });
const single = newCard("The new text will appear here.");
find("#single").append(single.element);

// Length and unit.

function setLength(value, { entered = true } = {}) {
  const unit = selected("unit");
  if (entered) enteredLength = { length: value, unit };
  if (Number(length.value) !== value) length.value = value;
  updateSlider();
  single.setTarget(value, unit);
  setRungs(ladderLengths(value, rungs.length || 4));
  showShareOfSource();
}

const currentSliderValues = () => sliderValues(selected("unit"), model.max_target_tokens ?? Infinity);

function updateSlider() {
  const values = currentSliderValues();
  slider.max = values.length - 1;
  slider.value = nearestIndex(values, Number(length.value));
  slider.setAttribute("aria-valuetext", formatCount(Number(length.value), selected("unit")));
  slider.style.setProperty("--filled", slider.value / slider.max);
}

function showShareOfSource() {
  const sourceLength = source.length(selected("unit"));
  const percent = Math.round((100 * Number(length.value)) / sourceLength);
  const share = percent > 100 ? "longer than your text" : `about ${Math.max(1, percent)} % of your text`;
  find("#share").textContent = sourceLength ? share : "";
}

length.addEventListener("input", () => { if (length.validity.valid) setLength(Number(length.value)); });
slider.addEventListener("input", () => setLength(currentSliderValues()[slider.value]));
find("#units").addEventListener("change", () => {
  source.unit = selected("unit");
  source.update();
  setLength(convert(enteredLength.length, enteredLength.unit, selected("unit")), { entered: false });
});
find("#landings").addEventListener("change", showLandingHelp);

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
  (selected("view") === "single" ? [length] : rungs.map((rung) => rung.find(".target input")));

async function run(cards) {
  const invalid = lengthFields().find((field) => !field.validity.valid);
  if (invalid) invalid.reportValidity();
  if (invalid || !source.check()) return;
  const request = { text: source.text, task: selected("task") || null, landing: selected("landing") };
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
  const { target, unit } = card.next;
  card.start();
  try {
    const cardRequest = { ...request, target: { [unit]: target } };
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
