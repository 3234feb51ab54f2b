"""Runs the contests of all rooms, or of the named rooms, and writes docs/benchmarks.md and .json.

python -m benchmarks [ROOM ...]      the rooms are the keys of ROOMS; exits 1 if a bar is missed
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import torch
import torch_geometric

from benchmarks import ablation, caching, mathematics, predict, training
from benchmarks.concurrency import concurrency
from benchmarks.generators import generators
from benchmarks.mixed import mixed
from benchmarks.overload import overload
from benchmarks.results import Result
from benchmarks.retraining import retraining
from benchmarks.startup import startup
from benchmarks.store import snapshots

DOCS = Path(__file__).parent.parent / "docs"
ROOMS: dict[str, tuple[Callable[[], list[Result]], ...]] = {
    "sgformer": (mathematics.against_pyg, mathematics.flat_in_the_graph, mathematics.hubs_cost_nothing_extra),
    "model_store": (snapshots,),
    "training": (training.against_pyg, training.a_million_nodes),
    "service": (predict.predict, predict.inline),
    "caching": (caching.hits, caching.misses),
    "generators": (generators,),
    "concurrency": (concurrency,),
    "overload": (overload,),
    "mixed": (mixed,),
    "ablation": (ablation.one_packet, ablation.queue, ablation.timers, ablation.last_request),
    "startup": (startup,),
    "retraining": (retraining,),
}
ABOUT = (Path(__file__).parent / "rooms.md").read_text().split("\n## ")
"""The head of docs/benchmarks.md, and a text per room that begins with the name of the room."""


def main(rooms: list[str]) -> int:
    if unknown := set(rooms) - set(ROOMS):
        raise SystemExit(f"unknown rooms: {', '.join(sorted(unknown))}; expected {', '.join(ROOMS)}")
    pages = json.loads((DOCS / "benchmarks.json").read_text())
    all_met = True
    for room in rooms or ROOMS:
        results = [result for measure in ROOMS[room] for result in _measure_and_print(measure)]
        pages[room] = _run_facts() | {"results": [asdict(result) for result in results]}
        all_met &= all(result.met for result in results)
    (DOCS / "benchmarks.json").write_text(json.dumps(pages, indent=1) + "\n")
    head, *texts = ABOUT
    sections = [_section(text, pages[room]) for text in texts if (room := text.partition("\n")[0]) in pages]
    (DOCS / "benchmarks.md").write_text(head.rstrip() + "\n" + "".join(sections))
    return 0 if all_met else 1


def _measure_and_print(measure: Callable[[], list[Result]]) -> list[Result]:
    results = measure()
    for result in results:
        print(f"{result.claim}: {result.ours} / {result.against} = {result.shown_ratio} {result.verdict}", flush=True)
    return results


def _run_facts() -> dict[str, Any]:
    versions = f"torch {torch.__version__}, numpy {numpy.__version__}, torch-geometric {torch_geometric.__version__}"
    machine = f"{torch.get_num_threads()} threads, {versions}, Python {platform.python_version()}"
    return {"date": datetime.now(UTC).date().isoformat(), "machine": machine}


def _section(text: str, page: dict[str, Any]) -> str:
    head = f"\n## {text.rstrip()}\nRun of {page['date']}; {page['machine']}.\n\n"
    rows = "".join(
        f"| {result.claim} | {result.ours} | {result.against} | {result.shown_ratio} | {result.verdict} |\n"
        for result in (Result(**values) for values in page["results"])
    )
    return f"{head}| claim | ours | against | ratio | bar |\n|---|---|---|---|---|\n{rows}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
