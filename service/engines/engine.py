"""The interface of all engines, the numpy engine, and the choice of an engine by the settings.

The engines agree within 1e-5: numpy (the default on a CPU, without further libraries), ONNX Runtime (SGF_BACKEND=onnx), and
torch (the default on a GPU, or SGF_BACKEND=torch).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from model_store import Snapshot
from service.settings import Backend
from sgformer import Answers, ExtendedAnswers, NewNodes
from sgformer.device import Device, DeviceError, choose_device
from sgformer.request_time.extension import Mode


class EngineError(Exception):
    """This worker cannot run this version. The version is not at fault: another worker may run it."""


class Engine(Protocol):
    """Answers are numpy arrays in host memory, one row per node, in the order of the request."""

    name: str
    backend: Backend | None
    """The backend of the same engine in the compute process; None if expensive requests run in a thread of this process
    (torch, on any device)."""
    batch_invariant: bool
    """True if answers are bitwise independent of batch composition, so that requests may share a batch."""

    def known(self, rows: NDArray[np.int64]) -> Answers:
        """The logits are read from the snapshot, not computed, so that all engines return the same logits."""

    def extended(self, new: NewNodes, mode: Mode = "exact", max_recompute: int | None = None) -> ExtendedAnswers:
        """Raises what `sgformer.extend` raises."""


class NumpyEngine:
    name, batch_invariant = "numpy", True
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
    try:
        place = choose_device(device, "SGF_DEVICE")
    except DeviceError as error:
        raise EngineError(str(error)) from None
    cuda = place != "cpu"
    if backend == "torch" or (backend == "auto" and cuda):
        from service.engines.torch_engine import TorchEngine

        return TorchEngine(snapshot, place)
    if backend == "onnx":
        from service.engines.onnx_engine import OnnxEngine

        return OnnxEngine(snapshot, ["CUDAExecutionProvider", "CPUExecutionProvider"] if cuda else ["CPUExecutionProvider"])
    return NumpyEngine(snapshot)


def ignoring_overflow() -> np.errstate:
    """The features of a request may be too large for the model. The caller checks that answers are finite."""
    return np.errstate(over="ignore", invalid="ignore", divide="ignore")
