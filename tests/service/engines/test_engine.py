"""Engines give the same answers: torch with faked GPU memory, ONNX Runtime and numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model_store import Snapshot, Store
from service.engines.engine import EngineError, NumpyEngine, engine_for
from service.engines.onnx_engine import OnnxEngine
from service.engines.served_model import load
from service.engines.torch_engine import TorchEngine
from service.settings import Settings
from sgformer import NewNodes
from tests.model_store.samples import small_contents

ENOUGH, TOO_LITTLE = 2**30, 2**10


@pytest.mark.parametrize(("free", "placed"), [(ENOUGH, True), (TOO_LITTLE, False)])
def test_states_that_do_not_fit_on_the_gpu_stay_in_host_memory(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch, free: int, placed: bool
) -> None:
    engine, expected = TorchEngine(snapshot, "cpu"), NumpyEngine(snapshot)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free, 2**40))
    engine._states = states = engine._place(snapshot.states)
    assert {isinstance(array, torch.Tensor) for array in (states.inputs, *states.layers)} == {placed}
    same = snapshot.states.layers[0] is snapshot.states.inputs
    assert (states.layers[0] is states.inputs) == same, "an array is copied once"
    new = NewNodes.build(np.ones((2, 5)), [[3, 7], [0]], num_nodes=60, num_features=5)
    rows = np.array([0, 59, 3])
    np.testing.assert_allclose(engine.extended(new).logits, expected.extended(new).logits, atol=1e-5)
    np.testing.assert_allclose(engine.known(rows).embeddings, expected.known(rows).embeddings, atol=1e-5)


def test_onnx_answers_for_known_nodes_equal_numpy_bit_for_bit(snapshot: Snapshot) -> None:
    engine, expected = OnnxEngine(snapshot, ["CPUExecutionProvider"]), NumpyEngine(snapshot)
    del engine._session  # known nodes need no call of the runtime
    rows = np.array([0, 59, 3, 3])
    batch = engine.known(rows)
    assert batch.embeddings.tobytes() == expected.known(rows).embeddings.tobytes()
    for i, row in enumerate(rows):
        assert engine.known(np.array([row])).embeddings.tobytes() == batch.embeddings[i].tobytes()


def test_a_required_gpu_that_is_missing_is_an_engine_error(snapshot: Snapshot) -> None:
    if torch.cuda.is_available():
        pytest.skip("NOT RUN: this machine has a GPU")
    with pytest.raises(EngineError, match=r"SGF_DEVICE is cuda, but torch\.cuda\.is_available\(\) is False"):
        engine_for(snapshot, "auto", "cuda")


@pytest.mark.parametrize("states", ["float32", "float16"])
def test_a_served_model_has_a_rounding_error_if_its_states_are_half_precision(tmp_path: Path, states: str) -> None:
    Store(tmp_path).publish("demo", small_contents(), onnx=False, states=states)
    model = load(Store(tmp_path).model("demo"), 1, Settings(store=tmp_path))
    assert model.rounding_error == model.snapshot.rounding_error
    assert (model.rounding_error is None) == (states == "float32")
    model.retire()
