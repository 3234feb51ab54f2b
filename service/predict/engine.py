"""A loaded snapshot that answers: the seam between serving and mathematics. No asyncio, no HTTP.

Three backends give the same answers within 1e-5: numpy (the default on a CPU, which loads nothing else), ONNX Runtime, and
torch (CUDA, or a CPU where it is asked for).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model_store import Snapshot
from model_store.publish.onnx_head import sum_feeds
from service.settings import Settings
from sgformer import Answers, AttentionSums, ExtendedAnswers, InferenceModel, NewNodes, NodeStates, extend
from sgformer.request_time.extension import Mode, run_graph_branch

if TYPE_CHECKING:
    import torch

GPU_SHARE = 0.7
"""Of the free memory of a GPU: what the states may take; larger ones are gathered from the host."""


class EngineError(Exception):
    """This worker cannot run this version; the version is not to blame, and another worker may run it."""


class Engine(Protocol):
    """Answers are numpy arrays on the host, one row per node asked for, in the order asked."""

    name: str
    merges: bool
    """Whether questions may be merged into one batch without changing a bit of any answer."""

    def known(self, rows: NDArray[np.int64]) -> Answers:
        """Its logits are the snapshot's, read and not computed: the same from every engine."""

    def extended(self, new: NewNodes, mode: Mode = "exact", max_recompute: int | None = None) -> ExtendedAnswers:
        """Raises what `sgformer.extend` raises."""


class NumpyEngine:
    name, merges = "numpy", True

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def known(self, rows: NDArray[np.int64]) -> Answers:
        return self._snapshot.known(rows)

    def extended(self, new: NewNodes, mode: Mode = "exact", max_recompute: int | None = None) -> ExtendedAnswers:
        with _letting_overflow():
            return self._snapshot.extended(new, mode, max_recompute)


class TorchEngine:
    """On a GPU the states live there if they fit; the graph's structure stays on the host."""

    merges = False  # a matrix product picks its kernel, and so the order of its additions, by the number of rows

    def __init__(self, snapshot: Snapshot, device: str) -> None:
        import torch

        from sgformer.arrays.torch_operations import placed_on

        self.name = f"torch ({device})"
        self._device = torch.device(device)
        self._snapshot = snapshot
        self._model = InferenceModel(snapshot.manifest.config, snapshot.weights, place=placed_on(self._device))
        self._sums: AttentionSums = snapshot.sums.to(self._model.like)
        self._states = self._placed(snapshot.states) if self._device.type == "cuda" else snapshot.states

    def known(self, rows: NDArray[np.int64]) -> Answers:
        embeddings = self._model.known(self._states, self._sums, rows).embeddings
        return Answers(_on_host(embeddings), self._snapshot.known_logits(rows))

    def extended(self, new: NewNodes, mode: Mode = "exact", max_recompute: int | None = None) -> ExtendedAnswers:
        found = extend(self._model, self._states, self._sums, self._snapshot.adjacency, new, mode, max_recompute)
        return replace(found, embeddings=_on_host(found.embeddings), logits=_on_host(found.logits))

    def _placed(self, states: NodeStates) -> NodeStates:
        import torch

        arrays = [states.inputs, *states.layers, *states.aggregates]
        needed = sum(array.nbytes for array in {id(array): array for array in arrays}.values())
        free, _total = torch.cuda.mem_get_info(self._device)
        if needed > GPU_SHARE * free:
            return states
        placed: dict[int, torch.Tensor] = {}

        def place(array: NDArray[Any]) -> torch.Tensor:
            if id(array) not in placed:  # the first layer may be the input states themselves
                placed[id(array)] = torch.from_numpy(np.array(array)).to(self._device)
            return placed[id(array)]

        return NodeStates(place(states.inputs), tuple(map(place, states.layers)), tuple(map(place, states.aggregates)))


class OnnxEngine:
    """New nodes: their neighbourhoods on numpy, the rest by ONNX Runtime from `model.onnx`. Known nodes: numpy alone."""

    merges = True  # numpy computes what is merged; ONNX Runtime sees one scenario at a time

    def __init__(self, snapshot: Snapshot, providers: list[str]) -> None:
        import onnxruntime

        if snapshot.onnx_path is None:
            raise EngineError("this version has no model.onnx: publish it with one, or serve with SGF_BACKEND=numpy")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # rows are few, and workers share the cores
        self._session = onnxruntime.InferenceSession(snapshot.onnx_path, options, providers=providers)
        self.name = f"onnx ({self._session.get_providers()[0]})"
        self._snapshot = snapshot
        self._sums = sum_feeds(snapshot.sums)

    def known(self, rows: NDArray[np.int64]) -> Answers:
        """On numpy, which is bitwise independent of batch composition and costs no call of the runtime per row."""
        return self._snapshot.known(rows)

    def extended(self, new: NewNodes, mode: Mode = "exact", max_recompute: int | None = None) -> ExtendedAnswers:
        snapshot = self._snapshot
        with _letting_overflow():
            reached = run_graph_branch(snapshot.model, snapshot.states, snapshot.adjacency, new, mode, max_recompute)
        ends = np.cumsum(np.bincount(new.scenarios))
        parts = []
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            inputs, graph_states = reached.inputs[start:end], reached.graph_states[start:end]
            if end - start == 1:
                parts.append(self._run(inputs, graph_states, 1.0, self._sums))
            else:  # joint nodes are in each other's sums
                joint = snapshot.sums.with_rows(*snapshot.model.project(inputs, "query", "key", "value"))
                parts.append(self._run(inputs, graph_states, 0.0, sum_feeds(joint)))
        embeddings, logits = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return ExtendedAnswers(embeddings, logits, reached.recomputed, reached.exactness)

    def _run(self, inputs: Any, graph_states: Any, added: float, sums: dict[str, Any]) -> list[Any]:
        rows = {"inputs": inputs, "graph_states": graph_states, "added": np.full(len(inputs), added, dtype=np.float32)}
        found: list[Any] = self._session.run(["embeddings", "logits"], rows | sums)
        return found


def engine_for(snapshot: Snapshot, settings: Settings) -> Engine:
    """The engine that the settings ask for, not yet warmed. Raises EngineError."""
    cuda = settings.device != "cpu" and _cuda(required=settings.device == "cuda")
    backend = settings.backend
    if backend == "auto":
        backend = "torch" if cuda else "numpy"
    if backend == "torch":
        return TorchEngine(snapshot, "cuda" if cuda else "cpu")
    if backend == "onnx":
        return OnnxEngine(snapshot, ["CUDAExecutionProvider", "CPUExecutionProvider"] if cuda else ["CPUExecutionProvider"])
    return NumpyEngine(snapshot)


def _letting_overflow() -> np.errstate:
    """New features may be too large for the model: whoever reads the answer looks whether it is finite."""
    return np.errstate(over="ignore", invalid="ignore", divide="ignore")


def _cuda(required: bool) -> bool:
    """Whether there is a GPU that torch can use. Loads torch only where a driver says that there may be one."""
    from pathlib import Path

    if not required and not Path("/dev/nvidiactl").exists():
        return False
    try:
        import torch
    except ImportError:
        found = False
    else:
        found = torch.cuda.is_available()
    if required and not found:
        raise EngineError("SGF_DEVICE is cuda, and torch sees no GPU here")
    return found


def _on_host(array: Any) -> NDArray[np.float32]:
    return np.asarray(array.cpu().numpy())
