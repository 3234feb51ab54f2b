/** Map: every node by the two main directions of the embeddings, and the node that was asked about last. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError } from "../api";
import { count, number, percent } from "../format";
import { type MapData, loadMap } from "../map_data";
import { RIGHT_COLOR, UNKNOWN_COLOR, WRONG_COLOR, classColor, toBytes } from "../palette";
import { Scatter } from "../scatter";
import { type Asked, lastAsked, nodeLink, useService } from "../session";
import { Card, Failure, Notice, Segmented, Spinner, useLoad } from "../ui";

type Coloring = "prediction" | "class" | "error";
const COLORINGS = [["prediction", "Prediction"], ["class", "Class"], ["error", "Error"]] as const;

const RANGE_COLORS = ["#3b4cc0", "#6788ee", "#9abbff", "#c9d7f0", "#edd1c2", "#f7a889", "#e26952", "#b40426"];

export function MapView() {
  const { snapshot } = useService();
  const { value: map, error, loading } = useLoad(() => loadMap(snapshot), [snapshot]);
  if (error instanceof ApiError && error.status === 404) return <Notice>There is no map here: {error.message}.</Notice>;
  if (error) return <Failure error={error} />;
  if (loading || !map) return <Spinner text="Loading the map" />;
  if (!map.x.length) return <Notice>The map of this version is empty.</Notice>;
  return <Plot map={map} />;
}

/** The group of each point, the groups by name and colour, how many points they have, and the group that is drawn above the others. */
interface Groups { of: number[]; names: string[]; colors: string[]; counts: number[]; top?: number }

function groups(map: MapData, coloring: Coloring, classes: string[]): Groups {
  if (coloring === "error") {
    const of = map.labels.map((label, row) => (label === null || label === undefined ? 2 : label === map.predictions[row] ? 0 : 1));
    return tally({ of, names: ["right", "wrong", "no label"], colors: [RIGHT_COLOR, WRONG_COLOR, UNKNOWN_COLOR], counts: [], top: 1 });
  }
  const unknown = classes.length;
  const of = (coloring === "class" ? map.labels : map.predictions).map((label) => label ?? unknown);
  const size = Math.max(unknown, ...unique(of)) + 1;
  const names = Array.from({ length: size }, (_, label) => (label === unknown ? "no label" : classes[label] ?? String(label)));
  return tally({ of, names, colors: names.map((_, label) => (label === unknown ? UNKNOWN_COLOR : classColor(label))), counts: [] });
}

/** Regression: predictions in ranges that have about as many points each. */
function ranges(map: MapData): Groups {
  const values = map.predictions.map((value) => value ?? NaN), sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  const bounds = RANGE_COLORS.map((_, index) => sorted[Math.floor((index * sorted.length) / RANGE_COLORS.length)]!);
  const of = values.map((value) => Math.max(0, bounds.findLastIndex((bound) => value >= bound)));
  const names = bounds.map((bound, index) => `${number(bound)} to ${number(bounds[index + 1] ?? sorted.at(-1)!)}`);
  return tally({ of, names, colors: RANGE_COLORS, counts: [] });
}

const unique = (values: number[]): number[] => [...new Set(values)];

function tally(result: Groups): Groups {
  result.counts = result.names.map(() => 0);
  for (const group of result.of) result.counts[group]! += 1;
  return result;
}

function Plot({ map }: { map: MapData }) {
  const { classes, task } = useService();
  const [coloring, setColoring] = useState<Coloring>("prediction");
  const [only, setOnly] = useState<number | null>(null);
  const [tip, setTip] = useState<{ row: number; x: number; y: number } | null>(null);
  const canvas = useRef<HTMLCanvasElement>(null), mark = useRef<HTMLDivElement>(null), scatter = useRef<Scatter | null>(null);
  const asked = lastAsked();
  const place = useMemo(() => placeOf(map, asked), [map, asked]);
  const grouping = useMemo(() => (task === "regression" ? ranges(map) : groups(map, coloring, classes)), [map, coloring, classes]);

  useEffect(() => {
    const plot = (scatter.current = new Scatter(canvas.current!));
    plot.setPoints(map.x, map.y);
    plot.onDraw = () => {
      if (!place || !mark.current) return;
      const [x, y] = plot.toScreen(...place);
      mark.current.style.transform = `translate(${x}px, ${y}px)`;
      mark.current.classList.toggle("left", x > plot.canvas.clientWidth - 140);
    };
    const watcher = new ResizeObserver(() => plot.resize());
    watcher.observe(canvas.current!);
    const release = control(plot, canvas.current!, (row, x, y) => setTip(row < 0 ? null : { row, x, y }), (row) => { location.hash = nodeLink(map.ids[row]!); });
    (window as unknown as { sgfMap?: Scatter }).sgfMap = plot; // for the benchmark of frames per second
    return () => { watcher.disconnect(); release(); plot.release(); };
  }, [map]);

  useEffect(() => {
    scatter.current?.setGroups(grouping.of, grouping.colors.map(toBytes), grouping.top ?? null, only);
  }, [grouping, only, map]);

  const explained = map.explained.reduce((total, share) => total + share, 0);
  const order = grouping.names.map((_, group) => group).filter((group) => grouping.counts[group]! > 0);
  return (
    <Card title="Map" aside={task === "multiclass" && <Segmented label="Colour" options={COLORINGS} value={coloring} onChange={(next) => { setColoring(next); setOnly(null); }} />}>
      <div class="map-side">
        <div class="map">
          <canvas ref={canvas} tabIndex={0} role="img" data-testid="map"
            aria-label={`Map of ${count(map.shown)} nodes. Arrow keys move, plus and minus zoom, 0 shows everything. The list beside it has the same groups as text.`} />
          {tip && <Tip map={map} tip={tip} classes={classes} isRight={tip.x > canvas.current!.clientWidth / 2} />}
          {asked && place && <div class="map-mark" ref={mark} data-testid="asked"><i style={{ borderColor: asked.prediction.label === undefined ? "" : classColor(asked.prediction.label) }} /><b>{asked.known ? `node ${asked.node}` : asked.node === "drawing" ? "your drawing" : "your node"}</b></div>}
          <div class="map-tools">
            <button type="button" aria-label="Zoom in" onClick={() => scatter.current?.zoom(1.5)}>+</button>
            <button type="button" aria-label="Zoom out" onClick={() => scatter.current?.zoom(1 / 1.5)}>−</button>
            <button type="button" aria-label="Show everything" onClick={() => scatter.current?.reset()}>⤢</button>
          </div>
        </div>
        <div>
          <p class="quiet small">
            {map.shown < map.nodes ? `A sample of ${count(map.shown)} of ${count(map.nodes)} nodes` : `${count(map.nodes)} nodes`} by {map.method.toUpperCase()} of their embeddings:
            these two directions have {percent(explained, 0)} of the variance. Click a point to open its node.
          </p>
          <div class="legend" role="group" aria-label="Groups">
            {order.map((group) => (
              <button key={group} type="button" aria-pressed={only === group} onClick={() => setOnly(only === group ? null : group)}>
                <span class="swatch" style={{ background: grouping.colors[group] }} /><span class="name">{grouping.names[group]}</span><span class="n">{count(grouping.counts[group]!)}</span>
              </button>
            ))}
          </div>
        </div>
      </div>
    </Card>
  );
}

/** Left of the pointer if this is in the right half, so that it is not cut off. */
function Tip({ map, tip, classes, isRight }: { map: MapData; tip: { row: number; x: number; y: number }; classes: string[]; isRight: boolean }) {
  const label = map.labels[tip.row], prediction = map.predictions[tip.row];
  const name = (value: number | null | undefined) => (value === null || value === undefined ? "unknown" : classes[value] ?? number(value));
  return (
    <div class="map-tip" style={{ transform: `translate(${tip.x + (isRight ? -14 : 14)}px, ${tip.y + 10}px)${isRight ? " translateX(-100%)" : ""}` }}>
      <strong>{String(map.ids[tip.row])}</strong><br />predicted {name(prediction)}, in the data {name(label)}
    </div>
  );
}

function placeOf(map: MapData, asked: Asked | null): [number, number] | null {
  const embedding = asked?.prediction.embedding;
  if (!embedding || embedding.length !== map.mean.length) return null;
  const along = (direction: number[]) => direction.reduce((total, value, index) => total + value * (embedding[index]! - map.mean[index]!), 0);
  return [along(map.components[0]!), along(map.components[1]!)];
}

/** Mouse, wheel, two fingers and keys. Returns the function that removes the listeners. */
function control(plot: Scatter, canvas: HTMLCanvasElement, onHover: (row: number, x: number, y: number) => void, onOpen: (row: number) => void): () => void {
  const pointers = new Map<number, { x: number; y: number }>();
  let moved = 0;
  const local = (event: PointerEvent | WheelEvent) => { const box = canvas.getBoundingClientRect(); return { x: event.clientX - box.left, y: event.clientY - box.top }; };
  const down = (event: PointerEvent) => { canvas.setPointerCapture(event.pointerId); pointers.set(event.pointerId, local(event)); moved = 0; onHover(-1, 0, 0); };
  const move = (event: PointerEvent) => {
    const now = local(event), before = pointers.get(event.pointerId);
    if (!before) { onHover(plot.pick(now.x, now.y), now.x, now.y); return; }
    moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const distance = (a: { x: number; y: number }) => Math.hypot(a.x - other.x, a.y - other.y);
      plot.zoom(distance(now) / Math.max(1, distance(before)), (now.x + other.x) / 2, (now.y + other.y) / 2);
    } else plot.pan(now.x - before.x, now.y - before.y);
    pointers.set(event.pointerId, now);
  };
  const up = (event: PointerEvent) => {
    const place = local(event);
    if (pointers.delete(event.pointerId) && moved < 4 && event.type === "pointerup") {
      const row = plot.pick(place.x, place.y);
      if (row >= 0) onOpen(row);
    }
  };
  const wheel = (event: WheelEvent) => { event.preventDefault(); const { x, y } = local(event); plot.zoom(Math.exp(-event.deltaY / 400), x, y); };
  const leave = () => onHover(-1, 0, 0);
  const press = (event: KeyboardEvent) => {
    const moves: Record<string, () => void> = {
      ArrowLeft: () => plot.pan(40, 0), ArrowRight: () => plot.pan(-40, 0), ArrowUp: () => plot.pan(0, 40), ArrowDown: () => plot.pan(0, -40),
      "+": () => plot.zoom(1.3), "=": () => plot.zoom(1.3), "-": () => plot.zoom(1 / 1.3), 0: () => plot.reset(),
    };
    const action = moves[event.key];
    if (action) { event.preventDefault(); action(); }
  };
  const listeners = { pointerdown: down, pointermove: move, pointerup: up, pointercancel: up, pointerleave: leave, wheel, keydown: press } as Record<string, EventListener | unknown>;
  for (const [name, listener] of Object.entries(listeners)) canvas.addEventListener(name, listener as EventListener, { passive: false });
  return () => { for (const [name, listener] of Object.entries(listeners)) canvas.removeEventListener(name, listener as EventListener); };
}
