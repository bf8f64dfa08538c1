// The page: reads the controls, writes one text or a ladder of them, and keeps everything in step.

import { around, convert, nearest, say, stops } from "./lengths.js";
import { Sheet } from "./sheet.js";
import { Source } from "./source.js";
import { abilities, write } from "./stream.js";

const find = (selector) => document.querySelector(selector);
const picked = (name) => find(`input[name=${name}]:checked`).value;
const [length, slider, status] = ["#length", "#slider", "#status"].map(find);

const MEANING = {
  natural: "The model ends by itself, on the length or close to it.",
  exact: "Ends on the very count, whatever the model would rather do.",
  at_most: "Never longer; shorter where a sentence ends in time.",
};
const LEAST_RUNGS = 3;
const MOST_RUNGS = 5;

let server = {};
let asked = { length: 40, unit: "words" }; // what was set by hand last; other units are worked out from it
let running = 0;
let controller = null;
let rungs = [];

const announce = (text) => { status.textContent = text; };
const source = new Source(() => shareOfSource());
const newSheet = (hint) => new Sheet({ hint, announce, retry: (sheet) => run([sheet]) });
const one = newSheet("The text appears here, and ends where you asked it to.");
find("#one").append(one.element);

// Length and unit.

function setLength(value, { byHand = true } = {}) {
  const unit = picked("unit");
  if (byHand) asked = { length: value, unit };
  if (Number(length.value) !== value) length.value = value;
  placeSlider();
  one.aim(value, unit);
  setRungs(around(value, rungs.length || 4));
  shareOfSource();
}

const sliderStops = () => stops(picked("unit"), server.max_target_tokens ?? Infinity);

function placeSlider() {
  const values = sliderStops();
  slider.max = values.length - 1;
  slider.value = nearest(values, Number(length.value));
  slider.setAttribute("aria-valuetext", say(Number(length.value), picked("unit")));
  slider.style.setProperty("--at", slider.value / slider.max);
}

function shareOfSource() {
  const whole = source.length(picked("unit"));
  const share = Math.round((100 * Number(length.value)) / whole);
  const said = share > 100 ? "longer than your text" : `about ${Math.max(1, share)} % of your text`;
  find("#share").textContent = whole ? said : "";
}

length.addEventListener("input", () => { if (length.validity.valid) setLength(Number(length.value)); });
slider.addEventListener("input", () => setLength(sliderStops()[slider.value]));
find("#units").addEventListener("change", () => {
  source.unit = picked("unit");
  source.changed();
  setLength(convert(asked.length, asked.unit, picked("unit")), { byHand: false });
});
find("#landings").addEventListener("change", explainLanding);

function explainLanding() {
  find("#landing-meaning").textContent = MEANING[picked("landing")];
}

// The ladder.

function setRungs(lengths) {
  while (rungs.length > lengths.length) rungs.pop().element.remove();
  while (rungs.length < lengths.length) rungs.push(newRung());
  lengths.forEach((value, place) => {
    const rung = rungs[place];
    rung.find(".aim input").value = value;
    rung.find(".aim .unseen").textContent = `Length ${place + 1}`;
    rung.find(".aim .unit").textContent = picked("unit");
    rung.find(".remove").setAttribute("aria-label", `Remove length ${place + 1}`);
    rung.find(".remove").hidden = lengths.length <= LEAST_RUNGS;
    rung.aim(value, picked("unit"));
  });
  find("#more").hidden = lengths.length >= MOST_RUNGS;
}

function newRung() {
  const rung = newSheet("Not written yet.");
  const field = rung.find(".aim input");
  rung.find(".aim").hidden = false;
  field.addEventListener("input", () => {
    if (field.validity.valid) rung.aim(Number(field.value), picked("unit"));
  });
  rung.find(".remove").addEventListener("click", () => {
    const place = rungs.indexOf(rung);
    rung.element.remove();
    rungs.splice(place, 1);
    setRungs(rungs.map((other) => other.aimed.target));
    rungs[Math.min(place, rungs.length - 1)].find(".aim input").focus();
  });
  find("#rungs").append(rung.element);
  return rung;
}

find("#more").addEventListener("click", () => {
  const lengths = rungs.map((rung) => rung.aimed.target);
  setRungs([...lengths, 2 * lengths.at(-1)]);
  rungs.at(-1).find(".aim input").focus();
});

function showView() {
  document.body.dataset.view = picked("view");
  find("#one").hidden = picked("view") !== "one";
  find("#ladder").hidden = picked("view") !== "ladder";
}

find("#views").addEventListener("change", () => {
  stop();
  showView();
});

// Writing.

const shown = () => (picked("view") === "one" ? [one] : [...rungs]);
const fields = () => (picked("view") === "one" ? [length] : rungs.map((rung) => rung.find(".aim input")));

async function run(sheets) {
  const wrong = fields().find((field) => !field.validity.valid);
  if (wrong) wrong.reportValidity();
  if (wrong || !source.check()) return;
  const request = { text: source.text, task: picked("task") || null, landing: picked("landing") };
  controller ??= new AbortController();
  running += sheets.length;
  swapButtons();
  announce("Writing.");
  const { signal } = controller;
  reveal(sheets[0].element);
  await Promise.all(sheets.map((sheet) => writeOn(sheet, request, signal)));
  running -= sheets.length;
  if (running) return;
  controller = null;
  swapButtons();
  announce(shown().map((sheet) => sheet.said).join(" "));
  if (!server.id) learn(); // the key that was missing may be there now
}

async function writeOn(sheet, request, signal) {
  const { target, unit } = sheet.aimed;
  sheet.begin();
  try {
    const asking = { ...request, target: { [unit]: target } };
    sheet.finish(await write(asking, (piece) => sheet.piece(piece), signal), request.landing);
  } catch (error) {
    if (signal.aborted) sheet.stop();
    else sheet.fail(error);
  }
}

function stop() {
  controller?.abort();
}

function swapButtons() {
  const [hide, show] = running ? ["#write", "#stop"] : ["#stop", "#write"];
  const focused = document.activeElement === find(hide);
  find(show).hidden = false;
  if (focused) find(show).focus();
  find(hide).hidden = true;
  find("#keys-write").hidden = Boolean(running);
  find("#keys-stop").hidden = !running;
}

/** Bring a sheet that begins below the window into it. */
function reveal(element) {
  if (element.getBoundingClientRect().top < innerHeight - 160) return;
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  element.scrollIntoView({ block: "start", behavior: calm ? "auto" : "smooth" });
}

find("#desk").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) run(shown());
});
find("#stop").addEventListener("click", stop);
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("#desk").requestSubmit();
  if (event.key === "Escape") stop();
});

// Colours.

const systemDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (systemDark.matches ? "dark" : "light")) === "dark";
const showTheme = () => find("#theme").setAttribute("aria-pressed", isDark());

find("#theme").addEventListener("click", () => {
  const next = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("theme", next);
  showTheme();
});
systemDark.addEventListener("change", showTheme);

// What this server can do.

async function learn() {
  server = await abilities();
  source.most = server.max_source_characters ?? Infinity;
  for (const [group, values] of [["#units", server.units], ["#landings", server.landings], ["#tasks", server.tasks]]) {
    const radios = [...document.querySelectorAll(`${group} input`)];
    const offered = radios.filter((radio) => !values || !radio.value || values.includes(radio.value));
    for (const radio of radios) radio.closest("label").hidden = !offered.includes(radio);
    if (!offered.some((radio) => radio.checked)) offered[0]?.click();
  }
  find("#model").textContent = server.id ? `The model is ${server.id}.` : "";
  placeSlider();
}

if (/Mac|iPhone|iPad/.test(navigator.platform)) find("#keys-write kbd").textContent = "⌘";
showView();
showTheme();
explainLanding();
setLength(asked.length);
learn();
