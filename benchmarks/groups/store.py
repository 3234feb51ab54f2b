"""The cost of a snapshot of a million nodes: memory to publish it, memory to open it, time to verify it (sha256sum).

python -m benchmarks.groups.store publish STORE       publishes, and prints its peak memory
python -m benchmarks.groups.store open STORE          opens, replays the probes, prints a line; at the next line of input,
                                                      prints its memory
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.graphs import uniform
from benchmarks.memory import PeakAnonymous, private_pages, status_bytes
from benchmarks.model_processes import exchange_line
from benchmarks.results import Result, slower, smaller, time_in_turns
from model_store import Store
from model_store.format.files import sha256_of_all
from sgformer import Graph, ModelConfig

NODES, EDGES, FEATURES = 1_000_000, 5_000_000, 64
ALLOWED_BYTES = 60e6
"""Allowed growth of a process that opens a snapshot of any size."""


def snapshots() -> list[Result]:
    with tempfile.TemporaryDirectory() as root:
        published = json.loads(_start("publish", root).communicate()[0])
        folder = Path(root) / "large" / "1"
        names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        size = f"{NODES:,} nodes ({sum((folder / name).stat().st_size for name in names) / 1e6:,.0f} MB)"
        first, second = _open_twice(root)
        claim = f"publishing {size}: peak private memory, the graph itself included, against features and edges"
        growth = "opening it, every byte verified: growth of the process, against 60 MB"
        private = "private pages that it adds to a second process, probes replayed, against 60 MB"
        return [
            smaller(claim, published["peak"], published["graph"], 1.5),
            smaller(growth, first["growth"], ALLOWED_BYTES, 1),
            smaller(private, second["private"], ALLOWED_BYTES, 1),
            _hashing(folder, names),
        ]


def _hashing(folder: Path, names: list[str]) -> Result:
    tool = shutil.which("sha256sum")
    if tool is None:
        raise SystemExit("sha256sum is not installed")
    times = time_in_turns(
        {
            "ours": lambda: sha256_of_all(folder, names),
            "theirs": lambda: subprocess.run([tool, *names], cwd=folder, check=True, capture_output=True),
        },
        rounds=5,
        warmups=1,
    )
    return slower("sha256 of all its files, against sha256sum over the same files", times["ours"], times["theirs"], 1.5)


def _open_twice(root: str) -> list[dict[str, Any]]:
    """Measures two processes while both have the snapshot open: a page that both have mapped is private to neither."""
    both = [_start("open", root) for _ in range(2)]
    for process in both:
        exchange_line(process, None)
    results = [json.loads(exchange_line(process, "measure")) for process in both]
    for process in both:
        process.communicate()
    return results


def _start(role: str, root: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.groups.store", role, root]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _publish(root: str) -> None:
    from model_store import Contents
    from sgformer import SGFormer

    model = SGFormer(ModelConfig(in_features=FEATURES, out_features=10, layers=2)).eval()
    store = Store(root)
    small = Contents(model.config, model.weights(), uniform(1000, 5000, FEATURES))
    store.publish("small", small)  # imports everything before the measurement
    before = status_bytes("RssAnon")
    graph = uniform(NODES, EDGES, FEATURES)
    with PeakAnonymous() as peak:
        store.publish("large", Contents(model.config, model.weights(), graph), activate=True)
    print(json.dumps({"peak": peak.bytes - before, "graph": _graph_bytes(graph)}))


def _graph_bytes(graph: Graph) -> int:
    arrays: tuple[Any, ...] = (graph.features, graph.adjacency.indptr, graph.adjacency.indices)
    return sum(int(array.nbytes) for array in arrays)


def _open(root: str) -> None:
    versions = Store(root).model("large")
    resident, private = status_bytes("VmRSS"), private_pages()
    snapshot = versions.open()
    growth = status_bytes("VmRSS") - resident
    snapshot.probes.replay(snapshot, snapshot.manifest.probe_tolerance)
    print("opened", flush=True)
    sys.stdin.readline()
    print(json.dumps({"growth": growth, "private": private_pages() - private}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    {"publish": _publish, "open": _open}[sys.argv[1]](sys.argv[2])
