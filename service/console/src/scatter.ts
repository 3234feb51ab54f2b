/** Points on a canvas, drawn by the processor into the pixels: 100,000 points take a few milliseconds, with and without a graphics card.

WebGL was measured first. Without a graphics card it took 100 ms of processor time for the same frame. */

export interface View { x: number; y: number; /** Width of the visible part in the units of the points. */ span: number }
export type Color = [red: number, green: number, blue: number];

const DIMMED_ALPHA = 40, HALF = 0x7f7f7f7f, OPAQUE = 0xff000000;

export class Scatter {
  readonly view: View = { x: 0, y: 0, span: 2 };
  private readonly context: CanvasRenderingContext2D;
  private image: ImageData | null = null;
  private pixels = new Uint32Array();
  private frame = 0;
  private home: View = { ...this.view };
  private xs = new Float32Array();
  private ys = new Float32Array();
  private groups: ArrayLike<number> = [];
  private colors: Color[] = [];
  private top: number | null = null;
  private only: number | null = null;
  onDraw: () => void = () => undefined;

  constructor(readonly canvas: HTMLCanvasElement) {
    this.context = canvas.getContext("2d")!;
  }

  setPoints(xs: ArrayLike<number>, ys: ArrayLike<number>): void {
    this.xs = Float32Array.from(xs);
    this.ys = Float32Array.from(ys);
    let [left, right, bottom, top] = [Infinity, -Infinity, Infinity, -Infinity];
    for (let row = 0; row < xs.length; row++) {
      const x = xs[row]!, y = ys[row]!;
      left = Math.min(left, x); right = Math.max(right, x); bottom = Math.min(bottom, y); top = Math.max(top, y);
    }
    if (!xs.length) return;
    const span = 1.12 * Math.max(right - left, (top - bottom) * this.aspect, 1e-9);
    this.home = { x: (left + right) / 2, y: (bottom + top) / 2, span };
    Object.assign(this.view, this.home);
  }

  /** The group of each point, the colours of the groups, the group above the others, and the only group that is not dimmed, if any. */
  setGroups(groups: ArrayLike<number>, colors: Color[], top: number | null, only: number | null): void {
    Object.assign(this, { groups, colors, top, only });
    this.draw();
  }

  private get aspect(): number { return this.canvas.clientWidth / Math.max(1, this.canvas.clientHeight); }

  resize(): void {
    const ratio = Math.min(2, devicePixelRatio);
    this.canvas.width = Math.max(1, Math.round(this.canvas.clientWidth * ratio));
    this.canvas.height = Math.max(1, Math.round(this.canvas.clientHeight * ratio));
    this.image = new ImageData(this.canvas.width, this.canvas.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.draw();
  }

  /** Draws at the next frame; further calls before it change nothing. */
  draw(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.render();
      this.onDraw();
    });
  }

  private render(): void {
    if (!this.image) return;
    this.pixels.fill(0);
    const shades = this.colors.map(([red, green, blue]) => ((OPAQUE | (blue << 16) | (green << 8) | red) >>> 0));
    const dimmed = shades.map((shade) => ((shade & ~OPAQUE) | (DIMMED_ALPHA << 24)) >>> 0), above = this.only ?? this.top;
    this.stamp(this.only === null ? shades : dimmed, (group) => group !== above);
    if (above !== null) this.stamp(shades, (group) => group === above);
    this.context.putImageData(this.image, 0, 0);
  }

  /** Writes a disc for every point of the chosen groups. The rim is mixed with what is below it, which smooths it. */
  private stamp(shades: number[], chosen: (group: number) => boolean): void {
    const { xs, ys, groups, pixels, view } = this, { width, height } = this.canvas;
    const unit = width / view.span, reach = (this.pointSize * (width / Math.max(1, this.canvas.clientWidth))) / 2, border = Math.ceil(reach) + 1;
    const [disc, rim] = discOf(reach, width);
    const drawn = shades.map((_, group) => chosen(group));
    for (let row = 0; row < xs.length; row++) {
      const group = groups[row]!;
      if (!drawn[group]) continue;
      const px = ((xs[row]! - view.x) * unit + width / 2) | 0, py = ((view.y - ys[row]!) * unit + height / 2) | 0;
      if (px < border || py < border || px >= width - border || py >= height - border) continue;
      const place = py * width + px, shade = shades[group]!;
      for (let index = 0; index < disc.length; index++) pixels[place + disc[index]!] = shade;
      for (let index = 0; index < rim.length; index++) {
        const spot = place + rim[index]!, below = pixels[spot]!;
        pixels[spot] = below ? ((below >>> 1) & HALF) + ((shade >>> 1) & HALF) : (shade & ~OPAQUE) | ((shade >>> 25) << 24);
      }
    }
  }

  /** In CSS pixels: smaller for many points, larger when zoomed in. */
  get pointSize(): number {
    const zoom = this.home.span / this.view.span;
    return Math.min(14, Math.max(2, 190 / Math.sqrt(this.xs.length + 1)) * zoom ** 0.35 + 1);
  }

  pan(dx: number, dy: number): void {
    const unit = this.view.span / this.canvas.clientWidth;
    this.view.x -= dx * unit;
    this.view.y += dy * unit;
    this.draw();
  }

  /** Keeps the point below (px, py) where it is. */
  zoom(factor: number, px = this.canvas.clientWidth / 2, py = this.canvas.clientHeight / 2): void {
    const span = Math.min(this.home.span * 4, Math.max(this.home.span / 2000, this.view.span / factor));
    const unit = (this.view.span - span) / this.canvas.clientWidth;
    this.view.x += (px - this.canvas.clientWidth / 2) * unit;
    this.view.y -= (py - this.canvas.clientHeight / 2) * unit;
    this.view.span = span;
    this.draw();
  }

  reset(): void { Object.assign(this.view, this.home); this.draw(); }

  toScreen(x: number, y: number): [number, number] {
    const unit = this.canvas.clientWidth / this.view.span;
    return [(x - this.view.x) * unit + this.canvas.clientWidth / 2, (this.view.y - y) * unit + this.canvas.clientHeight / 2];
  }

  /** The row of the nearest point within `radius` pixels, or -1. */
  pick(px: number, py: number, radius = 10): number {
    const unit = this.view.span / this.canvas.clientWidth;
    const x = this.view.x + (px - this.canvas.clientWidth / 2) * unit, y = this.view.y - (py - this.canvas.clientHeight / 2) * unit;
    let best = (radius * unit) ** 2, row = -1;
    for (let index = 0; index < this.xs.length; index++) {
      const distance = (this.xs[index]! - x) ** 2 + (this.ys[index]! - y) ** 2;
      if (distance < best) { best = distance; row = index; }
    }
    return row;
  }

  release(): void { cancelAnimationFrame(this.frame); }
}

/** Offsets of the pixels inside a disc, and of those that its edge crosses. */
function discOf(radius: number, width: number): [Int32Array, Int32Array] {
  const inside: number[] = [], edge: number[] = [], reach = Math.ceil(radius);
  for (let y = -reach; y <= reach; y++) {
    for (let x = -reach; x <= reach; x++) {
      const distance = Math.hypot(x, y);
      if (distance <= radius - 0.25) inside.push(y * width + x);
      else if (distance <= radius + 0.6) edge.push(y * width + x);
    }
  }
  return [Int32Array.from(inside), Int32Array.from(edge)];
}
