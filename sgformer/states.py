"""The states of every node after a full-graph forward."""

from __future__ import annotations

from dataclasses import dataclass

from sgformer.arrays.operations import Array


@dataclass(frozen=True)
class NodeStates:
    """Per-node arrays (N, hidden): in memory, memory-mapped, or on a GPU.

    `inputs` is Z0. With L GCN layers, `layers` holds L + 1 arrays: the GCN's input, then the output of every layer. If the
    GCN reads Z0 (`gnn_input="shared"`), `layers[0]` is `inputs`. `aggregates` holds P h of layers 1 to L-1, before their
    weights, so an exact answer need not read all neighbours of a hub (docs/mathematics.md section 4, "Hubs").
    """

    inputs: Array
    layers: tuple[Array, ...]
    aggregates: tuple[Array, ...]

    @property
    def num_nodes(self) -> int:
        return int(self.inputs.shape[0])
