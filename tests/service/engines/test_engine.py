"""What engines compute where: the torch engine on a device whose free memory is made up, ONNX Runtime and numpy."""

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

ROOM, NO_ROOM = 2**30, 2**10


@pytest.mark.parametrize(("free", "placed"), [(ROOM, True), (NO_ROOM, False)])
def test_states_are_placed_where_they_fit_and_else_gathered_from_the_host(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch, free: int, placed: bool
) -> None:
    engine, expected = TorchEngine(snapshot, "cpu"), NumpyEngine(snapshot)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free, 2**40))
    engine._states = states = engine._place(snapshot.states)
    assert [isinstance(one, torch.Tensor) for one in (states.inputs, *states.layers)] == [placed] * (1 + len(states.layers))
    same = snapshot.states.layers[0] is snapshot.states.inputs
    assert (states.layers[0] is states.inputs) == same, "what is one array stays one"
    new = NewNodes.build(np.ones((2, 5)), [[3, 7], [0]], num_nodes=60, num_features=5)
    rows = np.array([0, 59, 3])
    np.testing.assert_allclose(engine.extended(new).logits, expected.extended(new).logits, atol=1e-5)
    np.testing.assert_allclose(engine.known(rows).embeddings, expected.known(rows).embeddings, atol=1e-5)


def test_onnx_takes_known_nodes_from_numpy_bit_for_bit(snapshot: Snapshot) -> None:
    engine, expected = OnnxEngine(snapshot, ["CPUExecutionProvider"]), NumpyEngine(snapshot)
    del engine._session  # known nodes need no call of the runtime
    rows = np.array([0, 59, 3, 3])
    together = engine.known(rows)
    assert together.embeddings.tobytes() == expected.known(rows).embeddings.tobytes()
    for place, row in enumerate(rows):
        assert engine.known(np.array([row])).embeddings.tobytes() == together.embeddings[place].tobytes()


def test_a_worker_without_a_gpu_blames_itself(snapshot: Snapshot) -> None:
    if torch.cuda.is_available():
        pytest.skip("NOT RUN: this machine has a GPU")
    with pytest.raises(EngineError, match="SGF_DEVICE is cuda, and torch sees no GPU here"):
        engine_for(snapshot, "auto", "cuda")


@pytest.mark.parametrize("states", ["float32", "float16"])
def test_a_loaded_model_knows_whether_its_answers_are_rounded(tmp_path: Path, states: str) -> None:
    Store(tmp_path).publish("demo", small_contents(), onnx=False, states=states)
    model = load(Store(tmp_path).model("demo"), 1, Settings(store=tmp_path))
    assert model.rounding_error == model.snapshot.rounding_error
    assert (model.rounding_error is None) == (states == "float32")
    model.retire()
