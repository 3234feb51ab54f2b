/** A form for features: by name where the model has names, else as a list of numbers. */

import type { FeatureName, Features } from "./api";
import { type Service, useService } from "./session";

export type Form = { list: string; named: Record<string, string> };

export function emptyForm(_service: Service): Form {
  return { list: "", named: {} };
}

/** Raises an Error with a sentence for the user. An empty field is a missing value, or 0 in a list. */
export function readForm(service: Service, form: Form): Features {
  if (service.features) {
    const given = service.features.filter(({ name }) => (form.named[name] ?? "") !== "");
    return Object.fromEntries(given.map((feature) => [feature.name, readValue(feature, form.named[feature.name]!)]));
  }
  const parts = form.list.split(/[\s,;]+/).filter(Boolean);
  if (parts.some((part) => part.includes(":"))) {
    const pairs = parts.map((part) => part.split(":").map(Number));
    if (pairs.some((pair) => pair.length !== 2 || pair.some(Number.isNaN))) throw new Error("Expected pairs of a position and a value, such as 12:0.5 20:1.");
    return { indices: pairs.map((pair) => pair[0]!), values: pairs.map((pair) => pair[1]!) };
  }
  const values = parts.map(Number);
  const wrong = values.findIndex(Number.isNaN);
  if (wrong >= 0) throw new Error(`Value ${wrong + 1} of the features is “${parts[wrong]}”, expected a number.`);
  if (values.length !== service.width) throw new Error(`The list has ${values.length} values, expected ${service.width}. To leave out zeros, write position:value.`);
  return values;
}

export function readValue(feature: FeatureName, text: string): number | boolean | string {
  if (feature.kind === "boolean") return text === "true";
  if (feature.kind !== "number") return text;
  const value = Number(text);
  if (Number.isNaN(value)) throw new Error(`${feature.name} is “${text}”, expected a number.`);
  return value;
}

export function FeatureForm({ form, onChange }: { form: Form; onChange: (form: Form) => void }) {
  const { features, width } = useService();
  if (!features) {
    return (
      <>
        <label for="features">Features: {width} numbers, or position:value for those that are not zero</label>
        <textarea id="features" rows={6} spellcheck={false} value={form.list} onInput={(event) => onChange({ ...form, list: event.currentTarget.value })} />
      </>
    );
  }
  return (
    <div class="feature-grid">
      {features.map((feature) => (
        <ValueField key={feature.name} feature={feature} value={form.named[feature.name] ?? ""}
          onChange={(value) => onChange({ ...form, named: { ...form.named, [feature.name]: value } })} />
      ))}
    </div>
  );
}

export function ValueField({ feature, value, onChange }: { feature: FeatureName; value: string; onChange: (value: string) => void }) {
  const id = `feature-${feature.name}`;
  const choices = feature.kind === "boolean" ? ["true", "false"] : feature.kind === "category" ? feature.categories ?? [] : null;
  return (
    <div>
      <label for={id}>{feature.name}</label>
      {choices ? (
        <select id={id} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
          <option value="">missing</option>
          {choices.map((choice) => <option key={choice} value={choice}>{choice}</option>)}
        </select>
      ) : (
        <input id={id} placeholder={feature.kind === "date" ? "2024-01-31" : ""} value={value}
          onInput={(event) => onChange(event.currentTarget.value)} autocomplete="off" />
      )}
    </div>
  );
}
