/** Ask: draw a digit, ask about a node of the graph, or describe a new one. */

import { useEffect, useRef, useState } from "preact/hooks";
import { Bars, Headline, Source } from "../answer";
import { type Answer, ApiError, type Features, type NewNode, type NodeId, hasKey, messageOf, post, predict, setKey } from "../api";
import { Digits, type Stroke, toPixels } from "../digits";
import { count } from "../format";
import { NodeField } from "../node_field";
import { Pad } from "../pad";
import { Picture } from "../picture";
import { lastAsked, nodeLink, parseId, parseIds, remember, useService } from "../session";
import { Card, Failure, Notice, SecretField, Segmented, useConfirm, useLoad } from "../ui";
import { FeatureForm, emptyForm, readForm } from "../feature_form";
import { Why } from "./reasons";

type Way = "draw" | "known" | "new";

/** Kept while the page is open, so that the drawing is still there after a look at the map. */
let drawn: Stroke[] = [];

export function AskView() {
  const service = useService();
  const [way, setWay] = useState<Way>(service.drawable ? "draw" : "known");
  const ways = [...(service.drawable ? [["draw", "Draw a digit"]] : []), ["known", "A node of the graph"], ["new", "A new node"]] as [Way, string][];
  return (
    <>
      <div class="view-head">
        <p class="lead">{way === "draw" ? "Draw a digit. It becomes a new node, linked to the digits nearest to it, and the answer equals a full pass over the graph."
          : way === "known" ? "Ask about a node that is in the graph." : "Describe a node that the graph has never seen, and name its neighbours."}</p>
        <Segmented label="Way to ask" options={ways} value={way} onChange={setWay} />
      </div>
      {way === "draw" ? <Draw /> : way === "known" ? <Known /> : <New />}
    </>
  );
}

function Draw() {
  const { snapshot } = useService();
  const [strokes, setStrokes] = useState(drawn);
  const [asked, setAsked] = useState<{ node: NewNode; pixels: number[]; answer: Answer } | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [round, setRound] = useState(0), [added, setAdded] = useState<NodeId[]>([]);
  const isBlank = !strokes.length;
  const digits = useLoad(() => Digits.load(snapshot), [snapshot, round, isBlank]); // a new drawing may be near a digit that was added
  const pixels = toPixels(strokes);
  drawn = strokes;
  const busy = useRef(false), wanted = useRef<number[] | null>(null);

  /** One request at a time, always for the newest strokes. */
  const ask = async (next: number[]) => {
    wanted.current = next;
    if (busy.current || !digits.value) return;
    busy.current = true;
    while (wanted.current) {
      const current: number[] = wanted.current;
      wanted.current = null;
      if (!current.some(Boolean)) { setAsked(null); continue; }
      const features = current.map((value) => value * digits.value!.black);
      const node = { id: "drawing", features, neighbors: digits.value.nearest(current) };
      try {
        const answer = await predict({ new_nodes: [node], embeddings: true });
        setError(null);
        setAsked({ node, pixels: current, answer });
        remember({ node: "drawing", known: false, prediction: answer.predictions[0]!, features, neighbors: node.neighbors });
      } catch (failure) {
        setError(failure);
        if (failure instanceof ApiError && failure.code === "unknown_node") { // a neighbour was removed from the graph since
          Digits.forget();
          setRound((before) => before + 1);
        }
      }
    }
    busy.current = false;
  };
  useEffect(() => { void ask(toPixels(strokes)); }, [strokes, digits.value]);

  return (
    <div class="sections">
      <div class="columns ask">
        <Card title="Drawing" aside={<button type="button" class="plain" disabled={isBlank} onClick={() => setStrokes([])}>Clear</button>}>
          <Pad strokes={strokes} onChange={setStrokes} />
          <div class="sees">
            <Picture pixels={pixels} size={64} label="What the model sees: 8 by 8 pixels" />
            <p class="quiet small">What the model sees: 8 × 8 pixels, 64 features. Fitted to the frame, as the digits of the data set are.</p>
          </div>
          <Failure error={digits.error} />
        </Card>
        <Card title="Answer">
          <Failure error={error} />
          <div aria-live="polite">
            {asked ? <><Headline prediction={asked.answer.predictions[0]!} /><Bars prediction={asked.answer.predictions[0]!} /><Source answer={asked.answer} prediction={asked.answer.predictions[0]!} /></>
              : <p class="empty">{digits.loading ? "Reading the digits of the graph …" : "Draw on the board. The answer appears while you draw."}</p>}
          </div>
        </Card>
        <Card title="Nearest digits" className="wide" aside={asked && <a href="#/map">Show it on the map</a>}>
          {asked && digits.value ? (
            <>
              <p class="quiet small">Its neighbours: the eight digits with the smallest distance between pixels.</p>
              <ul class="thumbs">
                {asked.node.neighbors.map((id) => (
                  <li key={id}><a href={nodeLink(id)} title={`Node ${id}`}><Picture pixels={digits.value!.pixelsOf(id)!} size={52} /><span>{digits.value!.labels[digits.value!.ids.indexOf(id)] ?? "?"}</span><span class="hidden">, node {id}</span></a></li>
                ))}
              </ul>
              <Commit node={asked.node} suggested={nextId([...digits.value.ids, ...added])} onCommitted={(id) => { Digits.forget(); setAdded([...added, id]); }} />
            </>
          ) : <p class="empty">The neighbours of your drawing appear here.</p>}
        </Card>
      </div>
      {asked && <Why node={asked.node} prediction={asked.answer.predictions[0]!} />}
    </div>
  );
}

const nextId = (ids: NodeId[]): string => String(ids.reduce<number>((most, id) => (typeof id === "number" && id >= most ? id + 1 : most), 0));

/** Adds the new node to the graph, with a write key. */
function Commit({ node, suggested, onCommitted }: { node: NewNode; suggested: string; onCommitted?: (id: NodeId) => void }) {
  const service = useService(), confirm = useConfirm();
  const [open, setOpen] = useState(false), [id, setId] = useState(suggested), [label, setLabel] = useState("");
  const [, refresh] = useState(0);
  const [result, setResult] = useState<{ node: NewNode; id: NodeId; sequence: number } | null>(null), [error, setError] = useState<unknown>(null);
  useEffect(() => { setId(suggested); }, [suggested]);
  const commit = async () => {
    const own = parseId(service, id);
    const body = <p>Node <strong>{id}</strong> is added with {node.neighbors.length} links. All clients of this service get answers from the changed graph.</p>;
    if (!(await confirm({ title: "Add this node to the graph?", body, action: "Add the node" }))) return;
    setError(null);
    try {
      const operation = { op: "add_node", id: own, features: node.features, neighbors: node.neighbors, ...(label ? { label } : {}) };
      const changed = await post<{ sequence: number }>("/graph", { operations: [operation] }, { headers: { "idempotency-key": crypto.randomUUID?.() ?? `${Date.now()}` } });
      setResult({ node, id: own, sequence: changed.sequence });
      setLabel("");
      onCommitted?.(own);
    } catch (failure) {
      setError(failure);
    }
  };
  if (result?.node === node) return <Notice kind="good">Node <a href={nodeLink(result.id)}>{String(result.id)}</a> is in the graph, at sequence {result.sequence}.</Notice>;
  if (!open) return <button type="button" onClick={() => setOpen(true)}>Add it to the graph …</button>;
  return (
    <div class="commit">
      {!hasKey("write") ? (
        <SecretField label="Write key" action="Use key" hint="A key of SGF_WRITE_KEYS. It stays in the memory of this page."
          onUse={(key) => { setKey("write", key); refresh((n) => n + 1); }} />
      ) : (
        <div class="row wrap">
          <label>Id <input class="short" value={id} onInput={(event) => setId(event.currentTarget.value)} /></label>
          {service.classes.length > 0 && (
            <label>Label <select value={label} onChange={(event) => setLabel(event.currentTarget.value)}>
              <option value="">unknown</option>
              {service.classes.map((name) => <option key={name} value={name}>{name}</option>)}
            </select></label>
          )}
          <button type="button" class="primary" disabled={!id.trim()} onClick={commit}>Add to the graph</button>
        </div>
      )}
      {error !== null && <Notice kind="error">{messageOf(error)} {hasKey("write") && <button type="button" class="plain" onClick={() => { setKey("write", ""); setError(null); }}>Use another key</button>}</Notice>}
    </div>
  );
}

function Known() {
  const service = useService();
  const before = lastAsked();
  const [text, setText] = useState(before?.known ? String(before.node) : "");
  const [answer, setAnswer] = useState<Answer | null>(null), [error, setError] = useState<unknown>(null);
  const ask = async (event?: Event) => {
    event?.preventDefault();
    const node = parseId(service, text);
    try {
      const reply = await predict({ nodes: [node], embeddings: true });
      setAnswer(reply);
      setError(null);
      remember({ node, known: true, prediction: reply.predictions[0]! });
    } catch (failure) {
      setAnswer(null);
      setError(failure);
    }
  };
  return (
    <div class="columns ask">
      <Card title="Node">
        <form onSubmit={ask}>
          <label for="node-id">Id of a node</label>
          <div class="row">
            <NodeField id="node-id" value={text} onChange={setText} />
            <button type="submit" class="primary" disabled={!text.trim()}>Ask</button>
          </div>
        </form>
        <p class="quiet small">{service.numericIds ? `The graph of this version has ${count(service.nodes)} nodes.` : "Ids are those of your data."}</p>
      </Card>
      <AnswerCard answer={answer} error={error} known />
    </div>
  );
}

function New() {
  const service = useService();
  const [form, setForm] = useState(() => emptyForm(service)), [neighbors, setNeighbors] = useState("");
  const [answer, setAnswer] = useState<Answer | null>(null), [error, setError] = useState<unknown>(null);
  const [node, setNode] = useState<NewNode | null>(null);
  const ask = async (event: Event) => {
    event.preventDefault();
    try {
      const features: Features = readForm(service, form);
      const question = { id: "new", features, neighbors: parseIds(service, neighbors) };
      const reply = await predict({ new_nodes: [question], embeddings: true });
      setAnswer(reply);
      setNode(question);
      setError(null);
      remember({ node: "new", known: false, prediction: reply.predictions[0]!, features, neighbors: question.neighbors });
    } catch (failure) {
      setAnswer(null);
      setError(failure);
    }
  };
  return (
    <div class="sections">
      <div class="columns ask">
        <Card title="New node">
          <form onSubmit={ask} class="stack">
            <FeatureForm form={form} onChange={setForm} />
            <label for="neighbors">Neighbours: ids of nodes, separated by commas</label>
            <input id="neighbors" value={neighbors} onInput={(event) => setNeighbors(event.currentTarget.value)} autocomplete="off" spellcheck={false} />
            <button type="submit" class="primary">Ask</button>
          </form>
        </Card>
        <AnswerCard answer={answer} error={error}>
          {node && <Commit node={node} suggested="" />}
        </AnswerCard>
      </div>
      {answer && node && <Why node={node} prediction={answer.predictions[0]!} />}
    </div>
  );
}

function AnswerCard({ answer, error, known = false, children }: { answer: Answer | null; error: unknown; known?: boolean; children?: preact.ComponentChildren }) {
  const prediction = answer?.predictions[0];
  return (
    <Card title="Answer" aside={prediction && (known ? <a href={nodeLink(prediction.node)}>Open the node</a> : <a href="#/map">Show it on the map</a>)}>
      <Failure error={error} />
      <div aria-live="polite">
        {prediction && answer ? <><Headline prediction={prediction} /><Bars prediction={prediction} /><Source answer={answer} prediction={prediction} />{children && <div class="spaced">{children}</div>}</>
          : !error && <p class="empty">The answer appears here.</p>}
      </div>
    </Card>
  );
}

