/** Colours of classes: twelve that differ in hue and lightness, then hues by the golden angle. */

const TWELVE = [
  "#4e79d9", "#e8833a", "#3fa66b", "#d6536d", "#8c6bd1", "#b08a4f", "#d77fb8", "#6f7d8c", "#a8a832", "#2fa8b5", "#7a4b2a", "#56b4e9",
];

export function classColor(label: number): string {
  if (label < TWELVE.length) return TWELVE[label]!;
  const hue = (label * 137.508) % 360;
  return `hsl(${hue.toFixed(1)} 55% ${label % 2 ? 48 : 60}%)`;
}

export const UNKNOWN_COLOR = "#9aa0aa";
export const RIGHT_COLOR = "#8fa3b8";
export const WRONG_COLOR = "#e0413f";

/** Any CSS colour as bytes. */
export function toBytes(color: string): [number, number, number] {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true })!;
  context.fillStyle = color;
  context.fillRect(0, 0, 1, 1);
  const [red, green, blue] = context.getImageData(0, 0, 1, 1).data;
  return [red!, green!, blue!];
}
