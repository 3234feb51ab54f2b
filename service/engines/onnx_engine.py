"""Answers by ONNX Runtime: numpy computes the graph branch of new nodes, and `model.onnx` the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from model_store import Snapshot
from model_store.publish.onnx_head import sum_feeds
from service.engines.engine import EngineError, ignoring_overflow
from service.settings import Backend
from sgformer import Answers, ExtendedAnswers, NewNodes
from sgformer.request_time.extension import Mode, run_graph_branch


class OnnxEngine:
    backend: Backend | None = "onnx"
    batch_invariant = True  # ONNX Runtime sees one scenario at a time; numpy computes the rest

    def __init__(self, snapshot: Snapshot, providers: list[str]) -> None:
        if snapshot.onnx_path is None:
            raise EngineError("this version has no model.onnx: publish it with one, or serve with SGF_BACKEND=numpy")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # rows are few, and workers share the cores
        self._session = onnxruntime.InferenceSession(snapshot.onnx_path, options, providers=providers)
        self.name = f"onnx ({self._session.get_providers()[0]})"
        self._snapshot = snapshot
        self._sums = sum_feeds(snapshot.sums)

    def known(self, rows: NDArray[np.int64]) -> Answers:
        """Computed by numpy: bitwise independent of batch composition, without a call of the runtime per row."""
        return self._snapshot.known(rows)

    def extended(self, new: NewNodes, mode: Mode = "exact", max_recompute: int | None = None) -> ExtendedAnswers:
        snapshot = self._snapshot
        with ignoring_overflow():
            branch = run_graph_branch(snapshot.model, snapshot.states, snapshot.adjacency, new, mode, max_recompute)
        ends = np.cumsum(np.bincount(new.scenarios))
        parts = []
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            inputs, graph_states = branch.inputs[start:end], branch.graph_states[start:end]
            if end - start == 1:
                parts.append(self._run(inputs, graph_states, 1.0, self._sums))
            else:  # joint nodes are in each other's sums
                joint = snapshot.sums.with_rows(*snapshot.model.project(inputs, "query", "key", "value"))
                parts.append(self._run(inputs, graph_states, 0.0, sum_feeds(joint)))
        embeddings, logits = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return ExtendedAnswers(embeddings, logits, branch.recomputed, branch.exactness)

    def _run(self, inputs: Any, graph_states: Any, added: float, sums: dict[str, Any]) -> list[Any]:
        rows = {"inputs": inputs, "graph_states": graph_states, "added": np.full(len(inputs), added, dtype=np.float32)}
        outputs: list[Any] = self._session.run(["embeddings", "logits"], rows | sums)
        return outputs
