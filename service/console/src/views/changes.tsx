/** What-if: the changes that are tried out, and the controls that add one. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { NodeAnswer } from "../api";
import { readValue } from "../feature_form";
import { NodeField } from "../node_field";
import { parseId, useService } from "../session";
import { Card, Failure } from "../ui";
import { NOTHING, type WhatIf, featureOf, isEmpty } from "../what_if";

export function Changes({ node, whatIf, onChange, children }: { node: NodeAnswer; whatIf: WhatIf; onChange: (whatIf: WhatIf) => void; children?: ComponentChildren }) {
  const service = useService();
  const [link, setLink] = useState(""), [name, setName] = useState(service.features?.[0]?.name ?? ""), [value, setValue] = useState(""), [error, setError] = useState<unknown>(null);
  const addLink = (event: Event) => {
    event.preventDefault();
    onChange({ ...whatIf, added: [...new Set([...whatIf.added, parseId(service, link)])] });
    setLink("");
  };
  const change = (event: Event) => {
    event.preventDefault();
    try {
      onChange({ ...whatIf, features: { ...whatIf.features, [key()]: feature ? readValue(feature, value) : readNumber(value) } });
      setError(null);
      setValue("");
    } catch (failure) {
      setError(failure);
    }
  };
  const feature = service.features?.find((other) => other.name === name);
  const key = (): string => {
    if (feature) return name;
    const position = Number(name);
    if (name.trim() === "" || !Number.isInteger(position) || position < 0 || position >= service.width) throw new Error(`Feature is “${name}”, expected a position from 0 to ${service.width - 1}.`);
    return String(position);
  };
  const current = name.trim() === "" ? undefined : featureOf(node, name, service.width);
  const choices = feature?.kind === "boolean" ? ["true", "false"] : feature?.kind === "category" ? feature.categories ?? [] : null;
  return (
    <Card title="What if" aside={!isEmpty(whatIf) && <button type="button" class="plain" onClick={() => onChange(NOTHING)}>Discard</button>}>
      <div class="stack">
        {isEmpty(whatIf) ? <p class="quiet small">Remove a link in the list of neighbours, add one, or change a feature. The answer above follows.</p> : <List whatIf={whatIf} onChange={onChange} />}
        <form class="row" onSubmit={addLink}>
          <label class="grow">Add a link to node<NodeField value={link} onChange={setLink} /></label>
          <button type="submit" disabled={!link.trim()}>Add</button>
        </form>
        {node.features !== undefined && node.features !== null && (
          <form class="row" onSubmit={change}>
            <label class="grow">Feature
              {service.features ? <select value={name} onChange={(event) => { setName(event.currentTarget.value); setValue(""); }}>{service.features.map((other) => <option key={other.name} value={other.name}>{other.name}</option>)}</select>
                : <input value={name} onInput={(event) => setName(event.currentTarget.value)} autocomplete="off" placeholder={`0 to ${service.width - 1}`} />}
            </label>
            <label class="grow">New value
              {choices ? <select value={value} onChange={(event) => setValue(event.currentTarget.value)}><option value="">choose</option>{choices.map((choice) => <option key={choice} value={choice}>{choice}</option>)}</select>
                : <input value={value} onInput={(event) => setValue(event.currentTarget.value)} autocomplete="off" placeholder={current === undefined ? "" : `now ${current ?? "missing"}`} />}
            </label>
            <button type="submit" disabled={!value.trim() || !name}>Change</button>
          </form>
        )}
        <Failure error={error} />
        {children}
      </div>
    </Card>
  );
}

function List({ whatIf, onChange }: { whatIf: WhatIf; onChange: (whatIf: WhatIf) => void }) {
  const entries: [string, WhatIf][] = [
    ...whatIf.removed.map((id): [string, WhatIf] => [`no link to ${id}`, { ...whatIf, removed: whatIf.removed.filter((other) => other !== id) }]),
    ...whatIf.added.map((id): [string, WhatIf] => [`a link to ${id}`, { ...whatIf, added: whatIf.added.filter((other) => other !== id) }]),
    ...Object.entries(whatIf.features).map(([name, value]): [string, WhatIf] => {
      const { [name]: _, ...features } = whatIf.features;
      return [`feature ${name} = ${value}`, { ...whatIf, features }];
    }),
  ];
  return (
    <ul class="change-list" aria-label="Changes">
      {entries.map(([text, without]) => <li key={text}>{text}<button type="button" class="plain tiny" onClick={() => onChange(without)}>Undo<span class="hidden">: {text}</span></button></li>)}
    </ul>
  );
}

function readNumber(text: string): number {
  const value = Number(text);
  if (Number.isNaN(value)) throw new Error(`The value is “${text}”, expected a number.`);
  return value;
}
