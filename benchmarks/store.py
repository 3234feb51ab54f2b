"""What a snapshot of a million nodes costs: to publish (memory), to open (memory), to verify (against sha256sum).

python -m benchmarks.store publish STORE       publishes in a process of its own, prints its peak memory
python -m benchmarks.store open STORE          opens and replays, says so, then measures itself at the next line
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contest import contest
from benchmarks.graphs import uniform
from benchmarks.memory import PeakAnonymous, private_pages, status
from benchmarks.result import Result, at_most, smaller
from model_store import Store
from model_store.format.files import sha256_of_all
from sgformer import Graph, ModelConfig

NODES, EDGES, FEATURES = 1_000_000, 5_000_000, 64
ALLOWED = 60e6
"""Bytes that a process may grow by when it opens a snapshot, however large that is."""


def snapshots() -> list[Result]:
    with tempfile.TemporaryDirectory() as root:
        published = json.loads(_process("publish", root).communicate()[0])
        folder = Path(root) / "large" / "1"
        names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        size = f"{NODES:,} nodes ({sum((folder / name).stat().st_size for name in names) / 1e6:,.0f} MB)"
        first, second = _opened_together(root)
        claim = f"publishing {size}: peak private memory, the graph itself included, against features and edges"
        return [
            smaller(claim, published["peak"], published["graph"], 1.5),
            smaller("opening it, every byte verified: growth of the process, against 60 MB", first["growth"], ALLOWED, 1),
            smaller(
                "private pages that it adds to a second process, probes replayed, against 60 MB",
                second["private"],
                ALLOWED,
                1,
            ),
            _hashing(folder, names),
        ]


CONTESTS: tuple[Callable[[], list[Result]], ...] = (snapshots,)


def _hashing(folder: Path, names: list[str]) -> Result:
    tool = shutil.which("sha256sum")
    if tool is None:
        raise SystemExit("sha256sum is not installed")
    times = contest(
        {
            "ours": lambda: sha256_of_all(folder, names),
            "theirs": lambda: subprocess.run([tool, *names], cwd=folder, check=True, capture_output=True),
        },
        rounds=5,
        warmups=1,
    )
    return at_most("sha256 of all its files, against sha256sum over the same files", times["ours"], times["theirs"], 1.5)


def _opened_together(root: str) -> list[dict[str, Any]]:
    """Two at once, each measured while the other holds its own: a page that both have mapped is private to neither."""
    both = [_process("open", root) for _ in range(2)]
    for process in both:
        _line(process)
    results = [json.loads(_line(process, "measure")) for process in both]
    for process in both:
        process.communicate()
    return results


def _process(role: str, root: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.store", role, root]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str], order: str | None = None) -> str:
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process has no pipes")
    if order:
        print(order, file=process.stdin, flush=True)
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("the process died")
    return line


def _publish(root: str) -> None:
    from model_store import Contents
    from sgformer import SGFormer

    model = SGFormer(ModelConfig(in_features=FEATURES, out_features=10, layers=2)).eval()
    store = Store(root)
    store.publish("small", Contents(model.config, model.weights(), uniform(1000, 5000, FEATURES)))  # loads all code
    before = status("RssAnon")
    graph = uniform(NODES, EDGES, FEATURES)
    with PeakAnonymous() as peak:
        store.publish("large", Contents(model.config, model.weights(), graph), activate=True)
    print(json.dumps({"peak": peak.bytes - before, "graph": _bytes(graph)}))


def _bytes(graph: Graph) -> int:
    arrays: tuple[Any, ...] = (graph.features, graph.adjacency.indptr, graph.adjacency.indices)
    return sum(int(array.nbytes) for array in arrays)


def _open(root: str) -> None:
    versions = Store(root).model("large")
    resident, private = status("VmRSS"), private_pages()
    snapshot = versions.open()
    growth = status("VmRSS") - resident
    snapshot.probes.replay(snapshot, snapshot.manifest.probe_tolerance)
    print("opened", flush=True)
    sys.stdin.readline()
    print(json.dumps({"growth": growth, "private": private_pages() - private}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    {"publish": _publish, "open": _open}[sys.argv[1]](sys.argv[2])
