/** A digit as 8 x 8 pixels. */

import { SIDE } from "./digits";

export function Picture({ pixels, label, size = 40 }: { pixels: number[]; label?: string; size?: number }) {
  return (
    <svg class="picture" width={size} height={size} viewBox={`0 0 ${SIDE} ${SIDE}`} role={label ? "img" : undefined} aria-label={label} aria-hidden={label ? undefined : true}>
      <Pixels pixels={pixels} />
    </svg>
  );
}

/** The pixels alone, in a square of 8 units, for use inside another drawing. */
export function Pixels({ pixels }: { pixels: number[] }) {
  return (
    <>
      {pixels.map((value, index) => value > 0.02 && (
        <rect key={index} x={index % SIDE} y={Math.floor(index / SIDE)} width="1.02" height="1.02" fill-opacity={Math.min(1, value)} />
      ))}
    </>
  );
}
