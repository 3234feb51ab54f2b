"""The rooms of the house: who may import whom, what a room exports, and what serving must not load."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "sgformer": set(),
    "model_store": {"sgformer"},
    "training": {"sgformer", "model_store"},
    "service": {"sgformer", "model_store", "sgformer_client"},
    "sgformer_client": set(),
}
REQUEST_TIME = """
import sys
import numpy as np
from sgformer import AttentionSums, Adjacency, InferenceModel, ModelConfig, NewNodes, NodeStates, extend
from sgformer.weights import expected_shapes

config = ModelConfig(in_features=3, out_features=2, hidden=4, layers=2)
weights = {name: np.ones(shape) for name, shape in expected_shapes(config).items()}
model = InferenceModel(config, weights)
rows = np.ones((5, 4), dtype=np.float32)
sums = AttentionSums.of_rows("frobenius", *model.project(rows, "query", "key", "value"))
states = NodeStates(rows, (rows, rows, rows), (rows,))
adjacency = Adjacency.from_edges([[0, 1], [1, 2]], 5)
new = NewNodes.build(np.ones((1, 3)), [[0, 1]], num_nodes=5, num_features=3)
assert extend(model, states, sums, adjacency, new).logits.shape == (1, 2)
assert model.known(states, sums, np.array([1, 2])).logits.shape == (2, 2)
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted(loaded & {"torch", "scipy", "sklearn", "torch_geometric"}))
"""


def imported_packages(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_rooms_import_only_what_the_design_allows(room: str) -> None:
    files = list((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        forbidden = (imported_packages(path) & set(MAY_IMPORT)) - MAY_IMPORT[room] - {room}
        assert not forbidden, f"{path.relative_to(ROOT)} imports {forbidden}"


def test_request_time_mathematics_loads_numpy_only() -> None:
    result = subprocess.run([sys.executable, "-c", REQUEST_TIME], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("room", ["sgformer", "model_store", "training", "sgformer_client"])
def test_exported_names_exist_and_are_sorted(room: str) -> None:
    package = importlib.import_module(room)
    assert list(package.__all__) == sorted(package.__all__)
    for name in package.__all__:
        assert getattr(package, name) is not None
