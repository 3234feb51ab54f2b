"""The exactness suite must fail if the mathematics is wrong: there is a mutant for every known kind of mistake.

In float32 and on a large graph several mutants would pass (docs/mathematics.md, trap 1): the suite runs in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings

from sgformer import AttentionSums, InferenceModel, sums
from sgformer.arrays.operations import NumpyOps, ops_for
from sgformer.request_time import extension, layers, neighborhood
from sgformer.request_time.layers import LayerBuilder
from sgformer.request_time.neighborhood import Ball, Neighborhood
from tests.sgformer.cases import Case, cases, check_new_nodes

Mutant = Callable[[pytest.MonkeyPatch], None]


@settings(max_examples=300, derandomize=True, database=None, phases=[Phase.generate], report_multiple_bugs=False)
@given(cases())
def exactness_suite(case: Case) -> None:
    check_new_nodes(case)


def drop_the_sums(patch: pytest.MonkeyPatch) -> None:
    original = AttentionSums._products
    patch.setattr(AttentionSums, "_products", lambda *args: [0 * part for part in original(*args)])


def skip_the_self_update_of_independent_nodes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AttentionSums, "attend_each_added", lambda self, query, _key, value: self.attend(query, value))


def skip_the_self_update_of_joint_nodes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AttentionSums, "with_rows", lambda self, *_rows: self)


def keep_stale_degrees(patch: pytest.MonkeyPatch) -> None:
    original = neighborhood._ball

    def stale(*args: Any) -> Ball:
        ball = original(*args)
        return replace(ball, new_degrees=ball.degrees)

    patch.setattr(neighborhood, "_ball", stale)


def keep_the_radius_one_too_small(patch: pytest.MonkeyPatch) -> None:
    original = neighborhood.radius
    patch.setattr(neighborhood, "radius", lambda layer, layers: max(0, original(layer, layers) - 1))


def forget_to_count_the_new_node(patch: pytest.MonkeyPatch) -> None:
    original = sums._scale
    patch.setattr(sums, "_scale", lambda kind, query, key, count: original(kind, query, key, count - 1))


def use_the_other_norm(patch: pytest.MonkeyPatch) -> None:
    original = sums._scale
    other = {"row": "frobenius", "frobenius": "row"}
    patch.setattr(sums, "_scale", lambda kind, query, key, count: original(other[kind], query, key, count))


def overlook_edges_between_neighbors(patch: pytest.MonkeyPatch) -> None:
    none = np.empty(0, dtype=np.int64)
    patch.setattr(neighborhood, "_edges_within", lambda *_: (none, none))


def overlook_edges_between_new_nodes(patch: pytest.MonkeyPatch) -> None:
    original = neighborhood._links_into_new
    none = np.empty((2, 0), dtype=np.int64)
    patch.setattr(neighborhood, "_links_into_new", lambda new, *rest: original(replace(new, edges=none), *rest))


def answer_with_frozen_neighbors(patch: pytest.MonkeyPatch) -> None:
    original = Neighborhood.around.__func__  # type: ignore[attr-defined]  # mypy sees the bound method only
    frozen = classmethod(lambda cls, new, adjacency, layers, limit: original(cls, new, adjacency, min(layers, 1), limit))
    patch.setattr(Neighborhood, "around", frozen)


def hide_the_new_node_from_its_neighbors(patch: pytest.MonkeyPatch) -> None:
    original = extension._recompute_layer
    patch.setattr(extension, "_recompute_layer", lambda *args: original(*args[:-1], 0 * args[-1]))


def swap_the_shares_of_the_branches(patch: pytest.MonkeyPatch) -> None:
    original = NumpyOps.mix
    patch.setattr(NumpyOps, "mix", lambda self, rows, others, share: original(self, rows, others, 1 - share))


def drop_the_attention_branch(patch: pytest.MonkeyPatch) -> None:
    original = InferenceModel.answer
    patch.setattr(InferenceModel, "answer", lambda self, states, attended, rest: original(self, states, 0 * attended, rest))


def skip_the_layer_norm_of_the_gcn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LayerBuilder, "graph_norm", lambda *_: None)


def activate_before_the_layer_norm_of_the_gcn(patch: pytest.MonkeyPatch) -> None:
    original = LayerBuilder.graph_norm

    def late(self: LayerBuilder, name: str) -> Any:
        norm = original(self, name)
        return None if norm is None else lambda rows: norm(ops_for(rows).relu(rows))

    patch.setattr(LayerBuilder, "graph_norm", late)


def add_the_input_in_place_of_the_previous_layer(patch: pytest.MonkeyPatch) -> None:
    original = layers.layer_reads
    patch.setattr(layers, "layer_reads", lambda config, layer: None if original(config, layer) is None else 0)


def skip_the_residual_of_a_layer(patch: pytest.MonkeyPatch) -> None:
    original = layers.layer_reads
    patch.setattr(
        layers, "layer_reads", lambda config, layer: None if config.gnn_layer_residual else original(config, layer)
    )


def add_the_stored_states_of_the_previous_layer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(extension, "_with_changes", lambda rows, *_: rows)


MUTANTS: list[Mutant] = [
    add_the_input_in_place_of_the_previous_layer,
    skip_the_residual_of_a_layer,
    add_the_stored_states_of_the_previous_layer,
    skip_the_layer_norm_of_the_gcn,
    activate_before_the_layer_norm_of_the_gcn,
    drop_the_sums,
    skip_the_self_update_of_independent_nodes,
    skip_the_self_update_of_joint_nodes,
    keep_stale_degrees,
    keep_the_radius_one_too_small,
    forget_to_count_the_new_node,
    use_the_other_norm,
    overlook_edges_between_neighbors,
    overlook_edges_between_new_nodes,
    answer_with_frozen_neighbors,
    hide_the_new_node_from_its_neighbors,
    swap_the_shares_of_the_branches,
    drop_the_attention_branch,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_exactness_suite_catches(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with np.errstate(all="ignore"), pytest.raises(AssertionError, match="off by"):
        exactness_suite()


def test_the_exactness_suite_passes_without_a_mutant() -> None:
    exactness_suite()
