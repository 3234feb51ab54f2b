/** Calls of the service. Keys and the admin token live in this module only, in memory, and are gone when the page is left. */

export type NodeId = number | string;
export type Features = number[] | { indices: number[]; values: number[] } | Record<string, number | boolean | string | null>;

export interface Origin { model: string; version: number; snapshot: string; sequence?: number }
export interface Prediction {
  node: NodeId;
  label?: number; class?: string;
  labels?: number[]; classes?: string[];
  value?: number | number[];
  probabilities?: number[];
  embedding?: number[];
  exactness?: string;
}
export interface Answer extends Origin { predictions: Prediction[]; assumed?: number; milliseconds: number }
export interface NodeData {
  node: NodeId; degree: number; features?: Features | null;
  label?: number | null; class?: string | null; labels?: number[] | null; classes?: string[] | null; value?: unknown;
  split?: string | null; added?: string;
}
export interface NodeAnswer extends Origin, NodeData { neighbors: NodeId[] }
export interface Scores { [name: string]: unknown }
export interface StoredVersion {
  version: number; live: boolean; snapshot?: string; created?: string; nodes?: number; edges?: number; scores?: Scores; damaged?: string;
}
export interface Models {
  serving: (Origin & { engine: string }) | null;
  failure: { version: number | null; error: string; at: string } | null;
  probation: number | null; problem?: string | null;
  rolled_back: { from: number | null; to: number; why: string | null; at: string } | null;
  versions: StoredVersion[];
}
export interface FeatureName { name: string; kind: "number" | "boolean" | "category" | "date"; categories?: string[]; fill?: unknown }
export interface FeaturesInfo extends Origin { width: number; transform: string; features: FeatureName[] | null }
export interface ClassesInfo extends Origin { task: "multiclass" | "multilabel" | "regression"; classes: { label: number; class: string }[] }
export interface Manifest extends Origin {
  created: string; nodes: number; edges: number;
  config: Record<string, unknown>; dataset: Record<string, unknown>; training: Record<string, unknown>; scores: Scores;
}
export type Operation = { op: string; id?: NodeId; features?: Features; neighbors?: NodeId[]; label?: unknown; source?: NodeId; target?: NodeId };
export interface NewNode { id: NodeId; features: Features; neighbors: NodeId[] }
export interface Question { nodes?: NodeId[]; new_nodes?: NewNode[]; assuming?: Operation[]; embeddings?: boolean; probabilities?: boolean }
export interface Job {
  id: string; state: "queued" | "running" | "succeeded" | "failed" | "cancelled";
  request: Record<string, unknown>; submitted_at: string; started_at: string | null; finished_at: string | null;
  epoch: number; epochs: number | null; validation: number | null; version: number | null; live: boolean; error: string | null;
  verdict: { better: boolean; reason: string } | null; scores: Scores | null; log_tail?: string; warning?: string | null;
}

export class ApiError extends Error {
  constructor(readonly status: number, readonly code: string, message: string) { super(message); }
}

export type KeyKind = "api" | "write" | "admin";
const keys: Record<KeyKind, string> = { api: "", write: "", admin: "" };

export function setKey(kind: KeyKind, key: string): void { keys[kind] = key.trim(); }
export function hasKey(kind: KeyKind): boolean { return keys[kind] !== ""; }

function keyFor(method: string, path: string): string {
  if (path.startsWith("/admin")) return keys.admin;
  if (method === "POST" && path === "/graph") return keys.write;
  return keys.api || keys.write;
}

export async function call(method: string, path: string, body?: unknown, more: RequestInit = {}): Promise<Response> {
  const headers = new Headers(more.headers);
  const key = keyFor(method, path);
  if (key) headers.set("authorization", `Bearer ${key}`);
  if (body !== undefined) headers.set("content-type", "application/json");
  let response: Response;
  try {
    response = await fetch(path, { ...more, method, headers, body: body === undefined ? null : JSON.stringify(body) });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The service does not answer. It may be stopped, or the network is down.");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

async function failure(response: Response): Promise<ApiError> {
  try {
    const { code, error } = await response.json();
    return new ApiError(response.status, String(code), String(error));
  } catch {
    return new ApiError(response.status, "unknown", `The service answered with status ${response.status}.`);
  }
}

const ATTEMPTS = 3, LONGEST_WAIT_MS = 2000;

/** Sends a request that changes nothing, again if the service is overloaded or misses its deadline. */
async function withRetries<T>(send: () => Promise<Response>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await (await send()).json();
    } catch (error) {
      if (!(error instanceof ApiError) || ![429, 503].includes(error.status) || attempt === ATTEMPTS) throw error;
      await new Promise((done) => setTimeout(done, LONGEST_WAIT_MS * (0.25 + 0.5 * Math.random())));
    }
  }
}

export function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return withRetries(() => call("GET", path, undefined, signal ? { signal } : {}));
}

/** For questions; `post` is for changes. */
export function ask<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  return withRetries(() => call("POST", path, body, signal ? { signal } : {}));
}

export async function post<T>(path: string, body: unknown, more: RequestInit = {}): Promise<T> {
  return (await call("POST", path, body, more)).json();
}

export async function predict(question: Question, signal?: AbortSignal): Promise<Answer> {
  const start = performance.now();
  const answer = await ask<Answer>("/predict", question, signal);
  return { ...answer, milliseconds: performance.now() - start };
}

export function nodePath(folder: string, id: NodeId): string {
  return `${folder}/${encodeURIComponent(String(id)).replaceAll(".", "%2E")}`;
}

/** `null` where the service does not have the route, or this version cannot answer it. */
export async function optional<T>(promise: Promise<T>): Promise<T | null> {
  try {
    return await promise;
  } catch (error) {
    if (error instanceof ApiError && (error.status === 404 || error.status === 405) && error.code !== "unknown_node") return null;
    throw error;
  }
}

/** Server-sent events with a token, which EventSource cannot send. */
export async function* events(path: string, signal: AbortSignal): AsyncGenerator<{ name: string; data: any }> {
  const response = await call("GET", path, undefined, { signal });
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop()!;
    for (const block of blocks) {
      const fields = new Map(block.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      const data = fields.get("data");
      if (data !== undefined) yield { name: fields.get("event") ?? "message", data: JSON.parse(data) };
    }
  }
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
