/** A node and its neighbours as a drawing. The table beside it has the same content and the same actions, for keys and screen readers. */

import type { NodeId } from "./api";
import { Pixels } from "./picture";
import { UNKNOWN_COLOR, classColor } from "./palette";

export interface EgoNeighbor { node: NodeId; label: number | null; effect: number | null; removed: boolean; added?: boolean; pixels: number[] | null }

const WIDTH = 560, HEIGHT = 390, RING = 14;

function place(index: number, total: number): [number, number] {
  const inner = total > RING ? Math.ceil(total / 2) : total;
  const isInner = total <= RING || index % 2 === 0;
  const position = total > RING ? Math.floor(index / 2) : index, members = total > RING ? (isInner ? inner : total - inner) : total;
  const angle = (2 * Math.PI * (position + (isInner ? 0 : 0.5))) / Math.max(1, members) - Math.PI / 2;
  const reach = total <= RING ? 0.92 : isInner ? 0.56 : 0.95;
  return [WIDTH / 2 + Math.cos(angle) * (WIDTH / 2 - 40) * reach, HEIGHT / 2 + Math.sin(angle) * (HEIGHT / 2 - 44) * reach];
}

export function Ego({ id, label, pixels, neighbors, onToggle, onOpen }: {
  id: NodeId; label: number | null; pixels: number[] | null; neighbors: EgoNeighbor[]; onToggle: (node: NodeId) => void; onOpen: (node: NodeId) => void;
}) {
  const strongest = Math.max(1e-9, ...neighbors.map(({ effect }) => Math.abs(effect ?? 0)));
  const places = neighbors.map((_, index) => place(index, neighbors.length));
  return (
    <svg class="ego" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} aria-hidden="true" data-testid="ego">
      {neighbors.map((neighbor, index) => {
        const [x, y] = places[index]!;
        const width = neighbor.effect === null ? 2 : 1 + 6 * (Math.abs(neighbor.effect) / strongest);
        const ends = { x1: WIDTH / 2, y1: HEIGHT / 2, x2: x, y2: y };
        const style = neighbor.effect === null ? {} : { stroke: neighbor.effect < 0 ? "#d9822b" : "var(--accent)" };
        return (
          <g key={String(neighbor.node)}>
            <line {...ends} class={neighbor.removed ? "gone" : ""} stroke-width={width} style={style} />
            <line {...ends} class="hit" onClick={() => onToggle(neighbor.node)}><title>{neighbor.removed ? "Keep this link" : "Remove this link"}</title></line>
          </g>
        );
      })}
      {neighbors.map((neighbor, index) => (
        <g key={String(neighbor.node)} class={`neighbor ${neighbor.removed ? "gone" : ""}`} transform={`translate(${places[index]!.join(" ")})`} onClick={() => onOpen(neighbor.node)}>
          <Disc radius={24} label={neighbor.label} pixels={neighbor.pixels} text={neighbor.node} />
          <title>{`Node ${neighbor.node}`}</title>
        </g>
      ))}
      <g transform={`translate(${WIDTH / 2} ${HEIGHT / 2})`}><Disc radius={36} label={label} pixels={pixels} text={id} self /></g>
    </svg>
  );
}

function Disc({ radius, label, pixels, text, self = false }: { radius: number; label: number | null; pixels: number[] | null; text: NodeId; self?: boolean }) {
  const color = label === null ? UNKNOWN_COLOR : classColor(label), name = String(text);
  const side = radius * 1.22;
  return (
    <>
      <circle class="disc" r={radius} style={{ stroke: color }} />
      {pixels ? <g class="pixels" transform={`translate(${-side / 2} ${-side / 2}) scale(${side / 8})`}><Pixels pixels={pixels} /></g>
        : <circle r={radius * 0.42} style={{ fill: color }} />}
      <text y={radius + 14} class={self ? "self" : ""}>{name.length > 14 ? `${name.slice(0, 13)}…` : name}</text>
    </>
  );
}
