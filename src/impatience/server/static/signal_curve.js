// Draws the impatience signal as a curve.
//
// The signal is a vector ξ(r) with ξ(r)_i = cos(r · M · x_i) for even i and sin(r · M · x_i) for odd i, where r is the
// share of the length that is written, and x_i goes from 0 to 1. The curve shows, at each r, the pair of components at
// x = r: it hardly moves at the start and swings faster towards the end. M is smaller than in a model, to be readable.

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

export const COSINE_PATH = path(Math.cos);
export const SINE_PATH = path(Math.sin);
