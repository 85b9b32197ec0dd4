// Colours of weights: Viridis (Smith and van der Walt 2015, CC0) at nine places, even steps for the eye, also in grey and for
// the colour-blind. By the square root of the weight, so that faint attention shows.

const STOPS = [
  [68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99], [170, 220, 50],
  [253, 231, 37],
];

/** 256 colours as bytes, r g b. */
export const PALETTE = Uint8Array.from({ length: 768 }, (_, n) => {
  const x = (Math.floor(n / 3) / 255) * 8;
  const at = Math.min(7, Math.floor(x));
  return Math.round(STOPS[at][n % 3] + (x - at) * (STOPS[at + 1][n % 3] - STOPS[at][n % 3]));
});

/** Place of a weight in the palette. */
export const level = (weight) => Math.round(255 * Math.sqrt(Math.min(1, Math.max(0, weight))));

export function css(weight) {
  const at = 3 * level(weight);
  return `rgb(${PALETTE[at]} ${PALETTE[at + 1]} ${PALETTE[at + 2]})`;
}

/** Whether black text is the one to read on a weight's colour. */
export const isLight = (weight) => level(weight) > 140;

/** The page's own colours, light or dark. */
export function theme() {
  const style = getComputedStyle(document.documentElement);
  const names = ["back", "fore", "soft", "line", "bar", "mark", "grid", "accent", "good", "bad"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}
