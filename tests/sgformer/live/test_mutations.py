"""The machine must detect every known kind of mistake: there is a mutant for each. Without a mutant it passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from sgformer.live import layer_states
from sgformer.live.changed_adjacency import ChangedAdjacency, DirectedEdges
from sgformer.live.changes import Draft
from sgformer.live.changing_graph import ChangingGraph
from sgformer.live.layer_states import LayerStates
from sgformer.live.messages import MessageChanges
from sgformer.request_time import folded_attention
from tests.sgformer.live.machine import LiveGraphMachine

Mutant = Callable[[pytest.MonkeyPatch], None]
NONE = np.empty(0, dtype=np.int64)
SETTINGS = settings(
    max_examples=200,
    stateful_step_count=20,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
)


def keep_stale_sums(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChangingGraph, "_replace_sums", lambda *_: None)


def keep_the_folded_attention(patch: pytest.MonkeyPatch) -> None:
    original = ChangingGraph._replace_sums

    def keep(self: ChangingGraph, sums: Any) -> None:
        folded = self._attention
        original(self, sums)
        self._attention = folded

    patch.setattr(ChangingGraph, "_replace_sums", keep)


def fold_without_the_bias(patch: pytest.MonkeyPatch) -> None:
    original = folded_attention._with_bias

    def without_bias(*args: Any) -> Any:
        rows = original(*args)
        rows[:, -1] = 0
        return rows

    patch.setattr(folded_attention, "_with_bias", without_bias)


def attend_to_removed_nodes(patch: pytest.MonkeyPatch) -> None:
    original = Draft._sums
    patch.setattr(Draft, "_sums", lambda self, _old, *new: original(self, NONE, *new))


def keep_stale_inputs(patch: pytest.MonkeyPatch) -> None:
    original = ChangingGraph.apply
    patch.setattr(ChangingGraph, "apply", lambda self, made: original(self, replace(made, inputs=made.inputs * 0)))


def change_the_degree_of_one_end(patch: pytest.MonkeyPatch) -> None:
    original = DirectedEdges.of.__func__  # type: ignore[attr-defined]  # mypy sees the bound method only

    def one_way(cls: type[DirectedEdges], edges: Any) -> DirectedEdges:
        both = original(cls, edges)
        kept = both.sources < both.targets
        return DirectedEdges(both.sources[kept], both.targets[kept])

    patch.setattr(DirectedEdges, "of", classmethod(one_way))


def walk_removed_edges(patch: pytest.MonkeyPatch) -> None:
    original = ChangedAdjacency._merged
    nothing = DirectedEdges(NONE, NONE)
    patch.setattr(ChangedAdjacency, "_merged", lambda self, rows, added, _removed: original(self, rows, added, nothing))


def use_degrees_of_the_stored_graph(patch: pytest.MonkeyPatch) -> None:
    def stored(adjacency: ChangedAdjacency, rows: Any) -> Any:
        inside = np.minimum(rows, adjacency.base.num_nodes - 1)
        return (adjacency.base.degrees(inside) + 1.0) ** -0.5

    patch.setattr(ChangedAdjacency, "scales", stored)


def forget_the_message_of_the_node_itself(patch: pytest.MonkeyPatch) -> None:
    original = layer_states.received

    def without_itself(adjacency: Any, senders: Any, rows: Any) -> Any:
        return original(adjacency, senders, rows) - layer_states.sent(adjacency, senders, rows)

    patch.setattr(layer_states, "received", without_itself)


def read_stale_states(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LayerStates, "refresh", lambda *_: None)


def read_states_of_old_totals(patch: pytest.MonkeyPatch) -> None:
    def push(self: LayerStates, rows: Any, change: Any) -> Any:
        changed = original(self, rows, change)
        slots = self._table.slots(rows)
        self._table.column(layer_states.UNREAD)[slots[slots >= 0]] = 0
        return changed

    original = LayerStates._push
    patch.setattr(LayerStates, "_push", push)


def follow_no_pushed_row(patch: pytest.MonkeyPatch) -> None:
    original = LayerStates._push
    patch.setattr(LayerStates, "_push", lambda *args: original(*args)[:0])


def mark_no_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LayerStates, "mark_stale", lambda _self, rows: rows)


def mark_one_layer_only(patch: pytest.MonkeyPatch) -> None:
    original = LayerStates.mark_stale
    patch.setattr(LayerStates, "mark_stale", lambda self, rows: original(self, rows)[:0])


def push_nothing(patch: pytest.MonkeyPatch) -> None:
    original = LayerStates._push
    patch.setattr(LayerStates, "_push", lambda self, rows, change: original(self, rows, 0 * change))


def push_without_new_edges(patch: pytest.MonkeyPatch) -> None:
    original = MessageChanges.sent_to
    nothing = DirectedEdges(NONE, NONE)
    patch.setattr(MessageChanges, "sent_to", lambda self, *args: original(replace(self, added=nothing), *args))


def push_without_removed_edges(patch: pytest.MonkeyPatch) -> None:
    original = MessageChanges.sent_to
    nothing = DirectedEdges(NONE, NONE)
    patch.setattr(MessageChanges, "sent_to", lambda self, *args: original(replace(self, removed=nothing), *args))


def push_onto_totals_with_new_degrees(patch: pytest.MonkeyPatch) -> None:
    def totals(self: LayerStates, rows: Any) -> Any:
        degrees = self.adjacency.degrees(rows)
        return self._model.rows(self._base_aggregates, rows) * np.sqrt(degrees + 1.0)[:, None]

    patch.setattr(LayerStates, "_base_totals", totals)


def change_the_graph_in_a_what_if(patch: pytest.MonkeyPatch) -> None:
    def in_place(self: ChangingGraph, made: Any) -> ChangingGraph:
        self.apply(made)
        self.version -= 1
        return self

    patch.setattr(ChangingGraph, "what_if", in_place)


def add_the_input_in_place_of_the_previous_layer(patch: pytest.MonkeyPatch) -> None:
    original = LayerStates.__init__

    def reads_initial(self: LayerStates, *args: Any) -> None:
        original(self, *args)
        self._own = args[4]

    patch.setattr(LayerStates, "__init__", reads_initial)


MUTANTS: list[Mutant] = [
    add_the_input_in_place_of_the_previous_layer,
    keep_stale_sums,
    keep_the_folded_attention,
    fold_without_the_bias,
    attend_to_removed_nodes,
    keep_stale_inputs,
    change_the_degree_of_one_end,
    walk_removed_edges,
    use_degrees_of_the_stored_graph,
    forget_the_message_of_the_node_itself,
    read_stale_states,
    read_states_of_old_totals,
    follow_no_pushed_row,
    mark_no_state,
    mark_one_layer_only,
    push_nothing,
    push_without_new_edges,
    push_without_removed_edges,
    push_onto_totals_with_new_degrees,
    change_the_graph_in_a_what_if,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_machine_catches(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with np.errstate(all="ignore"), pytest.raises((AssertionError, IndexError)):
        run_state_machine_as_test(LiveGraphMachine, settings=SETTINGS)
