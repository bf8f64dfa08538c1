// Shows a text with marks at the words that its source does not have.

/** Returns the pieces of a text in order, as pairs of a string and whether it is one of the words. */
export function markedPieces(text, words) {
  if (!words.length) return [[text, false]];
  const longestFirst = [...words].sort((one, other) => other.length - one.length);
  const any = longestFirst.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|");
  const pattern = new RegExp(`(?<![\\p{L}\\p{N}])(${any})(?![\\p{L}\\p{N}])`, "gu");
  return text.split(pattern).map((piece, index) => [piece, index % 2 === 1]).filter(([piece]) => piece);
}

/** Fills an element with a text, and marks the words that its source does not have. */
export function showMarked(element, text, words = []) {
  const nodes = markedPieces(text, words).map(([piece, marked]) => {
    if (!marked) return document.createTextNode(piece);
    const mark = document.createElement("mark");
    mark.textContent = piece;
    mark.title = "Not in the source";
    return mark;
  });
  element.replaceChildren(...nodes);
}
