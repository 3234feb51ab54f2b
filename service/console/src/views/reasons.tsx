/** Why a node has its answer: the parts of its logit, the neighbours, the features, a counterfactual; and the nodes that are similar. */

import { useState } from "preact/hooks";
import { mainOutput } from "../answer";
import { type NewNode, type NodeId, type Origin, type Prediction, ask } from "../api";
import { type Digits, SIDE } from "../digits";
import { number, signed } from "../format";
import { Picture } from "../picture";
import { nodeLink, useService } from "../session";
import { Card, Failure, useLoad } from "../ui";

export interface Explanation extends Origin {
  node: NodeId; label?: number; logits: number[];
  branches: Record<string, number[]>;
  neighbors: { node: NodeId; effect: number[]; label_without?: number | null }[];
  features: { feature: string | number; effect: number[] }[] | null;
  fidelity?: { plus: number; minus: number } | null;
  counterfactual?: { without: NodeId[]; class?: string | null; classes?: string[] | null } | null;
}
export interface SimilarNodes extends Origin { results: { node: NodeId; neighbors: { node: NodeId; similarity: number }[] }[]; exact: boolean; recall: number | null }

const NAMES: Record<string, string> = { attention_self: "Attention: its own value", attention_others: "Attention: all other nodes", graph: "Graph: its neighbourhood", bias: "Bias" };
const MOST_FEATURES = 8, MOST_NEIGHBORS = 12;

function Diverging({ value, most }: { value: number; most: number }) {
  const share = (50 * Math.abs(value)) / most;
  return <span class="diverging" aria-hidden="true"><i class={value < 0 ? "minus" : ""} style={value < 0 ? { right: "50%", width: `${share}%` } : { left: "50%", width: `${share}%` }} /></span>;
}

function Parts({ parts, id }: { parts: (readonly [preact.ComponentChildren, number])[]; id: string }) {
  const most = Math.max(1e-9, ...parts.map(([, value]) => Math.abs(value)));
  return (
    <div class="branches" role="list" data-testid={id}>
      {parts.map(([name, value], index) => <div key={index} class="contents" role="listitem"><span>{name}</span><Diverging value={value} most={most} /><span class="end">{signed(value)}</span></div>)}
    </div>
  );
}

/** The reasons for the answer of a new node, on demand: they cost an answer for each link and feature. */
export function Why({ node, prediction }: { node: NewNode; prediction: Prediction }) {
  const [explained, setExplained] = useState<NewNode | null>(null);
  const wanted = explained === node;
  const { value, error } = useLoad(async () => (wanted ? ask<Explanation>("/explain", { new_node: node, top: MOST_NEIGHBORS }) : null), [explained, node]);
  if (!wanted || !value) {
    return (
      <div class="actions">
        <Failure error={wanted ? error : null} />
        <button type="button" disabled={wanted && !error} onClick={() => setExplained(node)}>{wanted && !error ? "Explaining …" : "Why this answer?"}</button>
      </div>
    );
  }
  return (
    <div class="columns">
      <Branches explanation={value} prediction={prediction} />
      {value.features?.length ? <FeatureEffects explanation={value} prediction={prediction} /> : null}
      {value.neighbors.length > 0 && <NeighborEffects explanation={value} prediction={prediction} />}
      {value.counterfactual && <Counterfactual counterfactual={value.counterfactual} />}
    </div>
  );
}

export function Branches({ explanation, prediction }: { explanation: Explanation; prediction: Prediction }) {
  const { classes } = useService();
  const label = mainOutput(prediction);
  const parts = Object.entries(explanation.branches).map(([name, values]) => [NAMES[name] ?? name.replaceAll("_", " "), values[label] ?? 0] as const);
  return (
    <Card title={`Where the score of ${classes[label] ?? "this answer"} comes from`}>
      <Parts parts={parts} id="branches" />
      <p class="quiet small spaced">The parts add up to the logit, {number(explanation.logits[label] ?? NaN)}.{explanation.fidelity && ` Without the links to the listed neighbours the decision ${explanation.fidelity.plus ? "changes" : "stays"}; with only these links it ${explanation.fidelity.minus ? "changes" : "stays"}.`}</p>
    </Card>
  );
}

export function FeatureEffects({ explanation, prediction }: { explanation: Explanation; prediction: Prediction }) {
  const { drawable } = useService();
  const label = mainOutput(prediction);
  const nameOf = (feature: string | number) => (drawable ? `${feature}: row ${Math.floor(Number(feature) / SIDE) + 1}, column ${(Number(feature) % SIDE) + 1}` : String(feature));
  const parts = (explanation.features ?? []).map(({ feature, effect }) => [nameOf(feature), effect[label] ?? 0] as const)
    .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, MOST_FEATURES);
  return (
    <Card title="Strongest features">
      <Parts parts={parts} id="features" />
      <p class="quiet small spaced">How much the logit would fall if the feature were 0, or missing.</p>
    </Card>
  );
}

function NeighborEffects({ explanation, prediction }: { explanation: Explanation; prediction: Prediction }) {
  const label = mainOutput(prediction);
  const parts = explanation.neighbors.map(({ node, effect }) => [<a href={nodeLink(node)}>Node {String(node)}</a>, effect[label] ?? 0] as const);
  return (
    <Card title="Effects of the links">
      <Parts parts={parts} id="links" />
      <p class="quiet small spaced">How much the logit would fall without the link to this neighbour.</p>
    </Card>
  );
}

export function Counterfactual({ counterfactual, onTry }: { counterfactual: NonNullable<Explanation["counterfactual"]>; onTry?: (without: NodeId[]) => void }) {
  const { without } = counterfactual, other = counterfactual.class ?? counterfactual.classes?.join(", ") ?? "another";
  return (
    <Card title="What would change the answer">
      <p>Without {without.length === 1 ? "the link" : `these ${without.length} links`} to {without.map(String).join(", ")} the answer is <strong>{other}</strong>.</p>
      {onTry && <div class="actions spaced"><button type="button" class="tiny" onClick={() => onTry(without)}>Try it</button></div>}
    </Card>
  );
}

export function Similar({ similar, digits }: { similar: SimilarNodes; digits: Digits | null }) {
  const { drawable } = useService();
  const neighbors = similar.results[0]?.neighbors ?? [];
  return (
    <Card title="Similar nodes" aside={<span class="small quiet">{similar.exact ? "exact" : similar.recall === null ? "approximate" : `recall ${number(similar.recall)}`}</span>}>
      <p class="quiet small">By the cosine of their embeddings.</p>
      <ul class="thumbs" data-testid="similar">
        {neighbors.map(({ node, similarity }) => {
          const pixels = digits?.pixelsOf(node) ?? (drawable ? [] : null); // room for a picture that comes later
          return <li key={String(node)}><a href={nodeLink(node)} title={`Cosine ${similarity.toFixed(4)}`}>{pixels ? <Picture pixels={pixels} size={46} /> : null}<span>{String(node)}</span><span class="small">{similarity.toFixed(3)}</span></a></li>;
        })}
      </ul>
    </Card>
  );
}
