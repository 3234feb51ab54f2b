/** Health: /metrics, read every two seconds, as small plots; drift, where the service measures it. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, call, get, messageOf, optional } from "../api";
import { bytes, compact, count, duration, number, percent } from "../format";
import { PlotCard, type Series } from "../plot";
import { type Samples, has, parse, quantile, sum } from "../prometheus";
import { Card, Notice, Spinner, useLoad } from "../ui";

const INTERVAL_SECONDS = 2, SLOTS = 90, WINDOW = 5;
const ANSWERS = new Set(["/predict", "/embed", "/explain", "/similar"]);
const isAnswer = (labels: Record<string, string>) => ANSWERS.has(labels.route ?? "");

interface Scrape { at: number; samples: Samples }
interface Point {
  requests: number | null; failures: number | null; shed: number | null; median: number | null; tail: number | null; hits: number | null;
  memory: number; queue: number; sequence: number; lag: number; overlay: number;
}

/** Kept while the page is open, so that a plot continues when its view is opened again. */
const scrapes: Scrape[] = [];
const points: Point[] = [];

function record(samples: Samples): void {
  scrapes.push({ at: performance.now() / 1000, samples });
  if (scrapes.length > WINDOW + 1) scrapes.shift();
  points.push(measure(scrapes));
  if (points.length > SLOTS) points.shift();
}

/** Rates over one interval; quantiles and the share of hits over the last ones, because they need observations. */
function measure(window: Scrape[]): Point {
  const now = window.at(-1)!, before = window.at(-2), first = window[0]!;
  const rate = (name: string, condition?: (labels: Record<string, string>) => boolean): number | null =>
    before ? Math.max(0, sum(now.samples, name, condition) - sum(before.samples, name, condition)) / (now.at - before.at) : null;
  const since = (name: string, condition: (labels: Record<string, string>) => boolean) => sum(now.samples, name, condition) - sum(first.samples, name, condition);
  const lookups = since("sgf_cache_lookups_total", () => true);
  const duration = (q: number) => (before ? quantile(q, first.samples, now.samples, "sgf_request_duration_seconds", isAnswer) : null);
  return {
    requests: rate("sgf_requests_total", isAnswer), failures: rate("sgf_requests_total", (labels) => (labels.code ?? "").startsWith("5")),
    shed: rate("sgf_shed_total"), median: duration(0.5), tail: duration(0.99),
    hits: before && lookups > 0 ? since("sgf_cache_lookups_total", (labels) => labels.result === "hit") / lookups : null,
    memory: sum(now.samples, "sgf_process_memory_bytes"), queue: sum(now.samples, "sgf_queue_depth"),
    sequence: sum(now.samples, "sgf_graph_sequence"), lag: sum(now.samples, "sgf_graph_apply_lag_seconds"), overlay: sum(now.samples, "sgf_graph_overlay_nodes"),
  };
}

export function HealthView() {
  const [samples, setSamples] = useState<Samples | null>(scrapes.at(-1)?.samples ?? null);
  const [problem, setProblem] = useState<unknown>(null);
  useEffect(() => {
    let timer = 0, stopped = false;
    const poll = async () => {
      try {
        const text = await (await call("GET", "/metrics")).text();
        if (stopped) return;
        const parsed = parse(text);
        record(parsed);
        setSamples(parsed);
        setProblem(null);
      } catch (error) {
        if (!stopped) setProblem(error);
      }
      if (!stopped) timer = setTimeout(poll, INTERVAL_SECONDS * 1000) as unknown as number;
    };
    void poll();
    return () => { stopped = true; clearTimeout(timer); };
  }, []);

  const hidden = problem instanceof ApiError && (problem.status === 404 || problem.status === 403);
  const failed = problem !== null && <Notice kind="error">{hidden ? "/metrics cannot be read here: a proxy in front of the service may refuse it." : messageOf(problem)}</Notice>;
  if (!samples) return problem === null ? <Spinner text="Reading /metrics" /> : <>{failed}</>;
  return (
    <div class="sections">
      {failed}
      <State samples={samples} />
      <Plots samples={samples} />
      <Drift />
    </div>
  );
}

function State({ samples }: { samples: Samples }) {
  const ready = sum(samples, "sgf_ready") > 0;
  const served = (samples.get("sgf_model_info") ?? []).filter(({ value }) => value === 1);
  const build = (samples.get("sgf_build_info") ?? [])[0]?.labels.version;
  const started = sum(samples, "sgf_process_start_time_seconds");
  return (
    <div class="status-line quiet small">
      <span class={`tag ${ready ? "ok" : "alarm"}`}>{ready ? "ready" : "not ready"}</span>
      {served.map(({ labels }) => <span key={labels.snapshot}>serves version {labels.version}</span>)}
      <span>{count(sum(samples, "sgf_graph_nodes"))} nodes, {count(sum(samples, "sgf_graph_edges"))} edges</span>
      {started > 0 && <span>newest worker started {duration(Date.now() / 1000 - started)} ago</span>}
      {has(samples, "sgf_store_free_bytes") && <span>store: {bytes(sum(samples, "sgf_store_free_bytes"))} free</span>}
      {build && <span>software {build}</span>}
    </div>
  );
}

function Plots({ samples }: { samples: Samples }) {
  const series = (name: keyof Point): Series => points.map((point) => point[name]);
  const common = { slots: SLOTS, seconds: SLOTS * INTERVAL_SECONDS };
  const perSecond = (value: number) => `${value < 10 ? number(Math.round(value * 10) / 10) : compact(value)}/s`;
  const limit = sum(samples, "sgf_memory_limit_bytes");
  const reasons = (samples.get("sgf_shed_total") ?? []).filter(({ value }) => value > 0).map(({ labels, value }) => `${labels.reason} ${compact(value)}`);
  return (
    <div class="plots">
      <PlotCard title="Answers" series={[series("requests")]} format={perSecond} note={`${compact(sum(samples, "sgf_requests_total", isAnswer))} since the start`} {...common} />
      <PlotCard title="Latency" series={[series("median"), series("tail")]} names={["p50", "p99"]} format={duration} note="of answers, over the last 10 s" {...common} />
      <PlotCard title="Cache hits" series={[series("hits")]} format={(value) => percent(value, 0)} least={1} note={`${compact(sum(samples, "sgf_cache_lookups_total"))} look-ups`} {...common} />
      <PlotCard title="Shed requests" series={[series("shed")]} format={perSecond} note={reasons.join(", ") || "none since the start"} {...common} />
      <PlotCard title="Server errors" series={[series("failures")]} format={perSecond} {...common} />
      <PlotCard title="Requests that wait or run" series={[series("queue")]} format={number} least={4} {...common} />
      <PlotCard title="Memory of the workers" series={[series("memory")]} format={bytes} note={limit > 0 ? `limit ${bytes(limit)}` : null} {...common} />
      <PlotCard title="Graph sequence" series={[series("sequence")]} format={count} note={`${compact(points.at(-1)?.overlay ?? 0)} nodes differ from the snapshot`} {...common} />
      <PlotCard title="Lag of the graph" series={[series("lag")]} format={duration} least={0.1} {...common} />
    </div>
  );
}

interface DriftKind { verdict: string; value?: number | null; threshold?: number | null; /** Absent: PSI. */ statistic?: string; reason?: string | null; samples?: number; worst?: { name: string | number }[] }

function Drift() {
  const [round, setRound] = useState(0);
  const { value } = useLoad(() => optional(get<{ kinds: Record<string, DriftKind> }>("/drift")).catch(() => null), [round]);
  useEffect(() => { const timer = setInterval(() => setRound((before) => before + 1), 15_000); return () => clearInterval(timer); }, []);
  const kinds = Object.entries(value?.kinds ?? {});
  if (!kinds.length) return null;
  const numberOf = (entry: number | null | undefined) => (entry === null || entry === undefined ? "–" : number(Math.round(1000 * entry) / 1000));
  return (
    <Card title="Drift" aside={<span class="small quiet">requests and the live graph against the training graph</span>}>
      <div class="scroll" tabIndex={0} role="region" aria-label="Drift">
        <table>
          <thead><tr><th scope="col">What</th><th scope="col" class="rare">Statistic</th><th scope="col" class="end">Value</th><th scope="col" class="end">Threshold</th><th scope="col" class="end rare">Samples</th><th scope="col">Verdict</th></tr></thead>
          <tbody>
            {kinds.map(([name, kind]) => (
              <tr key={name}>
                <td>{name.replaceAll("_", " ")}</td><td class="rare">{(kind.statistic ?? "PSI").replaceAll("_", " ")}</td><td class="end">{numberOf(kind.value)}</td><td class="end">{numberOf(kind.threshold)}</td><td class="end rare">{numberOf(kind.samples)}</td>
                <td><span class={`tag ${kind.verdict === "ok" ? "ok" : kind.verdict === "drift" ? "alarm" : ""}`}>{kind.verdict.replaceAll("_", " ")}</span> <span class="quiet small">{kind.reason ?? worstOf(kind)}</span></td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="quiet small spaced">Rows that start with “graph” compare the nodes of the live graph, the others the new nodes of the requests of the last day, drawings among them. Above the threshold, they differ by more than chance.</p>
    </Card>
  );
}

/** The features or classes that differ most. */
function worstOf({ verdict, worst }: DriftKind): string {
  return verdict === "drift" && worst?.length ? `most: ${worst.slice(0, 3).map(({ name }) => name).join(", ")}` : "";
}
