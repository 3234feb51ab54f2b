/** What the views share: the served model, and the node that was asked about last. */

import { createContext } from "preact";
import { useContext } from "preact/hooks";
import { type ClassesInfo, type Features, type FeaturesInfo, type Manifest, type Models, type NodeId, type Prediction, get, optional } from "./api";

export interface Service {
  model: string; version: number; snapshot: string;
  task: ClassesInfo["task"];
  classes: string[];
  width: number;
  features: FeaturesInfo["features"];
  /** Whether a digit can be drawn: the data set is `digits`, 8 x 8 pixels. */
  drawable: boolean;
  nodes: number;
  /** Whether ids are numbers, so that what is typed becomes one. */
  numericIds: boolean;
}

export async function loadService(): Promise<Service | null> {
  const models = await get<Models>("/models");
  if (!models.serving) return null;
  const { model, version, snapshot } = models.serving;
  const [classes, features, manifest] = await Promise.all([
    get<ClassesInfo>("/classes"), get<FeaturesInfo>("/features"), optional(get<Manifest & { node_ids: string | null }>(`/models/${version}`)),
  ]);
  return {
    model, version, snapshot, task: classes.task, classes: classes.classes.map((entry) => entry.class),
    width: features.width, features: features.features, nodes: manifest?.nodes ?? 0,
    drawable: manifest?.dataset.name === "digits" && features.width === 64,
    numericIds: manifest === null || manifest.node_ids === null || manifest.node_ids.startsWith("<i"),
  };
}

export const ServiceContext = createContext<Service>(null!);
export const useService = (): Service => useContext(ServiceContext);

/** The node that was asked about last; the map shows it. `known`: it is in the graph. */
export interface Asked { node: NodeId; known: boolean; prediction: Prediction; features?: Features; neighbors?: NodeId[] }
let asked: Asked | null = null;
export const lastAsked = (): Asked | null => asked;
export function remember(question: Asked | null): void { asked = question; }

export function parseId(service: Service, text: string): NodeId {
  const trimmed = text.trim();
  return service.numericIds && /^-?\d{1,15}$/.test(trimmed) ? Number(trimmed) : trimmed;
}

export const parseIds = (service: Service, text: string): NodeId[] =>
  text.split(/[,\n]/).map((part) => part.trim()).filter(Boolean).map((part) => parseId(service, part));

export const nodeLink = (id: NodeId): string => `#/node/${encodeURIComponent(String(id))}`;
