"""Answers by torch: on a GPU, or on a CPU if SGF_BACKEND says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from model_store import Snapshot
from service.settings import Backend
from sgformer import Answers, AttentionSums, ExtendedAnswers, InferenceModel, NewNodes, NodeStates, extend
from sgformer.arrays.torch_operations import placed_on
from sgformer.request_time.extension import Mode

GPU_SHARE = 0.7
"""Share of the free memory of a GPU that the states may take. Larger states stay in host memory, and rows are copied."""


class TorchEngine:
    """The states are on the GPU if they fit; the adjacency stays in host memory."""

    backend: Backend | None = None
    merges = False  # a matrix product picks its kernel, and so the order of its additions, by the number of rows

    def __init__(self, snapshot: Snapshot, device: str) -> None:
        self.name = f"torch ({device})"
        self._device = torch.device(device)
        self._snapshot = snapshot
        self._model = InferenceModel(snapshot.manifest.config, snapshot.weights, place=placed_on(self._device))
        self._sums: AttentionSums = snapshot.sums.to(self._model.like)
        self._states = self._place(snapshot.states) if self._device.type == "cuda" else snapshot.states

    def known(self, rows: NDArray[np.int64]) -> Answers:
        embeddings = self._model.known(self._states, self._sums, rows).embeddings
        return Answers(_on_host(embeddings), self._snapshot.known_logits(rows))

    def extended(self, new: NewNodes, mode: Mode = "exact", max_recompute: int | None = None) -> ExtendedAnswers:
        answers = extend(self._model, self._states, self._sums, self._snapshot.adjacency, new, mode, max_recompute)
        return replace(answers, embeddings=_on_host(answers.embeddings), logits=_on_host(answers.logits))

    def _place(self, states: NodeStates) -> NodeStates:
        """Copies the states to the GPU if they fit. The first layer may be the input states: an array is copied once."""
        arrays = {id(array): array for array in (states.inputs, *states.layers, *states.aggregates)}
        free, _total = torch.cuda.mem_get_info(self._device)
        if sum(array.nbytes for array in arrays.values()) > GPU_SHARE * free:
            return states
        tensors = {key: torch.from_numpy(np.array(array)).to(self._device) for key, array in arrays.items()}
        layers, aggregates = ([tensors[id(array)] for array in part] for part in (states.layers, states.aggregates))
        return NodeStates(tensors[id(states.inputs)], tuple(layers), tuple(aggregates))


def _on_host(array: Any) -> NDArray[np.float32]:
    return np.asarray(array.cpu().numpy())
