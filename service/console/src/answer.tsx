/** An answer: the class with its probabilities, the labels, or the value. */

import type { Answer, Prediction } from "./api";
import { number, percent, shortHash } from "./format";
import { classColor } from "./palette";
import { useService } from "./session";

const MOST_BARS = 12;

/** The output that reasons are given for: the class, the likeliest label, or the first value. */
export function mainOutput({ label, probabilities }: Prediction): number {
  return label ?? (probabilities ? probabilities.indexOf(Math.max(...probabilities)) : 0);
}

export function Headline({ prediction }: { prediction: Prediction }) {
  const { classes } = useService();
  if (prediction.value !== undefined) {
    const values = Array.isArray(prediction.value) ? prediction.value : [prediction.value];
    return <p class="headline" data-testid="answer">{values.map(number).join(", ")}</p>;
  }
  if (prediction.labels !== undefined) {
    const names = prediction.labels.map((label) => classes[label] ?? String(label));
    return <p class="headline" data-testid="answer">{names.length ? names.join(", ") : "no label"}</p>;
  }
  const label = prediction.label!;
  const probability = prediction.probabilities?.[label];
  return (
    <p class="headline">
      <span class="swatch" style={{ background: classColor(label) }} aria-hidden="true" />
      <strong data-testid="answer">{prediction.class ?? classes[label] ?? label}</strong>
      {probability !== undefined && <span class="quiet">{percent(probability)}</span>}
    </p>
  );
}

/** Bars by class. `before`: the probabilities that a change is compared with, drawn as a mark. */
export function Bars({ prediction, before }: { prediction: Prediction; before?: Prediction | null }) {
  const { classes } = useService();
  const probabilities = prediction.probabilities;
  if (!probabilities) return null;
  let labels = probabilities.map((_, label) => label);
  if (labels.length > MOST_BARS) {
    labels = labels.sort((a, b) => probabilities[b]! - probabilities[a]!).slice(0, MOST_BARS);
  }
  const best = prediction.labels ?? [prediction.label];
  return (
    <>
      <ol class="bars" aria-label="Probabilities">
        {labels.map((label) => (
          <li key={label} class={best.includes(label) ? "best" : ""}>
            <span class="bar-name" title={classes[label]}>{classes[label] ?? label}</span>
            <span class="bar-track" aria-hidden="true">
              <span class="bar-fill" style={{ width: `${100 * probabilities[label]!}%`, background: classColor(label) }} />
              {before?.probabilities && <span class="bar-mark" style={{ left: `${100 * before.probabilities[label]!}%` }} />}
            </span>
            <span class="bar-value">{percent(probabilities[label]!)}</span>
          </li>
        ))}
      </ol>
      {probabilities.length > MOST_BARS && <p class="quiet small">The {MOST_BARS} most probable of {probabilities.length} classes.</p>}
    </>
  );
}

export function Source({ answer, prediction }: { answer: Answer; prediction: Prediction }) {
  return (
    <p class="quiet small source">
      <span class={`tag ${prediction.exactness ?? ""}`}>{prediction.exactness}</span>
      <span title="From the request to the answer, in this browser">{answer.milliseconds.toFixed(0)} ms</span>
      <span>version {answer.version}</span>
      <span title={answer.snapshot}>snapshot {shortHash(answer.snapshot)}</span>
      {answer.sequence !== undefined && <span title="The last change of the graph that the answer contains">sequence {answer.sequence}</span>}
    </p>
  );
}
