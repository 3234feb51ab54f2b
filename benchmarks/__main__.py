"""Runs all groups of benchmarks, or the named ones, and writes docs/benchmarks.md and .json.

python -m benchmarks [GROUP ...]     a group is a key of GROUPS; exits with 1 if a ratio is worse than required (its bar)
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

from benchmarks.groups import ablation, caching, explanations, live, mathematics, predict, processes, similar, training
from benchmarks.groups.concurrency import concurrency
from benchmarks.groups.first_prediction import first_prediction
from benchmarks.groups.generators import generators
from benchmarks.groups.mixed import mixed
from benchmarks.groups.monitoring import monitoring
from benchmarks.groups.overload import overload
from benchmarks.groups.retraining import retraining
from benchmarks.groups.startup import startup
from benchmarks.groups.store import snapshots
from benchmarks.results import Result

DOCS = Path(__file__).parent.parent / "docs"
GROUPS: dict[str, tuple[Callable[[], list[Result]], ...]] = {
    "sgformer": (mathematics.against_pyg, mathematics.measure_new_node_by_graph_size, mathematics.measure_hub_neighbours),
    "model_store": (snapshots,),
    "training": (training.against_pyg, training.a_million_nodes),
    "processes": (processes.two_processes, processes.on_a_busy_machine),
    "service": (predict.predict, predict.inline),
    "caching": (caching.hits, caching.misses),
    "generators": (generators,),
    "concurrency": (concurrency,),
    "overload": (overload,),
    "mixed": (mixed,),
    "live": (live.one_commit, live.hub, live.batches, live.beside_commits, live.known_nodes_after_commits),
    "explain": (explanations.explanations, similar.similar),
    "monitoring": (monitoring,),
    "ablation": (ablation.one_packet, ablation.queue, ablation.timers, ablation.last_request),
    "startup": (startup,),
    "retraining": (retraining,),
    "first_prediction": (first_prediction,),
}
ABOUT = (Path(__file__).parent / "groups" / "groups.md").read_text().split("\n## ")
"""The head of docs/benchmarks.md, and a text per group that begins with the name of the group."""


def main(groups: list[str]) -> int:
    if unknown := set(groups) - set(GROUPS):
        raise SystemExit(f"unknown groups: {', '.join(sorted(unknown))}; expected {', '.join(GROUPS)}")
    runs = json.loads((DOCS / "benchmarks.json").read_text())
    all_met = True
    for group in groups or GROUPS:
        results = [result for measure in GROUPS[group] for result in _measure_and_print(measure)]
        runs[group] = _run_facts() | {"results": [asdict(result) for result in results]}
        all_met &= all(result.met for result in results)
    (DOCS / "benchmarks.json").write_text(json.dumps(runs, indent=1) + "\n")
    head, *texts = ABOUT
    sections = [_section(text, runs[group]) for text in texts if (group := text.partition("\n")[0]) in runs]
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


def _section(text: str, run: dict[str, Any]) -> str:
    head = f"\n## {text.rstrip()}\nRun of {run['date']}; {run['machine']}.\n\n"
    rows = "".join(
        f"| {result.claim} | {result.ours} | {result.against} | {result.shown_ratio} | {result.verdict} |\n"
        for result in (Result(**values) for values in run["results"])
    )
    return f"{head}| claim | ours | against | ratio | bar |\n|---|---|---|---|---|\n{rows}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
