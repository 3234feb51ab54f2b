/** The drawing board: mouse, pen, finger, or keys (arrows move the pen, Space puts it down and lifts it). */

import { useEffect, useRef, useState } from "preact/hooks";
import type { Point, Stroke } from "./digits";

const SIZE = 320, STEP = 1 / 8;

export function Pad({ strokes, onChange }: { strokes: Stroke[]; onChange: (strokes: Stroke[]) => void }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const latest = useRef(strokes);
  latest.current = strokes;
  const [pen, setPen] = useState<(Point & { down: boolean }) | null>(null);
  const drawing = useRef(false);

  useEffect(() => { draw(canvas.current!, strokes, pen); }, [strokes, pen]);
  useEffect(() => {
    const again = () => draw(canvas.current!, latest.current, pen);
    const query = matchMedia("(prefers-color-scheme: dark)");
    const watcher = new MutationObserver(again);
    query.addEventListener("change", again);
    watcher.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => { query.removeEventListener("change", again); watcher.disconnect(); };
  }, []);

  const update = (next: Stroke[]) => { latest.current = next; onChange(next); };
  const extend = (point: Point) => update([...latest.current.slice(0, -1), [...(latest.current.at(-1) ?? []), point]]);
  const at = (event: PointerEvent): Point => {
    const box = canvas.current!.getBoundingClientRect();
    return { x: (event.clientX - box.left) / box.width, y: (event.clientY - box.top) / box.height };
  };
  const start = (event: PointerEvent) => {
    event.preventDefault();
    canvas.current!.setPointerCapture(event.pointerId);
    drawing.current = true;
    setPen(null);
    update([...latest.current, [at(event)]]);
  };
  const move = (event: PointerEvent) => { if (drawing.current) extend(at(event)); };
  const stop = () => { drawing.current = false; };

  const press = (event: KeyboardEvent) => {
    const moves: Record<string, [number, number]> = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] };
    const current = pen ?? { x: 0.5, y: 0.25, down: false };
    const moved = moves[event.key];
    if (moved) {
      const point = { x: Math.min(0.95, Math.max(0.05, current.x + moved[0])), y: Math.min(0.95, Math.max(0.05, current.y + moved[1])) };
      setPen({ ...point, down: current.down });
      if (current.down) extend(point);
    } else if (event.key === " ") {
      setPen({ ...current, down: !current.down });
      if (!current.down) update([...latest.current, [{ x: current.x, y: current.y }]]);
    } else if (event.key === "Delete" || event.key === "Backspace") {
      update([]);
      setPen(null);
    } else return;
    event.preventDefault();
  };

  return (
    <canvas ref={canvas} class="pad" width={SIZE * 2} height={SIZE * 2} tabIndex={0} role="img" data-testid="pad"
      aria-label="Drawing board. Draw a digit with the mouse or a finger. With keys: arrows move the pen, Space puts it down or lifts it, Delete clears."
      onPointerDown={start} onPointerMove={move} onPointerUp={stop} onPointerCancel={stop} onKeyDown={press} onBlur={() => setPen(null)} />
  );
}

function draw(canvas: HTMLCanvasElement, strokes: Stroke[], pen: (Point & { down: boolean }) | null): void {
  const context = canvas.getContext("2d")!, side = canvas.width;
  const style = getComputedStyle(canvas);
  context.clearRect(0, 0, side, side);
  context.strokeStyle = style.color;
  context.lineWidth = side * 0.075;
  context.lineCap = context.lineJoin = "round";
  for (const stroke of strokes) {
    context.beginPath();
    stroke.forEach(({ x, y }, index) => (index ? context.lineTo(x * side, y * side) : context.moveTo(x * side, y * side)));
    if (stroke.length === 1) context.lineTo(stroke[0]!.x * side + 0.1, stroke[0]!.y * side);
    context.stroke();
  }
  if (pen) {
    context.strokeStyle = style.outlineColor;
    context.lineWidth = side * 0.008;
    context.beginPath();
    context.arc(pen.x * side, pen.y * side, side * (pen.down ? 0.045 : 0.03), 0, 2 * Math.PI);
    context.stroke();
  }
}
