"""Time, memory and disk of each stage on growing graphs: import, one epoch with evaluation and publishing, refresh, serving.

    python -m benchmarks.scale --nodes 1000000 3000000 10000000 --memory 6 --folder /large/disk
    python -m benchmarks.scale --papers 0.02 --memory 3 --folder /large/disk

Every stage is a process of its own, in a control group with the memory limit of --memory, page cache included (as root;
otherwise the limit is not set, and the output says so). A graph has 10 edges and 64 features per node. The last lines fit
each stage with a straight line in the number of nodes, and extrapolate it to the 111 million nodes of ogbn-papers100M.
Serving is compared with a graph of 10,000 nodes that is made and served in the same way: requests alternate in one run.

--papers makes the files of ogbn-papers100M, in OGB's layout, for a graph with this share of its nodes, edges and labels.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
from pyarrow import parquet

from benchmarks.memory import status_bytes
from benchmarks.servers import Server, service, take_turns
from benchmarks.workload import SMALL, Bodies, new_nodes

EDGES_PER_NODE, FEATURES, CLASSES = 10, 64, 10
CHUNK = 200_000
MODELS = "models"
PAPERS_NODES, PAPERS_EDGES, PAPERS_FEATURES, PAPERS_CLASSES = 111_059_956, 1_615_685_872, 128, 172
PAPERS_PARTS = {"train": 1_207_179, "valid": 125_265, "test": 214_338}
"""Nodes with labels; the others have none."""
TRAIN = "--epochs 1 --batch-nodes 100000 --hidden 64 --layers 2 --gnn-input own --no-checkpoint --json".split()  # noqa: SIM905
OPEN = "import sys; from model_store import Store; s = Store(sys.argv[1]).model('scale').open(); print(s.states.num_nodes)"
Limit = Callable[[], None] | None
"""Called in a new process before the program starts, to set its memory limit."""


@dataclass(frozen=True)
class Stage:
    name: str
    nodes: int
    seconds: float
    cpu_seconds: float
    anonymous_gb: float
    """Of all processes of the stage together, at its peak: memory that the kernel cannot drop."""
    disk_gb: float


def generate(folder: Path, nodes: int) -> None:
    """Tables in parquet, written in chunks. Labels are communities; one end of an edge follows a power law."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((CLASSES, FEATURES), dtype=np.float32)
    folder.mkdir(parents=True)
    names = [f"f{number}" for number in range(FEATURES)]
    schema = pa.schema([("id", pa.int64()), ("label", pa.int64()), *((name, pa.float32()) for name in names)])
    with parquet.ParquetWriter(folder / "nodes.parquet", schema) as writer:
        for start in range(0, nodes, CHUNK):
            ids = np.arange(start, min(start + CHUNK, nodes))
            rows = 2 * rng.standard_normal((len(ids), FEATURES), dtype=np.float32) + means[ids % CLASSES]
            writer.write_table(pa.table([ids, ids % CLASSES, *rows.T], schema=schema))
    schema = pa.schema([("source", pa.int64()), ("target", pa.int64())])
    with parquet.ParquetWriter(folder / "edges.parquet", schema) as writer:
        for start in range(0, nodes * EDGES_PER_NODE, CHUNK * EDGES_PER_NODE):
            count = min(CHUNK * EDGES_PER_NODE, nodes * EDGES_PER_NODE - start)
            source = (nodes * rng.random(count) ** 3).astype(np.int64)
            near = rng.integers(0, nodes // CLASSES, count) * CLASSES + source % CLASSES  # of the same community
            target = np.where(rng.random(count) < 0.7, near, rng.integers(0, nodes, count))
            writer.write_table(pa.table([source, target], schema=schema))


def generate_papers(folder: Path, nodes: int) -> None:
    """The files of ogbn-papers100M: raw/ with npz, and split/time/ with the numbers of nodes."""
    rng, share = np.random.default_rng(0), nodes / PAPERS_NODES
    count = round(PAPERS_EDGES * share)
    (folder / "raw").mkdir(parents=True)
    (folder / "split" / "time").mkdir(parents=True)
    edges = np.stack([rng.integers(0, nodes, count), (nodes * rng.random(count) ** 3).astype(np.int64)])
    features = rng.standard_normal((nodes, PAPERS_FEATURES), dtype=np.float32)
    numbers = {"num_nodes_list": np.array([nodes]), "num_edges_list": np.array([count])}
    np.savez(folder / "raw" / "data.npz", edge_index=edges, node_feat=features, node_year=np.zeros((nodes, 1)), **numbers)
    order, labels, start = rng.permutation(nodes), np.full((nodes, 1), np.nan, dtype=np.float32), 0
    for name, size in PAPERS_PARTS.items():
        members = np.sort(order[start : start + round(size * share)])
        start += len(members)
        labels[members, 0] = members % PAPERS_CLASSES
        with gzip.open(folder / "split" / "time" / f"{name}.csv.gz", "wt") as file:
            file.writelines(f"{node}\n" for node in members)
    np.savez(folder / "raw" / "node-label.npz", node_label=labels)


def measure(
    nodes: int, work: Path, processes: int, limit: Limit, generate: Callable[[Path, int], None] = generate
) -> Iterator[Stage]:
    tables, graph, store = (work / name for name in ("tables", "graph", MODELS))
    generate(tables, nodes)
    train = ["-m", "training", "--data", str(graph), "--store", str(store), "--model", "scale", "--activate", *TRAIN]
    refresh = ["-m", "training", "refresh", "--data", str(graph), "--store", str(store), "--model", "scale", "--json"]
    stages = {
        "import": (["-m", "training", "import", str(tables), str(graph), "--quiet"], graph),
        "train, evaluate, publish": ([*train, "--processes", str(processes)], store),
        "refresh": ([*refresh, "--processes", str(processes)], store),
        "verify and open": (["-c", OPEN, str(store)], store),
    }
    for name, (command, place) in stages.items():
        yield _run(name, nodes, [sys.executable, *command], place, limit)


def _run(name: str, nodes: int, command: list[str], place: Path, limit: Limit) -> Stage:
    begin, before = time.perf_counter(), os.times()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=limit) as process:
        peak = [0]
        watch = threading.Thread(target=_watch, args=(process, peak))
        watch.start()
        process.wait()
        watch.join()
    if process.returncode:
        raise SystemExit(f"{name} at {nodes:,} nodes failed with {process.returncode}: {' '.join(command)}")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    disk = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    return Stage(name, nodes, time.perf_counter() - begin, cpu, peak[0] / 1e9, disk / 1e9)


def serve(stores: dict[int, Path], limit: Limit) -> str:
    """Starts a service for every store, then asks them for exact new nodes in turns, over one connection each."""
    parts: list[str] = []
    with ExitStack() as stack:
        contestants: dict[str, tuple[Server, Bodies]] = {}
        for nodes, store in stores.items():
            begin = time.perf_counter()
            server = stack.enter_context(service(str(store), model="scale", limit=limit))
            parts.append(f"{nodes:,} nodes: ready after {time.perf_counter() - begin:.1f} s")
            contestants[f"{nodes:,}"] = (server, new_nodes(nodes))
        loads = take_turns(contestants, connections=1)
        for number, (name, (server, _)) in enumerate(contestants.items()):
            private = status_bytes("RssAnon", server.pid) / 1e6
            parts[number] += f", {private:.0f} MB private; exact new node {loads[name].latencies(0.5, 0.99)}"
    smaller, larger = (load.quantile(0.5) for load in loads.values())
    return "; ".join(parts) + f"; ratio of p50 {larger / smaller:.2f}"


def _watch(process: subprocess.Popen[bytes], peak: list[int]) -> None:
    while process.poll() is None:
        with suppress(psutil.Error):
            main = psutil.Process(process.pid)
            peak[0] = max(peak[0], sum(map(_anonymous, (main, *main.children(recursive=True)))))
        time.sleep(0.02)


def _anonymous(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        memory = process.memory_info()
        return int(memory.rss - memory.shared)
    return 0


@contextmanager
def memory_limit(gigabytes: float) -> Iterator[Limit]:
    """Yields a function that puts a process into a control group with this limit; None if control groups cannot be made."""
    root = Path("/sys/fs/cgroup")
    legacy = (root / "memory").is_dir()
    group = (root / "memory" if legacy else root) / f"sgf_scale_{os.getpid()}"
    try:
        group.mkdir()
        limit = group / ("memory.limit_in_bytes" if legacy else "memory.max")
        limit.write_text(str(int(gigabytes * 2**30)))
    except OSError:
        print("no memory limit: control groups cannot be made here")
        yield None
        return
    print(f"memory limit: {gigabytes:g} GB")
    try:
        yield lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
    finally:
        group.rmdir()


def print_table(stages: list[Stage]) -> None:
    print("| nodes | stage | time, s | CPU, s | private memory, GB | disk, GB |\n|---|---|---|---|---|---|")
    for stage in stages:
        numbers = f"{stage.seconds:.1f} | {stage.cpu_seconds:.1f} | {stage.anonymous_gb:.2f} | {stage.disk_gb:.2f}"
        print(f"| {stage.nodes:,} | {stage.name} | {numbers} |")
    for name in dict.fromkeys(stage.name for stage in stages):
        rows = [stage for stage in stages if stage.name == name]
        if len(rows) > 1:
            sizes = [stage.nodes for stage in rows]
            fits = [np.polyfit(sizes, [getattr(row, field) for row in rows], 1) for field in list(asdict(rows[0]))[2:]]
            seconds, cpu, memory, disk = (np.polyval(fit, PAPERS_NODES) for fit in fits)
            print(
                f"{name}: {fits[0][0] * 1e6:.1f} s per million nodes; {PAPERS_NODES:,} nodes need {seconds / 3600:.1f} h, "
                f"{cpu / 3600:.1f} h of CPU, {memory:.0f} GB of private memory, {disk:.0f} GB of disk"
            )


def measure_papers(options: argparse.Namespace) -> None:
    work = options.folder.resolve() / "papers"
    shutil.rmtree(work, ignore_errors=True)
    with memory_limit(options.memory) as limit:
        try:
            nodes = round(PAPERS_NODES * options.papers)
            print_table(list(measure(nodes, work, options.processes, limit, generate_papers)))
        finally:
            shutil.rmtree(work, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000])
    parser.add_argument("--memory", type=float, default=6.0, help="limit in GB")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("build/scale"), help="needs about 15 kB per node")
    parser.add_argument("--papers", type=float, metavar="SHARE", help="a share of ogbn-papers100M instead, such as 0.02")
    options = parser.parse_args()
    if options.papers:
        measure_papers(options)
        return
    stages: list[Stage] = []
    small = options.folder.resolve() / str(SMALL)
    with memory_limit(options.memory) as limit:
        shutil.rmtree(small, ignore_errors=True)
        list(measure(SMALL, small, 1, limit))
        for nodes in options.nodes:
            work = options.folder.resolve() / str(nodes)
            shutil.rmtree(work, ignore_errors=True)
            try:
                for stage in measure(nodes, work, options.processes, limit):
                    stages.append(stage)
                    print(json.dumps(asdict(stage)), flush=True)
                print(serve({SMALL: small / MODELS, nodes: work / MODELS}, limit), flush=True)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(small)
    print_table(stages)


if __name__ == "__main__":
    main()
