/** Numbers and times as text. */

const COUNT = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (value: number): string => COUNT.format(value);
export const compact = (value: number): string => COMPACT.format(value);
export const percent = (share: number, digits = 1): string => `${(100 * share).toFixed(digits)} %`;
export const signed = (value: number): string => (Math.abs(value) < 0.005 ? "0.00" : `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`);
export const shortHash = (hash: string | undefined): string => (hash ?? "").slice(0, 8);

export function number(value: number): string {
  if (!Number.isFinite(value)) return "–";
  return Number.isInteger(value) ? count(value) : value.toPrecision(4).replace(/\.?0+$/, "");
}

export function duration(seconds: number | null): string {
  if (seconds === null) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 1) return `${(seconds * 1000).toPrecision(seconds < 0.1 ? 2 : 3)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : seconds < 172_800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86_400)} d`;
}

export function bytes(value: number): string {
  if (value < 1000) return `${value} B`;
  const power = Math.min(4, Math.floor(Math.log10(value) / 3));
  return `${(value / 1000 ** power).toPrecision(3)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

export function time(text: string | null | undefined): string {
  return text ? new Date(text).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }) : "–";
}
