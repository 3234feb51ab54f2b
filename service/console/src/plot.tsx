/** A small plot of one or two series over time. A missing value leaves a gap. */

import type { ComponentChildren } from "preact";
import { Card } from "./ui";

const WIDTH = 300, HEIGHT = 74;
export type Series = (number | null)[];

function path(series: Series, most: number, slots: number, closed: boolean): string {
  const parts: string[] = [];
  const start = slots - series.length;
  let pen: number | null = null;
  const floor = HEIGHT - 1;
  const close = (index: number) => { if (closed && pen !== null) parts.push(`L${x(index)} ${floor}L${x(pen)} ${floor}Z`); pen = null; };
  const x = (index: number) => (((start + index) / Math.max(1, slots - 1)) * WIDTH).toFixed(1);
  series.forEach((value, index) => {
    if (value === null) { close(index - 1); return; }
    const y = (floor - (value / most) * (HEIGHT - 6)).toFixed(1);
    parts.push(`${pen === null ? "M" : "L"}${x(index)} ${y}`);
    pen ??= index;
  });
  close(series.length - 1);
  return parts.join("");
}

export function Lines({ series, slots, label, least = 0 }: { series: Series[]; slots: number; label: string; least?: number }) {
  const most = Math.max(least, ...series.flat().map((value) => value ?? 0)) || 1;
  return (
    <svg class="plot" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
      <line x1="0" x2={WIDTH} y1={HEIGHT - 1} y2={HEIGHT - 1} />
      {series.map((values, index) => <path key={`area${index}`} class={`area ${"ab"[index]}`} d={path(values, most, slots, true)} />)}
      {series.map((values, index) => <path key={index} class={"ab"[index]} d={path(values, most, slots, false)} />)}
    </svg>
  );
}

export function PlotCard({ title, series, format, slots, seconds, names, note, least }: {
  title: string; series: Series[]; format: (value: number) => string; slots: number; seconds: number; names?: [string, string]; note?: ComponentChildren; least?: number;
}) {
  const last = series.map((values) => values.at(-1) ?? null);
  const texts = last.map((value) => (value === null ? "–" : format(value)));
  const most = Math.max(0, ...series.flat().map((value) => value ?? 0));
  return (
    <Card title={title} aside={names && <span class="small quiet"><span class="key-a">{names[0]}</span> &nbsp; <span class="key-b">{names[1]}</span></span>}>
      <p class="plot-value">{texts[0]}{texts[1] !== undefined && <small>{names?.[1]} {texts[1]}</small>}</p>
      <p class="plot-note quiet small">{note ?? "\u00a0"}</p>
      <Lines series={series} slots={slots} least={least ?? 0} label={`${title}, now ${texts.join(", ")}, at most ${format(most)}`} />
      <p class="plot-scale"><span>{Math.round(seconds)} s ago</span><span>{series.flat().some((value) => value !== null) ? `at most ${format(most)}` : "no data yet"}</span><span>now</span></p>
    </Card>
  );
}
