"""Runs every contest and writes docs/benchmarks.md and docs/benchmarks.json; exits 1 where a bar was missed."""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import numpy
import torch
import torch_geometric

from benchmarks.claims import CONTESTS, Result
from benchmarks.peer import CLASSES, HIDDEN, LAYERS

DOCS = Path(__file__).parent.parent / "docs"
HEAD = """# Benchmarks

Written by `make bench` on {date}: one run, contestants taking turns (PyG and ours in processes of their own), medians with
the quartiles in brackets. {machine}.
PyG is PyTorch Geometric's `SGFormer` with the same sizes ({sizes}) and the same weights. Peak memory is what a run adds
to a process of its own that already holds the graph and the model.

| claim | ours | against | ratio | bar |
|---|---|---|---|---|
"""


def main() -> int:
    results: list[Result] = []
    for measure in CONTESTS:
        for result in measure():
            print(f"{result.claim}: {result.ours} / {result.against} = {_ratio(result)} {_verdict(result)}", flush=True)
            results.append(result)
    facts = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{torch.get_num_threads()} threads, torch {torch.__version__}, numpy {numpy.__version__}, "
        f"torch-geometric {torch_geometric.__version__}, Python {platform.python_version()}",
        "sizes": f"hidden {HIDDEN}, {LAYERS} GCN layers, 1 head, {CLASSES} classes",
    }
    DOCS.mkdir(exist_ok=True)
    (DOCS / "benchmarks.json").write_text(json.dumps(facts | {"results": [asdict(r) for r in results]}, indent=1) + "\n")
    rows = [f"| {r.claim} | {r.ours} | {r.against} | {_ratio(r)} | {_verdict(r)} |\n" for r in results]
    (DOCS / "benchmarks.md").write_text(HEAD.format(**facts) + "".join(rows))
    return 0 if all(result.met for result in results) else 1


def _ratio(result: Result) -> str:
    return f"{result.ratio:,.0f}x" if result.ratio >= 100 else f"{result.ratio:.2f}x"


def _verdict(result: Result) -> str:
    return f"{result.bar} {'met' if result.met else 'MISSED'}" if result.bar else ""


if __name__ == "__main__":
    sys.exit(main())
