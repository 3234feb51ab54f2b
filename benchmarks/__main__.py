"""Runs the contests of all rooms, or of those named, and writes docs/benchmarks.md and .json; exits 1 if a bar is missed.

python -m benchmarks [ROOM ...]      the rooms are the keys of ROOMS
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

from benchmarks import (
    ablation,
    caching,
    concurrency,
    generators,
    http,
    mathematics,
    mixed,
    overload,
    retraining,
    startup,
    store,
    training,
)
from benchmarks.peer import CLASSES, HIDDEN, LAYERS
from benchmarks.result import Result

DOCS = Path(__file__).parent.parent / "docs"
ROOMS: dict[str, tuple[Callable[[], list[Result]], ...]] = {
    "sgformer": mathematics.CONTESTS,
    "model_store": store.CONTESTS,
    "training": training.CONTESTS,
    "service": http.CONTESTS,
    "caching": caching.CONTESTS,
    "generators": generators.CONTESTS,
    "concurrency": concurrency.CONTESTS,
    "overload": overload.CONTESTS,
    "mixed": mixed.CONTESTS,
    "ablation": ablation.CONTESTS,
    "startup": startup.CONTESTS,
    "retraining": retraining.CONTESTS,
}
HEAD = """# Benchmarks

Written by `make bench`; each table is one run, contestants taking turns, medians with the quartiles in brackets. The
machine has 2 cores, is shared and noisy: the ratios are what counts.
"""
ABOUT = {
    "sgformer": f"""PyG is PyTorch Geometric's `SGFormer` with the same sizes (hidden {HIDDEN}, {LAYERS} GCN layers, 1 head,
{CLASSES} classes) and the same weights, in a process of its own. Peak memory is what a run adds to a process that already
holds the graph and the model. In slower hours of the same machine, on 2026-11-17, debian_trixie's full forward was 4.69x and
its training step 3.61x; the code of 2026-11-16, run right after that, had 5.16x and 3.93x.""",
    "model_store": """Private memory is anonymous memory (RssAnon): pages of mapped files, which the kernel can write back
and drop at any time, are not in it. Private pages (smaps) are those that no other process shares, mapped files included.""",
    "training": """PyG as above; an epoch is a training step and a forward in evaluation mode, for the validation score.
Half of the nodes train and a quarter validates; in its last stages ours leaves out what only the other nodes' answers need,
PyG's model computes all of them. In slower hours of the same machine, on 2026-11-17, debian_trixie's epoch was 3.91x.""",
    "service": """One worker, everything on but the cache, 16 connections that ask again as soon as they are answered. The
load comes from another process on the same two cores. The floor is an empty FastAPI endpoint that validates the same body
with the same pydantic model and answers `{}`. MLServer, BentoML and LitServe have one worker, the same mathematics (all read
the logits of known nodes from the snapshot), and environments of their own; no request waits for others to make a batch
(ours merges those that come at the same moment, and waits for none). Rates are answers per second, with quartiles over the
rounds. This table, and those of caching, startup and retraining, are of the code before the queue of admission.md. After it,
at 10,000 nodes, the ratios to the empty endpoint were 1.55x (known node), 0.82x (100 nodes) and 0.65x (new node).""",
    "caching": """One worker, 16 connections; a few hundred questions again and again, so that every look-up hits, or ten
thousand in turn and a cache that is too small for them, so that none does. Redis runs on the same two cores.""",
    "generators": """The rooms below send their load with `benchmarks/load.py`. In a closed loop every connection sends its
next request as soon as the last one is answered. In an open loop every request has an intended time, at a constant rate or
as a Poisson process, and its latency counts from that time, also while the request waits for an idle connection: a server
that stalls does not slow down its own measurement (coordinated omission). Connections are opened before the run; requests
that are due are sent once per millisecond, so that a latency includes up to 1 ms of the generator. This table compares the
closed loop with h2load, a generator in C, on one worker and in turns.""",
    "concurrency": """One worker, single known nodes, closed loop: every connection sends again as soon as it is answered, or
refused, without a pause. Turns of 3 s with different numbers of connections follow each other, over five rounds. A turn
starts once the server has accepted all connections. The capacity is the goodput with 64 connections; with N connections and
no refusals the mean latency is N / capacity. The empty FastAPI endpoint has no admission: it shows what uvicorn and the
generator make of as many connections.""",
    "overload": """One worker, open loop, Poisson arrivals, up to 3,500 connections, generator on the same two cores. The
capacity is the goodput of a closed loop with 64 connections. The sweep of offered rates runs twice, 8 s for each rate, up
and then down; the run at 2x lasts 60 s. Goodput counts answers with status 200 only. Memory is compared after the sweep,
when the worker has had as many connections, and after those 60 s. The CPU time of a refusal comes from a fit over all runs
at or above the capacity: user and system time of the worker = answers x cost of an answer + refusals x cost of a refusal.
What the kernel does for a packet in the context of the generator is not in it. "Cores" is the CPU time of the worker per
second: below 1 at or above the capacity, other processes took its time.""",
    "mixed": """One worker, debian_trixie (68,820 nodes) with 3 GCN layers. Known nodes and ordinary new nodes (5 neighbours,
each of a degree of at most 5) are requested at half of the rate that 16 connections get in a closed loop, one kind at a
time; open loop, Poisson arrivals. Beside them, 10 requests per second ask for an exact new node that is linked to the
largest hub. Turns of 10 s with and without those alternate, five rounds, with the same arrivals; medians of their
quantiles.""",
    "ablation": """One worker with the service's HTTP protocol, with that protocol without one of its parts, and with plain
uvicorn, in turns. Queue: 100 known nodes, open loop, 10 s; an answer that comes later than 0.5 s after the intended time of
its request counts as useless. One packet: head and body of an answer in one packet. Timers: of 200 clients a quarter each
send nothing, part of a head, a head without its body, and part of a body; counted are the connections that are open and
without an answer after 13 s. Last request: 20 keep-alive clients send every 50 ms and do not watch idle connections, while
the server is stopped by SIGTERM and started again; a connection that cannot be opened is not counted.""",
    "startup": """From starting `sgf-serve` to its first answer, and in brackets the steps, each measured by itself in a
process of its own; `verify` reads every byte. Private memory is anonymous memory (RssAnon).""",
    "retraining": """One worker and its own job (20,000 nodes, 200,000 edges, one thread, idle priority); the load comes from
another process of the same session, so that two cores have three things to do. Quiet and training turns of 4 s alternate;
medians of their quantiles.""",
}


def main(rooms: list[str]) -> int:
    if unknown := set(rooms) - set(ROOMS):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(ROOMS)}")
    pages = json.loads((DOCS / "benchmarks.json").read_text())
    met = True
    for room in rooms or ROOMS:
        results = [_said(result) for measure in ROOMS[room] for result in measure()]
        pages[room] = _facts() | {"results": [asdict(result) for result in results]}
        met &= all(result.met for result in results)
    (DOCS / "benchmarks.json").write_text(json.dumps(pages, indent=1) + "\n")
    (DOCS / "benchmarks.md").write_text(HEAD + "".join(_section(room, pages[room]) for room in ROOMS if room in pages))
    return 0 if met else 1


def _said(result: Result) -> Result:
    print(f"{result.claim}: {result.ours} / {result.against} = {result.shown_ratio} {result.verdict}", flush=True)
    return result


def _facts() -> dict[str, Any]:
    versions = f"torch {torch.__version__}, numpy {numpy.__version__}, torch-geometric {torch_geometric.__version__}"
    machine = f"{torch.get_num_threads()} threads, {versions}, Python {platform.python_version()}"
    return {"date": datetime.now(UTC).date().isoformat(), "machine": machine}


def _section(room: str, page: dict[str, Any]) -> str:
    head = f"\n## {room}\n{ABOUT[room]}\nRun of {page['date']}; {page['machine']}.\n\n"
    rows = "".join(
        f"| {result.claim} | {result.ours} | {result.against} | {result.shown_ratio} | {result.verdict} |\n"
        for result in (Result(**values) for values in page["results"])
    )
    return f"{head}| claim | ours | against | ratio | bar |\n|---|---|---|---|---|\n{rows}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
