"""The rooms and their folders: what each may import, what a room exports, and what serving must not load."""

from __future__ import annotations

import ast
import graphlib
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
NOUNS = "adjacency config errors edge_list features graph histograms states sums weights"
FOLDERS_MAY_IMPORT = {
    "sgformer/arrays": "",
    "sgformer/request_time": f"arrays {NOUNS}",
    "sgformer/live": f"arrays request_time {NOUNS}",
    "sgformer/explain": f"arrays live request_time {NOUNS}",
    "sgformer/nearest": "arrays",
    "sgformer/torch_model": f"arrays request_time {NOUNS}",
    "sgformer/full_graph": f"arrays request_time torch_model device {NOUNS}",
    "sgformer/importers": f"torch_model {NOUNS}",
    "model_store/format": "errors feature_schema",
    "model_store/publish": "format errors feature_schema snapshot",
    "model_store/versions": "format publish errors snapshot logged_changes",
    "model_store/graph_log": "versions errors",
    "model_store/live_graph": "format graph_log errors snapshot",
    "model_store/cli": "format publish versions demo errors store suggestions",
    "training/data": "",
    "training/fit": "data",
    "training/report": "data fit",
    "training/release": "data fit report",
    "training/cli": "data fit report release",
    "training/paper": "data fit cli",
    "service/telemetry": "",
    "service/engines": "redis_connection settings",
    "service/live": "engines telemetry admission errors node_features redis_connection request_fields settings",
    "service/rollout": "engines live telemetry errors redis_connection settings store_reader",
    "service/predict": "engines live telemetry errors node_features redis_connection request_fields settings",
    "service/monitoring": "engines predict rollout telemetry settings",
    "service/jobs": "telemetry settings redis_connection",
    "service/console": "",
    "service/graph_cli": "",
    "service/explain": "engines live predict telemetry errors request_fields settings",
    "service/http": (
        "console engines explain live rollout predict monitoring jobs telemetry admission errors request_fields settings "
        "store_reader"
    ),
}
"""By folder, the other folders and the modules of its room that it may import, for annotations too."""
EXCEPTIONS = {
    ("sgformer/arrays/torch_operations.py", "torch_model"),  # unit_rows, whose gradient is written by hand
    ("training/data/user_data.py", "fit"),  # the tasks, by which labels are checked
    ("training/release/delivery.py", "cli"),  # run events, the contract with the service
    ("service/predict/batching.py", "http"),  # the type of a request
    ("service/predict/predictor.py", "http"),
    ("service/explain/explainer.py", "http"),
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


def imported_modules(path: Path) -> set[str]:
    """With `from package import name`, both `package` and `package.name`: the name may be a module."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_rooms_import_only_what_the_design_allows(room: str) -> None:
    files = list((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        packages = {name.partition(".")[0] for name in imported_modules(path)}
        forbidden = (packages & set(MAY_IMPORT)) - MAY_IMPORT[room] - {room}
        assert not forbidden, f"{path.relative_to(ROOT)} imports {forbidden}"


@pytest.mark.parametrize("folder", FOLDERS_MAY_IMPORT)
def test_folders_import_only_what_the_table_allows(folder: str) -> None:
    room, own_name = folder.split("/")
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    for path in files:
        targets = {name.split(".")[1] for name in imported_modules(path) if name.startswith(f"{room}.")}
        file = path.relative_to(ROOT).as_posix()
        allowed = {own_name, *FOLDERS_MAY_IMPORT[folder].split(), *(name for where, name in EXCEPTIONS if where == file)}
        assert targets <= allowed, f"{file} imports {targets - allowed}"


def test_the_table_has_every_folder_and_no_cycle() -> None:
    folders = {path.parent.relative_to(ROOT).as_posix() for room in MAY_IMPORT for path in ROOT.glob(f"{room}/*/*.py")}
    assert folders == set(FOLDERS_MAY_IMPORT)
    table = {
        folder: {f"{folder.split('/')[0]}/{name}" for name in names.split()} for folder, names in FOLDERS_MAY_IMPORT.items()
    }
    graphlib.TopologicalSorter(table).prepare()  # raises CycleError


def test_request_time_mathematics_loads_numpy_only() -> None:
    result = subprocess.run([sys.executable, "-c", REQUEST_TIME], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("room", ["sgformer", "model_store", "training", "sgformer_client"])
def test_exported_names_exist_and_are_sorted(room: str) -> None:
    package = importlib.import_module(room)
    assert list(package.__all__) == sorted(package.__all__)
    for name in package.__all__:
        assert getattr(package, name) is not None
