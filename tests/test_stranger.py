"""A stranger's path: two CSV files, two commands, a prediction."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.service.serving import in_processes
from tests.training.samples import write_folder


def test_two_csv_files_become_a_served_model_in_two_commands(tmp_path: Path) -> None:
    folder, store = write_folder(tmp_path / "pets", "csv"), tmp_path / "models"
    command = [sys.executable, "-m", "training", "--data", str(folder), "--activate", "--store", str(store), "--epochs", "3"]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    with in_processes(store) as (client, _process, _lines):
        manifest = client.get("/models/1").json()
        new = {"id": "mine", "features": [1.0] * manifest["config"]["in_features"], "neighbors": ["n1", "n2"]}
        answer = client.post("/predict", json={"nodes": ["n19"], "new_nodes": [new]}).json()
    known, mine = answer["predictions"]
    assert (known["node"], mine["node"], mine["exactness"]) == ("n19", "mine", "exact")
    assert known["class"] in ("blue", "red")
    np.testing.assert_allclose(sum(mine["probabilities"]), 1, atol=1e-5)
