"""The time from a folder with two CSV files to the first prediction by name: three commands, as a user types them."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import Result, at_most
from benchmarks.servers import free_port
from training.data.datasets.synthetic import generate

NODES, EDGES, CORES = 20_000, 100_000, 2
LIMIT_SECONDS = 300
COLUMNS = ("age", "visits", "spend", "minutes", "songs", "friends", "skips", "plan", "partner")
PLANS = ("free", "student", "family")


def first_prediction() -> list[Result]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tables(folder / "listeners")
        train = run(folder, "sgf-train", "--data", "listeners", "--activate")
        serve, ask, answer = serve_and_ask(folder)
    if answer["predictions"][0]["exactness"] != "exact":
        raise SystemExit(f"expected an exact prediction, got {answer}")
    total = train + serve + ask
    steps = f"{total:.0f} s (sgf-train {train:.0f} s, sgf-serve {serve:.1f} s, curl {ask:.2f} s)"
    claim = f"from {NODES:,} nodes and {EDGES:,} edges as CSV to a prediction by name, three commands, {CORES} cores"
    return [at_most(claim, steps, f"{LIMIT_SECONDS} s", total / LIMIT_SECONDS, 1)]


def write_tables(folder: Path) -> None:
    """Listeners in ten communities; numbers, a category and a boolean, each of which hints at the community."""
    folder.mkdir()
    data = generate(NODES, EDGES, features=len(COLUMNS))
    *numbers, plan, partner = np.asarray(data.graph.features).T
    plans = np.array(PLANS)[np.digitize(plan, np.quantile(plan, [0.6, 0.8]))]
    columns = [*(np.round(100 + 20 * number, 2) for number in numbers), plans, np.where(partner > 0, "yes", "no")]
    with (folder / "nodes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("id", "label", *COLUMNS))
        writer.writerows(
            (user(row), f"genre {data.labels[row]}", *cells) for row, cells in enumerate(zip(*columns, strict=True))
        )
    with (folder / "edges.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("source", "target"))
        source, target = data.graph.adjacency.edge_index()
        writer.writerows((user(a), user(b)) for a, b in zip(source, target, strict=True) if a < b)


def user(row: int) -> str:
    return f"user-{row}"


def serve_and_ask(folder: Path) -> tuple[float, float, dict[str, Any]]:
    """The seconds until the service is ready, the seconds of the request, and its answer."""
    port, start = free_port(), time.perf_counter()
    features = dict.fromkeys(COLUMNS[:-2], 100) | {"plan": "student", "partner": True}
    node = {"id": "new listener", "neighbors": [user(1), user(2)], "features": features}
    with serving(folder, port):
        run(folder, "curl", "--retry", "600", "--retry-delay", "0", "--retry-all-errors", f"localhost:{port}/health/ready")
        ready = time.perf_counter()
        body = json.dumps({"new_nodes": [node]})
        run(folder, "curl", "--fail", "--json", body, "--output", "answer.json", f"localhost:{port}/predict")
        answered = time.perf_counter()
    return ready - start, answered - ready, json.loads((folder / "answer.json").read_text())


def run(folder: Path, program: str, *words: str) -> float:
    """Runs a program and returns its seconds. Raises SystemExit with its error output if it fails."""
    start = time.perf_counter()
    done = subprocess.run([program, *words], cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{program} failed: {done.stderr[-2000:]}")
    return time.perf_counter() - start


@contextmanager
def serving(folder: Path, port: int) -> Iterator[None]:
    command = ["sgf-serve", "--model", "listeners", "--port", str(port)]
    with (folder / "service.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment(), stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def environment() -> dict[str, str]:
    """An activated environment on two cores."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {name: value for name, value in os.environ.items() if not name.startswith("SGF_")} | {
        "PATH": path,
        "OMP_NUM_THREADS": str(CORES),
    }
