/** The nodes of the map, read once for each version of the model: for the map, and for the search of a node by its id. */

import { type NodeId, type Origin, get } from "./api";

export interface MapData extends Origin {
  method: string; explained: number[]; nodes: number; shown: number; mean: number[]; components: number[][];
  ids: NodeId[]; x: number[]; y: number[];
  labels: (number | null)[]; predictions: (number | null)[];
}

let cached: Promise<MapData> | null = null, cachedSnapshot = "";

export function loadMap(snapshot: string): Promise<MapData> {
  if (cached === null || cachedSnapshot !== snapshot) {
    cachedSnapshot = snapshot;
    cached = get<MapData>("/map?limit=100000");
    cached.catch(() => { cached = null; });
  }
  return cached;
}
