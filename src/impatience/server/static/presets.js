// Buttons for the lengths of texts that people often need; the server names them.

import { formatCount } from "./lengths.js";

/** Shows a button for each preset, and calls `use` with the chosen one. */
export function showPresets(group, presets, use) {
  const buttons = Object.entries(presets).map(([name, preset]) => {
    const button = document.createElement("button");
    const limit = preset.landing === "at_most" ? " at most" : "";
    button.type = "button";
    button.className = "plain";
    button.textContent = name.replaceAll("-", " ").replace(/^./, (letter) => letter.toUpperCase());
    button.title = `${formatCount(preset.length, preset.unit)}${limit}`;
    button.addEventListener("click", () => use(preset));
    return button;
  });
  group.replaceChildren(...buttons);
  group.hidden = !buttons.length;
}
