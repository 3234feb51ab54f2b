/** The demo: a drawing as 8 x 8 pixels, and the digits of the graph that are nearest to it.

The data set was made from bitmaps of 32 x 32, fitted to the height of a digit, by counting the black pixels of each 4 x 4 block. A
drawing goes the same way, so that it looks like the digits of the training. The graph is a nearest-neighbour graph of these pixels:
the neighbours of a drawing are the nearest digits. */

import { type NodeData, type NodeId, get } from "./api";

export const SIDE = 8, NEIGHBORS = 8;
const FINE = 32, PEN = 4.6, MARGIN = 1.5;

export type Point = { x: number; y: number };
export type Stroke = Point[];

/** The strokes, in any unit, as 64 shares of ink from 0 to 1. */
export function toPixels(strokes: Stroke[]): number[] {
  const points = strokes.flat();
  const pixels = new Array<number>(SIDE * SIDE).fill(0);
  if (!points.length) return pixels;
  const [left, right] = [Math.min(...points.map((p) => p.x)), Math.max(...points.map((p) => p.x))];
  const [top, bottom] = [Math.min(...points.map((p) => p.y)), Math.max(...points.map((p) => p.y))];
  const room = FINE - PEN - MARGIN;
  const scale = room / Math.max(bottom - top, (right - left) * 1.05, 0.2);
  const place = (p: Point) => [(p.x - (left + right) / 2) * scale + FINE / 2, (p.y - (top + bottom) / 2) * scale + FINE / 2] as const;
  const context = new OffscreenCanvas(FINE, FINE).getContext("2d", { willReadFrequently: true })!;
  context.lineWidth = PEN;
  context.lineCap = context.lineJoin = "round";
  for (const stroke of strokes) {
    context.beginPath();
    stroke.forEach((p, index) => (index ? context.lineTo(...place(p)) : context.moveTo(...place(p))));
    if (stroke.length === 1) context.lineTo(place(stroke[0]!)[0] + 0.01, place(stroke[0]!)[1]);
    context.stroke();
  }
  const ink = context.getImageData(0, 0, FINE, FINE).data;
  const block = FINE / SIDE;
  for (let y = 0; y < FINE; y++) {
    for (let x = 0; x < FINE; x++) {
      if (ink[4 * (y * FINE + x) + 3]! > 110) pixels[Math.floor(y / block) * SIDE + Math.floor(x / block)]! += 1 / block ** 2;
    }
  }
  return pixels;
}

export class Digits {
  private constructor(
    readonly ids: NodeId[], readonly labels: (number | null)[], private readonly rows: Float32Array, /** What a black pixel is in the data: 1, or 16. */ readonly black: number,
  ) {}

  private static loaded = new Map<string, Promise<Digits>>();

  /** All digits of the graph, read once for each version of the model. */
  static load(snapshot: string): Promise<Digits> {
    let promise = Digits.loaded.get(snapshot);
    if (!promise) {
      promise = Digits.read();
      promise.catch(() => Digits.loaded.delete(snapshot));
      Digits.loaded.set(snapshot, promise);
    }
    return promise;
  }

  /** After a change of the graph. */
  static forget(): void { Digits.loaded.clear(); }

  private static async read(): Promise<Digits> {
    const nodes: NodeData[] = [];
    for (let start: number | null = 0; start !== null;) {
      const part: { nodes: NodeData[]; next: number | null } = await get(`/nodes?start=${start}`);
      nodes.push(...part.nodes);
      start = part.next;
    }
    const rows = new Float32Array(nodes.length * SIDE * SIDE);
    let most = 0;
    nodes.forEach(({ features }, row) => {
      denseFeatures(features, SIDE * SIDE).forEach((value, index) => {
        rows[row * SIDE * SIDE + index] = value;
        if (value > most) most = value;
      });
    });
    return new Digits(nodes.map((node) => node.node), nodes.map((node) => node.label ?? null), rows, most > 1 ? 16 : 1);
  }

  pixelsOf(id: NodeId): number[] | null {
    const row = this.ids.indexOf(id);
    return row < 0 ? null : [...this.rows.subarray(row * 64, row * 64 + 64)].map((value) => value / this.black);
  }

  /** The `count` digits with the smallest distance to these pixels; a tie goes to the first, as in the training. */
  nearest(pixels: number[], count = NEIGHBORS): NodeId[] {
    const distances = this.ids.map((_, row) => {
      let distance = 0;
      for (let index = 0; index < 64; index++) distance += (this.rows[row * 64 + index]! - pixels[index]! * this.black) ** 2;
      return distance;
    });
    const order = distances.map((_, row) => row).sort((a, b) => distances[a]! - distances[b]! || a - b);
    return order.slice(0, count).map((row) => this.ids[row]!);
  }
}

export function denseFeatures(features: NodeData["features"], width: number): number[] {
  if (Array.isArray(features)) return features;
  const values = new Array<number>(width).fill(0);
  if (features && "indices" in features && Array.isArray(features.indices)) {
    (features as { indices: number[]; values: number[] }).indices.forEach((index, place) => { values[index] = (features as { values: number[] }).values[place]!; });
  }
  return values;
}
