"""Answers that are computed in another way than the served ones: from raw features, in float64, without stored states.

Runs in the monitoring process. Reads the weights, features and edges of the snapshot, and the changed features and edges of
the live graph. If the snapshot has no raw features, the stored inputs (Z0) are read instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_store.live_graph.operations import feature_rows
from service.engines.served_model import ServedModel
from sgformer import Answers, AttentionSums, InferenceModel, NewNodes
from sgformer.arrays.operations import Array, Indices
from sgformer.request_time.local_forward import local_answers

CHUNK_ROWS = 8192
Inputs = tuple[Array, Array]
"""Z0 and the GCN's input."""


class FullPrecision:
    def __init__(self, model: ServedModel) -> None:
        """Computes the sums over the graph of the snapshot, which costs O(N)."""
        self._served, self._snapshot = model, model.snapshot
        self._model = InferenceModel(model.config, model.snapshot.weights, np.float64)
        self._base_sums = self._sums(np.arange(model.snapshot.states.num_nodes), self._stored_inputs)
        self._current: tuple[int, AttentionSums, dict[int, Any]] = -1, self._base_sums, {}
        """The sequence of the live graph, its sums, and the features of added and changed nodes by row."""

    def answers(self, rows: Indices, new: NewNodes | None, max_entries: int) -> Answers:
        """The answers for rows of the graph as it is now, or for new nodes of one scenario. Raises NeighborhoodTooLarge."""
        adjacency = self._served.live.graph.adjacency
        return local_answers(self._model, self._inputs, self.sums, adjacency, rows, max_entries, new)

    def largest_input(self, new: NewNodes) -> float:
        return max(float(np.abs(part).max()) for part in self._model.inputs(new.features))

    @property
    def sums(self) -> AttentionSums:
        """The sums over the graph as it is now: the sums of the snapshot, minus its removed and changed nodes, plus added
        and changed nodes as they are now.
        """
        self._follow()
        return self._current[1]

    def _follow(self) -> None:
        live = self._served.live
        if self._current[0] == live.position.sequence:
            return
        stored = np.arange(self._snapshot.states.num_nodes)
        changed = {row: feature_rows(features, live.num_features) for row, features in live.changed_features()}
        outdated = stored[live.graph.adjacency.is_removed(stored) | np.isin(stored, list(changed))]
        self._current = live.position.sequence, self._base_sums, changed  # `_inputs` reads the changed features
        added = self._sums(np.array(sorted(changed), dtype=np.int64), self._inputs)
        sums = self._base_sums - self._sums(outdated, self._stored_inputs) + added
        self._current = live.position.sequence, sums, changed

    def _inputs(self, rows: Indices) -> Inputs:
        """The inputs of rows as they are now."""
        self._follow()
        changed = self._current[2]
        inputs, gcn_inputs = np.empty((2, len(rows), self._model.config.hidden))
        is_changed = np.isin(rows, list(changed))
        inputs[~is_changed], gcn_inputs[~is_changed] = self._stored_inputs(rows[~is_changed])
        for position in np.flatnonzero(is_changed):
            inputs[position], gcn_inputs[position] = (part[0] for part in self._model.inputs(changed[int(rows[position])]))
        return inputs, gcn_inputs

    def _stored_inputs(self, rows: Indices) -> Inputs:
        """The inputs of rows of the snapshot."""
        features, states = self._snapshot.raw_features(rows), self._snapshot.states
        if features is not None:
            return self._model.inputs(features)
        return self._model.rows(states.inputs, rows), self._model.rows(states.layers[0], rows)

    def _sums(self, rows: Indices, inputs: Any) -> AttentionSums:
        config = self._model.config
        sums = AttentionSums.empty(config.normalization, config.heads, config.hidden)
        for start in range(0, len(rows), CHUNK_ROWS):
            states, _ = inputs(rows[start : start + CHUNK_ROWS])
            sums = sums + AttentionSums.of_rows(config.normalization, *self._model.project(states, "query", "key", "value"))
        return sums
