/** Why a node has its answer: the parts of its logit, the features, a counterfactual; and the nodes that are similar. */

import { mainOutput } from "../answer";
import type { NodeId, Origin, Prediction } from "../api";
import { type Digits, SIDE } from "../digits";
import { number, signed } from "../format";
import { Picture } from "../picture";
import { nodeLink, useService } from "../session";
import { Card } from "../ui";

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
const MOST_FEATURES = 8;

function Diverging({ value, most }: { value: number; most: number }) {
  const share = (50 * Math.abs(value)) / most;
  return <span class="diverging" aria-hidden="true"><i class={value < 0 ? "minus" : ""} style={value < 0 ? { right: "50%", width: `${share}%` } : { left: "50%", width: `${share}%` }} /></span>;
}

export function Branches({ explanation, prediction }: { explanation: Explanation; prediction: Prediction }) {
  const { classes } = useService();
  const label = mainOutput(prediction);
  const parts = Object.entries(explanation.branches).map(([name, values]) => [NAMES[name] ?? name.replaceAll("_", " "), values[label] ?? 0] as const);
  const most = Math.max(1e-9, ...parts.map(([, value]) => Math.abs(value)));
  return (
    <Card title={`Where the score of ${classes[label] ?? "this answer"} comes from`}>
      <div class="branches" role="list" data-testid="branches">
        {parts.map(([name, value]) => <div key={name} class="contents" role="listitem"><span>{name}</span><Diverging value={value} most={most} /><span class="end">{signed(value)}</span></div>)}
      </div>
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
  const most = Math.max(1e-9, ...parts.map(([, value]) => Math.abs(value)));
  return (
    <Card title="Strongest features">
      <div class="branches" role="list">
        {parts.map(([name, value]) => <div key={name} class="contents" role="listitem"><span>{name}</span><Diverging value={value} most={most} /><span class="end">{signed(value)}</span></div>)}
      </div>
      <p class="quiet small spaced">How much the logit would fall if the feature were 0, or missing.</p>
    </Card>
  );
}

export function Counterfactual({ counterfactual, onTry }: { counterfactual: NonNullable<Explanation["counterfactual"]>; onTry: (without: NodeId[]) => void }) {
  const { without } = counterfactual, other = counterfactual.class ?? counterfactual.classes?.join(", ") ?? "another";
  return (
    <Card title="What would change the answer">
      <p>Without {without.length === 1 ? "the link" : `these ${without.length} links`} to {without.map(String).join(", ")} the answer is <strong>{other}</strong>.</p>
      <div class="actions spaced"><button type="button" class="tiny" onClick={() => onTry(without)}>Try it</button></div>
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
