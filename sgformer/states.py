"""What the full-graph forward leaves behind for every node."""

from __future__ import annotations

from dataclasses import dataclass

from sgformer.arrays.operations import Array


@dataclass(frozen=True)
class NodeStates:
    """Per-node arrays (N, hidden): in memory, memory-mapped, or on a GPU.

    With L layers there are L + 1 `layers`: the GCN's input, then every layer's output. Where the GCN reads Z0 (`shared`)
    `layers[0]` *is* `inputs`. `aggregates` holds P h of layers 1 to L-1, before their weights: with them the exact answer
    for a new node does not walk over the neighbours of its neighbours (docs/mathematics.md section 4, "Hubs").
    """

    inputs: Array
    layers: tuple[Array, ...]
    aggregates: tuple[Array, ...]

    @property
    def num_nodes(self) -> int:
        return int(self.inputs.shape[0])
