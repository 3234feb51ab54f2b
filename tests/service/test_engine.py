"""Where the states of the torch engine live. No GPU is needed for that: only how much room one has is made up."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model_store import Snapshot
from service.engine import NumpyEngine, TorchEngine
from sgformer import NewNodes

ROOM, NO_ROOM = 2**30, 2**10


@pytest.mark.parametrize(("free", "placed"), [(ROOM, True), (NO_ROOM, False)])
def test_states_are_placed_where_they_fit_and_else_gathered_from_the_host(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch, free: int, placed: bool
) -> None:
    engine, expected = TorchEngine(snapshot, "cpu"), NumpyEngine(snapshot)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free, 2**40))
    engine._states = states = engine._placed(snapshot.states)
    assert [isinstance(one, torch.Tensor) for one in (states.inputs, *states.layers)] == [placed] * (1 + len(states.layers))
    same = snapshot.states.layers[0] is snapshot.states.inputs
    assert (states.layers[0] is states.inputs) == same, "what is one array stays one"
    new = NewNodes.build(np.ones((2, 5)), [[3, 7], [0]], num_nodes=60, num_features=5)
    rows = np.array([0, 59, 3])
    np.testing.assert_allclose(engine.extended(new).logits, expected.extended(new).logits, atol=1e-5)
    np.testing.assert_allclose(engine.known(rows).embeddings, expected.known(rows).embeddings, atol=1e-5)
