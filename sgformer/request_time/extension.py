"""Answers for new nodes: the graph extended by them, without touching the rest of the graph.

`exact` equals the full-graph forward on the graph with the new nodes and their undirected edges. `frozen` reads the stored
states of the neighbours, although new edges change the outputs of all layers: an approximation, and the answer says so. Both
use the new degrees of the neighbours and the updated attention sums, so with at most one layer they are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sgformer.adjacency import NeighborLists
from sgformer.arrays.operations import Array, Indices, ops_for
from sgformer.errors import NewNodeError
from sgformer.request_time.inference import Answers, InferenceModel
from sgformer.request_time.neighborhood import Ball, Neighborhood
from sgformer.request_time.new_nodes import NewNodes
from sgformer.states import NodeStates
from sgformer.sums import AttentionSums

Mode = Literal["exact", "frozen"]


@dataclass(frozen=True)
class ExtendedAnswers(Answers):
    recomputed: Indices
    """For each new node, the number of recomputed states in its scenario."""
    exactness: Mode
    """The mode of the request; with at most one layer nothing is recomputed, and every answer is `exact`."""


def extend(
    model: InferenceModel,
    states: NodeStates,
    sums: AttentionSums,
    adjacency: NeighborLists,
    new: NewNodes,
    mode: Mode = "exact",
    max_recompute: int | None = None,
) -> ExtendedAnswers:
    """Answers for new nodes, each in its scenario (see `NewNodes`), at a cost that does not depend on N.

    A row is NaN or infinite where the model has no value (docs/mathematics.md section 2) or overflows.

    Raises:
        NewNodeError: `new` was validated for another graph or model, or `mode` is unknown.
        NeighborhoodTooLarge: in `exact` mode all new nodes together need more than `max_recompute` adjacency entries.
    """
    branch = run_graph_branch(model, states, adjacency, new, mode, max_recompute)
    attended = _attend(model, sums, new, branch.inputs)
    answers = model.answer(branch.inputs, attended, branch.graph_states)
    return ExtendedAnswers(answers.embeddings, answers.logits, branch.recomputed, branch.exactness)


@dataclass(frozen=True)
class GraphBranch:
    """The output of the GCN for new nodes, before attention and the output head."""

    inputs: Array
    """Z0 of the new nodes."""
    graph_states: Array
    recomputed: Indices
    exactness: Mode


def run_graph_branch(
    model: InferenceModel,
    states: NodeStates,
    adjacency: NeighborLists,
    new: NewNodes,
    mode: Mode = "exact",
    max_recompute: int | None = None,
) -> GraphBranch:
    """The part of `extend` that reads the graph, for engines with another output head. Raises what `extend` raises."""
    _check_request(model, states, adjacency, new, mode)
    layers = model.config.layers
    exact = mode == "exact" or layers < 2
    inputs, graph_inputs = model.inputs(new.features)
    around = Neighborhood.around(new, adjacency, layers if exact else min(layers, 1), max_recompute)
    graph_states = _propagate(model, states, around, graph_inputs)
    recomputed = around.recomputed(new.num_scenarios)[new.scenarios]
    return GraphBranch(inputs, graph_states, recomputed, "exact" if exact else "frozen")


def _attend(model: InferenceModel, sums: AttentionSums, new: NewNodes, inputs: Array) -> Array:
    """The attention output of every new node, over the stored rows and the rows of its scenario."""
    query, key, value = model.project(inputs, "query", "key", "value")
    sizes = np.bincount(new.scenarios)
    if len(sizes) == len(new):
        return sums.attend_each_added(query, key, value)
    # A node alone in its scenario takes the same path here, so joint nodes in the batch do not change its bits.
    attended, ends = inputs * 0, np.cumsum(sizes)
    alone = sizes[new.scenarios] == 1
    if alone.any():
        attended[alone] = sums.attend_each_added(query[alone], key[alone], value[alone])
    for scenario in np.flatnonzero(sizes > 1):
        rows = slice(int(ends[scenario] - sizes[scenario]), int(ends[scenario]))
        joint = sums.to(inputs).with_rows(query[rows], key[rows], value[rows])
        attended[rows] = joint.attend(query[rows], value[rows])
    return attended


def _check_request(model: InferenceModel, states: NodeStates, adjacency: NeighborLists, new: NewNodes, mode: Mode) -> None:
    if mode not in ("exact", "frozen"):
        raise NewNodeError(f"mode is {mode!r}, expected exact or frozen")
    if not new.num_nodes == adjacency.num_nodes == states.num_nodes:
        raise NewNodeError(
            f"the new nodes were validated for a graph of {new.num_nodes:,} nodes, this graph has {adjacency.num_nodes:,} "
            f"(and states of {states.num_nodes:,}); build them again with num_nodes={adjacency.num_nodes}"
        )
    if new.features.shape[1] != model.config.in_features:
        raise NewNodeError(f"features are {new.features.shape[1]} wide, this model expects {model.config.in_features}")


def _propagate(model: InferenceModel, states: NodeStates, around: Neighborhood, new_states: Array) -> Array:
    """The GCN's output for the new nodes.

    P = D^-1/2 (A + I) D^-1/2: a node sends its state divided by the root of its degree, and divides what it receives by the
    root of its degree. `changed` holds the recomputed states of a layer's ball.
    """
    ops = ops_for(new_states)
    new_initial = new_states
    new_root = model.scalars(around.new_degrees**-0.5)
    changed: Array | None = None
    for layer, apply in enumerate(model.graph_layers, start=1):
        sent_by_new = new_states * new_root
        sent_by_anchors = _anchor_states(model, states, around, layer - 1, changed)
        received = around.into_new.sum(ops.concat([sent_by_new, sent_by_anchors]))
        if layer <= len(around.into_layer):
            changed = _recompute_layer(model, states, around, layer, changed, sent_by_new)
        new_states = apply(received * new_root, new_initial if apply.reads == 0 else new_states)
    return new_states


def _anchor_states(
    model: InferenceModel, states: NodeStates, around: Neighborhood, layer: int, changed: Array | None
) -> Array:
    """What the anchors send after `layer`: their states divided by the roots of their new degrees."""
    anchors = around.balls[0]
    if changed is None:
        rows = model.rows(states.layers[layer], anchors.nodes)
    else:
        rows = ops_for(changed).take(changed, around.anchors_in(layer))
    return rows * model.scalars(anchors.new_degrees**-0.5)


def _recompute_layer(
    model: InferenceModel,
    states: NodeStates,
    around: Neighborhood,
    layer: int,
    changed: Array | None,
    sent_by_new: Array,
) -> Array:
    """The states after `layer` of the nodes in its ball, from their stored aggregates and the changes around them."""
    source, target = around.ball(layer - 1), around.ball(layer)
    before = model.rows(states.layers[layer - 1], source.nodes)
    after = before if changed is None else changed
    difference = after * model.scalars(source.new_degrees**-0.5) - before * model.scalars(source.degrees**-0.5)
    received = around.into_layer[layer - 1].sum(ops_for(before).concat([difference, sent_by_new]))
    stored = model.rows(states.aggregates[layer - 1], target.nodes)
    aggregate = stored * model.scalars((target.degrees / target.new_degrees) ** 0.5)
    aggregate = aggregate + received * model.scalars(target.new_degrees**-0.5)
    apply = model.graph_layers[layer - 1]
    if apply.reads is None:
        return apply(aggregate, None)
    own = model.rows(states.layers[apply.reads], target.nodes)
    return apply(aggregate, own if apply.reads == 0 else _with_changes(own, target, after, source))


def _with_changes(rows: Array, ball: Ball, changed: Array, changed_ball: Ball) -> Array:
    """The stored rows of a ball; nodes that are also in `changed_ball` get their recomputed rows, `changed`."""
    ops, positions = ops_for(rows), np.searchsorted(changed_ball.keys, ball.keys)
    positions = np.minimum(positions, len(changed_ball.keys) - 1)
    is_changed = changed_ball.keys[positions] == ball.keys
    stored = len(changed_ball.keys) + np.arange(len(ball.keys))
    return ops.take(ops.concat([changed, rows]), np.where(is_changed, positions, stored))
