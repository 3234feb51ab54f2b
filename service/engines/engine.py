"""The interface of all engines, the numpy engine, and the choice of an engine by the settings.

The engines give the same answers within 1e-5: numpy (the default on a CPU; loads no other library), ONNX Runtime, and
torch (for CUDA, or for a CPU if the settings say so).
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from model_store import Snapshot
from service.settings import Backend, Device
from sgformer import Answers, ExtendedAnswers, NewNodes
from sgformer.request_time.extension import Mode


class EngineError(Exception):
    """This worker cannot run this version. The version is not at fault: another worker may run it."""


class Engine(Protocol):
    """Answers are numpy arrays in host memory, one row per node, in the order of the request."""

    name: str
    backend: Backend | None
    """The backend with which the compute process opens an equal engine; None if expensive requests must run in a thread of
    this process (torch, on any device)."""
    merges: bool
    """True if answers are bitwise independent of batch composition."""

    def known(self, rows: NDArray[np.int64]) -> Answers:
        """The logits are read from the snapshot, not computed, so that all engines return the same logits."""

    def extended(self, new: NewNodes, mode: Mode = "exact", max_recompute: int | None = None) -> ExtendedAnswers:
        """Raises what `sgformer.extend` raises."""


class NumpyEngine:
    name, merges = "numpy", True
    backend: Backend | None = "numpy"

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def known(self, rows: NDArray[np.int64]) -> Answers:
        return self._snapshot.known(rows)

    def extended(self, new: NewNodes, mode: Mode = "exact", max_recompute: int | None = None) -> ExtendedAnswers:
        with ignoring_overflow():
            return self._snapshot.extended(new, mode, max_recompute)


def engine_for(snapshot: Snapshot, backend: Backend, device: Device) -> Engine:
    """Returns the engine that the settings select; the caller warms it up.

    Raises:
        EngineError: the GPU or `model.onnx` is missing.
        ImportError: torch or ONNX Runtime is not installed.
    """
    cuda = device != "cpu" and _has_cuda(required=device == "cuda")
    if backend == "torch" or (backend == "auto" and cuda):
        from service.engines.torch_engine import TorchEngine

        return TorchEngine(snapshot, "cuda" if cuda else "cpu")
    if backend == "onnx":
        from service.engines.onnx_engine import OnnxEngine

        return OnnxEngine(snapshot, ["CUDAExecutionProvider", "CPUExecutionProvider"] if cuda else ["CPUExecutionProvider"])
    return NumpyEngine(snapshot)


def ignoring_overflow() -> np.errstate:
    """The features of a request may be too large for the model. The caller checks that answers are finite."""
    return np.errstate(over="ignore", invalid="ignore", divide="ignore")


def _has_cuda(required: bool) -> bool:
    """True if torch can use a GPU. Loads torch only if there is a driver, or if a GPU is required."""
    if not required and not Path("/dev/nvidiactl").exists():
        return False
    try:
        import torch
    except ImportError:
        if required:
            raise EngineError(
                "SGF_DEVICE is cuda, but torch is not installed; install the GPU image or set SGF_DEVICE=cpu"
            ) from None
        return False
    has_cuda = torch.cuda.is_available()
    if required and not has_cuda:
        raise EngineError("SGF_DEVICE is cuda, but torch.cuda.is_available() is False; check the driver of the GPU")
    return has_cuda
