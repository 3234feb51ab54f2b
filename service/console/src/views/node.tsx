/** Node: what it is, why it has its answer, what is near it, and what would change the answer. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { Bars, Headline, Source, mainOutput } from "../answer";
import { type Answer, type NodeAnswer, type NodeId, type Prediction, ask, get, hasKey, messageOf, nodePath, optional, post, predict, setKey } from "../api";
import { Digits, denseFeatures } from "../digits";
import { Ego, type EgoNeighbor } from "../ego";
import { number, percent, signed, time } from "../format";
import { NodeField } from "../node_field";
import { Picture } from "../picture";
import { lastAsked, nodeLink, parseId, remember, useService } from "../session";
import { Card, Failure, Notice, SecretField, Spinner, useConfirm, useLoad } from "../ui";
import { NOTHING, type WhatIf, describe, isEmpty, operations } from "../what_if";
import { Branches, Counterfactual, type Explanation, FeatureEffects, Similar, type SimilarNodes } from "./reasons";
import { Changes } from "./changes";

const SHOWN_NEIGHBORS = 30;

interface Loaded { node: NodeAnswer; /** The neighbours that are shown: those with the largest effects, if there are many. */ shown: NodeId[]; answer: Answer; explanation: Explanation | null; similar: SimilarNodes | null; labels: Map<NodeId, number | null>; /** Why an explanation or similar nodes are missing. */ problems: string[] }

export function NodeView({ text }: { text: string }) {
  const service = useService();
  const before = lastAsked();
  const initial = text || (before?.known ? String(before.node) : "");
  const [typed, setTyped] = useState(initial);
  const open = (event: Event) => { event.preventDefault(); location.hash = nodeLink(parseId(service, typed)); };
  return (
    <>
      <form class="view-head" onSubmit={open}>
        <p class="lead">{initial ? "Remove a link or change a feature to see how the answer changes. Nothing is kept unless you commit it." : "Open a node to see its neighbours, why it has its answer, and what would change it."}</p>
        <div class="row"><label>Node id<NodeField value={typed} onChange={setTyped} short /></label><button type="submit" class="primary" disabled={!typed.trim()}>Open</button></div>
      </form>
      {initial ? <OpenNode id={parseId(service, initial)} /> : <Card><p class="empty">Type an id, or click a point of the <a href="#/map">map</a>.</p></Card>}
    </>
  );
}

function OpenNode({ id }: { id: NodeId }) {
  const service = useService();
  const [round, setRound] = useState(0), [sequence, setSequence] = useState<number | null>(null);
  const load = async (): Promise<Loaded> => {
    const problems: string[] = [];
    const [node, answer] = await Promise.all([get<NodeAnswer>(`${nodePath("/graph/nodes", id)}?limit=${SHOWN_NEIGHBORS}`), predict({ nodes: [id], embeddings: true })]);
    const [explanation, similar] = await Promise.all([
      optional(ask<Explanation>("/explain", { node: id, top: SHOWN_NEIGHBORS })).catch((failure) => { problems.push(`No explanation: ${messageOf(failure)}.`); return null; }),
      optional(ask<SimilarNodes>("/similar", { nodes: [id], k: 10 })).catch((failure) => { problems.push(`No similar nodes: ${messageOf(failure)}.`); return null; }),
    ]);
    const strongest = explanation?.neighbors.map((entry) => entry.node) ?? [];
    const shown = [...new Set([...strongest, ...node.neighbors])].slice(0, SHOWN_NEIGHBORS);
    const labels = await labelsOf(shown);
    remember({ node: id, known: true, prediction: answer.predictions[0]! });
    return { node, shown, answer, explanation, similar, labels, problems };
  };
  const { value, error, loading } = useLoad(load, [id, service.snapshot, round]);
  const { value: digits } = useLoad(async () => (service.drawable ? Digits.load(service.snapshot) : null), [service.snapshot, round]); // pictures, which come later
  if (error) return <Failure error={error} />;
  if (!value) return loading ? <Spinner text="Loading the node" /> : null;
  const committed = (at: number) => { Digits.forget(); setSequence(at); setRound(round + 1); };
  return (
    <div class="sections">
      {sequence !== null && <Notice kind="good">The changes are in the graph, at sequence {sequence}.</Notice>}
      <Detail key={round} loaded={value} digits={digits} onCommitted={committed} />
    </div>
  );
}

async function labelsOf(neighbors: NodeId[]): Promise<Map<NodeId, number | null>> {
  if (!neighbors.length) return new Map();
  const { predictions } = await predict({ nodes: neighbors, probabilities: false });
  return new Map(predictions.map((prediction) => [prediction.node, prediction.label ?? null]));
}

function Detail({ loaded, digits, onCommitted }: { loaded: Loaded; digits: Digits | null; onCommitted: (sequence: number) => void }) {
  const { node, answer, explanation, similar } = loaded;
  const service = useService();
  const [whatIf, setWhatIf] = useState<WhatIf>(NOTHING), [changed, setChanged] = useState<Answer | null>(null), [error, setError] = useState<unknown>(null);
  const steps = useMemo(() => operations(node, whatIf, service.width), [node, whatIf]);
  useEffect(() => {
    const control = new AbortController();
    setError(null);
    if (!steps.length) { setChanged(null); return; }
    predict({ nodes: [node.node], assuming: steps }, control.signal).then(setChanged, (failure) => { if (!control.signal.aborted) { setChanged(null); setError(failure); } });
    return () => control.abort();
  }, [steps]);

  const toggle = (target: NodeId) => setWhatIf((before) => ({
    ...before,
    added: before.added.filter((other) => other !== target),
    removed: before.added.includes(target) ? before.removed : before.removed.includes(target) ? before.removed.filter((other) => other !== target) : [...before.removed, target],
  }));
  const prediction = answer.predictions[0]!, current = changed?.predictions[0] ?? prediction;
  const neighbors = neighborsOf(loaded, digits, whatIf, prediction);
  const pixels = digits?.pixelsOf(node.node) ?? null;
  return (
    <div class="node-grid">
      <div class="node-title">
        <Card>
          <div class="title-row">
            {service.drawable && <Picture pixels={digits ? changedPixels(node, whatIf, digits.black) : []} size={64} label={`The pixels of node ${node.node}`} />}
            <div><h2>Node {String(node.node)}</h2><p class="quiet">{summary(node)}</p></div>
          </div>
        </Card>
      </div>
      <div class="node-answer">
        <Card title={changed ? "Answer, if changed" : "Answer"} aside={<a href="#/map">Show it on the map</a>}>
          <Failure error={error} />
          <div aria-live="polite">
            <Headline prediction={current} />
            {changed && <p class="small quiet before">before: {classText(prediction)}{moved(prediction, current)}</p>}
            <Bars prediction={current} before={changed ? prediction : null} />
          </div>
          <Source answer={changed ?? answer} prediction={current} />
        </Card>
        <Changes node={node} whatIf={whatIf} onChange={setWhatIf}>
          {!isEmpty(whatIf) && <CommitChanges steps={steps} onCommitted={onCommitted} />}
        </Changes>
        {explanation && <Branches explanation={explanation} prediction={prediction} />}
        {explanation?.counterfactual && <Counterfactual counterfactual={explanation.counterfactual} onTry={(without) => setWhatIf({ ...whatIf, removed: [...new Set([...whatIf.removed, ...without])] })} />}
        {explanation?.features?.length ? <FeatureEffects explanation={explanation} prediction={prediction} /> : null}
        {loaded.problems.map((problem) => <Notice key={problem}>{problem}</Notice>)}
        {!explanation && !similar && !loaded.problems.length && <Notice>This service does not explain answers or search for similar nodes.</Notice>}
      </div>
      <div class="node-near">
        <Card title="Neighbours" aside={<span class="small quiet">{node.degree > loaded.shown.length ? `${loaded.shown.length} of ${node.degree}${explanation ? ", those with the largest effects" : ""}` : node.degree}</span>}>
          <Ego id={node.node} label={current.label ?? null} pixels={pixels} neighbors={neighbors} onToggle={toggle} onOpen={(other) => { location.hash = nodeLink(other); }} />
          {neighbors.length > 0 && <EgoKey target={explanation && (service.classes[mainOutput(prediction)] ?? "this answer")} hasClass={prediction.label !== undefined} />}
          <NeighborTable neighbors={neighbors} explanation={explanation} classes={service.classes} onToggle={toggle} />
        </Card>
        {similar && <Similar similar={similar} digits={digits} />}
      </div>
    </div>
  );
}

function neighborsOf({ shown, explanation, labels }: Loaded, digits: Digits | null, whatIf: WhatIf, prediction: Prediction): EgoNeighbor[] {
  const effects = new Map(explanation?.neighbors.map(({ node: other, effect }) => [other, effect[mainOutput(prediction)] ?? null]));
  const entry = (other: NodeId, added: boolean): EgoNeighbor => ({
    node: other, label: labels.get(other) ?? null, effect: effects.get(other) ?? null, removed: whatIf.removed.includes(other), added, pixels: digits?.pixelsOf(other) ?? null,
  });
  return [...shown.map((other) => entry(other, false)), ...whatIf.added.map((other) => entry(other, true))];
}

/** `target`: the class whose score the effects are about; null without an explanation. */
function EgoKey({ target, hasClass }: { target: string | null; hasClass: boolean }) {
  return (
    <p class="quiet small ego-key">
      {target !== null && <>The link <span class="key-a">raises</span> or <span class="key-b">lowers</span> the score of {target}: the wider the line, the more. </>}
      {hasClass && "A ring has the colour of the predicted class. "}Click a line to remove the link.
    </p>
  );
}

function NeighborTable({ neighbors, explanation, classes, onToggle }: { neighbors: EgoNeighbor[]; explanation: Explanation | null; classes: string[]; onToggle: (node: NodeId) => void }) {
  if (!neighbors.length) return <p class="empty">This node has no neighbours.</p>;
  const without = new Map(explanation?.neighbors.map((entry) => [entry.node, entry.label_without]));
  const order = [...neighbors].sort((a, b) => Math.abs(b.effect ?? 0) - Math.abs(a.effect ?? 0));
  return (
    <div class="scroll tall" tabIndex={0} role="region" aria-label="Neighbours">
      <table data-testid="neighbors">
        <thead><tr><th scope="col">Node</th><th scope="col">Prediction</th>{explanation && <><th scope="col" class="end">Effect</th><th scope="col">Without it</th></>}<th scope="col"><span class="hidden">Actions</span></th></tr></thead>
        <tbody>{order.map((neighbor) => (
          <tr key={String(neighbor.node)} class={neighbor.removed ? "gone" : ""}>
            <td><a href={nodeLink(neighbor.node)}>{String(neighbor.node)}</a>{neighbor.added && <> <span class="tag running">added</span></>}</td>
            <td>{neighbor.label === null ? "–" : classes[neighbor.label] ?? neighbor.label}</td>
            {explanation && <><td class="end">{neighbor.effect === null ? "–" : signed(neighbor.effect)}</td><td>{labelText(without.get(neighbor.node), classes)}</td></>}
            <td class="end"><button type="button" class="tiny" aria-pressed={neighbor.removed} onClick={() => onToggle(neighbor.node)}>{neighbor.removed ? "Keep" : "Remove"}<span class="hidden"> the link to {String(neighbor.node)}</span></button></td>
          </tr>
        ))}</tbody>
      </table>
    </div>
  );
}

function CommitChanges({ steps, onCommitted }: { steps: ReturnType<typeof operations>; onCommitted: (sequence: number) => void }) {
  const confirm = useConfirm();
  const [asksForKey, setAsksForKey] = useState(false), [error, setError] = useState<unknown>(null);
  const commit = async () => {
    if (!hasKey("write")) { setAsksForKey(true); return; }
    const body = <><p>All clients of this service get answers from the changed graph.</p><ul>{steps.map((step, index) => <li key={index}>{describe(step)}</li>)}</ul></>;
    if (!(await confirm({ title: "Commit these changes to the graph?", body, action: "Commit" }))) return;
    setError(null);
    try {
      onCommitted((await post<{ sequence: number }>("/graph", { operations: steps })).sequence);
    } catch (failure) {
      setError(failure);
    }
  };
  return (
    <div class="stack">
      {asksForKey && <SecretField label="Write key" action="Use key" hint="A key of SGF_WRITE_KEYS. It stays in the memory of this page." onUse={(key) => { setKey("write", key); setAsksForKey(false); }} />}
      {!asksForKey && <button type="button" onClick={commit}>Commit to the graph …</button>}
      {error !== null && <Notice kind="error">{messageOf(error)} <button type="button" class="plain" onClick={() => { setKey("write", ""); setError(null); setAsksForKey(true); }}>Use another key</button></Notice>}
    </div>
  );
}

function changedPixels(node: NodeAnswer, whatIf: WhatIf, black: number): number[] {
  const pixels = [...denseFeatures(node.features, 64)];
  for (const [position, value] of Object.entries(whatIf.features)) pixels[Number(position)] = Number(value);
  return pixels.map((value) => value / black);
}

function summary(node: NodeAnswer): string {
  const label = node.class ?? (node.classes ? node.classes.join(", ") : node.value !== undefined && node.value !== null ? String(node.value) : null);
  const parts = [label === null ? "no label" : `labelled ${label}`, `${node.degree} ${node.degree === 1 ? "neighbour" : "neighbours"}`];
  if (node.split) parts.push(`in the ${node.split} set`);
  if (node.added) parts.push(`added ${time(node.added)}`);
  return parts.join(" · ");
}

const labelText = (label: number | null | undefined, classes: string[]): string => (label === null || label === undefined ? "–" : classes[label] ?? String(label));

function classText(prediction: Prediction): string {
  return prediction.class ?? (prediction.classes ?? prediction.labels)?.join(", ") ?? [prediction.value].flat().map((value) => number(value ?? NaN)).join(", ");
}

function moved(before: Prediction, after: Prediction): string {
  const label = before.label;
  if (label === undefined || !before.probabilities || !after.probabilities) return "";
  return `, its probability was ${percent(before.probabilities[label]!)} and is ${percent(after.probabilities[label]!)}`;
}
