/** The text format of Prometheus, as far as /metrics uses it. */

export interface Sample { labels: Record<string, string>; value: number }
export type Samples = Map<string, Sample[]>;

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const ESCAPES: Record<string, string> = { n: "\n", "\\": "\\", '"': '"' };

export function parse(text: string): Samples {
  const samples: Samples = new Map();
  for (const line of text.split("\n")) {
    const match = line.startsWith("#") ? null : LINE.exec(line);
    if (!match) continue;
    const labels: Record<string, string> = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(LABEL)) {
      labels[name!] = value!.replace(/\\(.)/g, (_, letter: string) => ESCAPES[letter] ?? letter);
    }
    const value = match[3] === "+Inf" ? Infinity : Number(match[3]);
    const list = samples.get(match[1]!);
    if (list) list.push({ labels, value });
    else samples.set(match[1]!, [{ labels, value }]);
  }
  return samples;
}

type Condition = (labels: Record<string, string>) => boolean;

export function sum(samples: Samples, name: string, condition: Condition = () => true): number {
  return (samples.get(name) ?? []).reduce((total, { labels, value }) => total + (condition(labels) ? value : 0), 0);
}

export function has(samples: Samples, name: string): boolean {
  return samples.has(name);
}

/** The quantile of the observations between two scrapes, by linear interpolation in its bucket, as Prometheus does.

`null` if there were no observations. An observation beyond the last bound counts as the last bound. */
export function quantile(q: number, before: Samples, after: Samples, name: string, condition: Condition): number | null {
  const counts = new Map<number, number>();
  for (const [samples, sign] of [[before, -1], [after, 1]] as const) {
    for (const { labels, value } of samples.get(`${name}_bucket`) ?? []) {
      if (!condition(labels)) continue;
      const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
      counts.set(bound, (counts.get(bound) ?? 0) + sign * value);
    }
  }
  const bounds = [...counts.keys()].sort((a, b) => a - b);
  const total = bounds.length ? counts.get(bounds.at(-1)!)! : 0;
  if (!(total > 0)) return null;
  const rank = q * total;
  let lower = 0, below = 0;
  for (const bound of bounds) {
    const count = counts.get(bound)!;
    if (count >= rank) return bound === Infinity ? lower : lower + ((bound - lower) * (rank - below)) / Math.max(count - below, 1e-12);
    lower = bound;
    below = count;
  }
  return lower;
}
