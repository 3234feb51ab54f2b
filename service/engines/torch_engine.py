"""Answers by torch: on a GPU, or on a CPU if SGF_BACKEND is torch."""

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
from sgformer.device import fits_on_gpu
from sgformer.request_time.extension import Mode


class TorchEngine:
    """On a GPU, the states are in its memory if they fit; else rows are copied to it. The adjacency is in host memory."""

    backend: Backend | None = None
    batch_invariant = False  # a matrix product picks its kernel, and so the order of its additions, by the number of rows

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
        """Copies the states to the GPU if they fit. `inputs` and the first layer may be the same array, which is copied
        once.
        """
        arrays = {id(array): array for array in (states.inputs, *states.layers, *states.aggregates)}
        if not fits_on_gpu(self._device, sum(array.nbytes for array in arrays.values())):
            return states
        tensors = {key: torch.from_numpy(np.array(array)).to(self._device) for key, array in arrays.items()}
        layers, aggregates = ([tensors[id(array)] for array in part] for part in (states.layers, states.aggregates))
        return NodeStates(tensors[id(states.inputs)], tuple(layers), tuple(aggregates))


def _on_host(array: Any) -> NDArray[np.float32]:
    return np.asarray(array.cpu().numpy())
