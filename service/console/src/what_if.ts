/** Changes of a node that are tried out, as operations of the graph. */

import type { Features, NodeAnswer, NodeId, Operation } from "./api";
import { denseFeatures } from "./digits";

export interface WhatIf {
  removed: NodeId[];
  added: NodeId[];
  /** By name, or by position as text. */
  features: Record<string, number | boolean | string>;
}

export const NOTHING: WhatIf = { removed: [], added: [], features: {} };

export function isEmpty({ removed, added, features }: WhatIf): boolean {
  return !removed.length && !added.length && !Object.keys(features).length;
}

export function operations(node: NodeAnswer, { removed, added, features }: WhatIf, width: number): Operation[] {
  const links = [
    ...removed.map((target) => ({ op: "remove_edge", source: node.node, target })),
    ...added.map((target) => ({ op: "add_edge", source: node.node, target })),
  ];
  return Object.keys(features).length ? [...links, { op: "set_features", id: node.node, features: changed(node.features, features, width) }] : links;
}

type Named = Record<string, number | boolean | string | null>;

function isNamed(features: NodeAnswer["features"]): features is Named {
  return features !== null && features !== undefined && !Array.isArray(features) && !Array.isArray(features.indices);
}

/** The value of a feature, by name or by position as text. */
export function featureOf({ features }: NodeAnswer, name: string, width: number): number | boolean | string | null | undefined {
  return isNamed(features) ? features[name] : denseFeatures(features, width)[Number(name)];
}

function changed(before: NodeAnswer["features"], changes: WhatIf["features"], width: number): Features {
  if (isNamed(before)) return { ...before, ...changes };
  const values = [...denseFeatures(before, width)];
  for (const [position, value] of Object.entries(changes)) values[Number(position)] = Number(value);
  return values;
}

export function describe(operation: Operation): string {
  if (operation.op === "remove_edge") return `remove the link to ${operation.target}`;
  if (operation.op === "add_edge") return `add a link to ${operation.target}`;
  return `change features`;
}
