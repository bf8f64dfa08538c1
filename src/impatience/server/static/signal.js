// The impatience signal as a curve.
//
// The model is told how far it is by a vector ξ(r) with ξ(r)_i = cos(r · M · x_i) at even and sin(r · M · x_i) at odd
// places x_i from 0 to 1, where r is the share of the length that is behind. What is drawn at r is the pair of
// components at x = r: a pair that has hardly moved at the start, and swings faster with every word towards the end.
// M is smaller here than in a model, so that the eye can follow.

const M = 22 * Math.PI;
const WIDTH = 600;
const HEIGHT = 80;
const MARGIN = 6;

function path(component) {
  const middle = HEIGHT / 2;
  let d = "";
  for (let x = 0; x <= WIDTH; x += 0.75) {
    const r = x / WIDTH;
    const y = middle - (middle - MARGIN) * component(r * M * r);
    d += `${d ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`;
  }
  return d;
}

export const EVEN = path(Math.cos);
export const ODD = path(Math.sin);
