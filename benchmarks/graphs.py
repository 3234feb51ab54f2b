"""The graphs of the benchmarks: published graphs, and generated graphs of any size."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sgformer import Graph


def debian_trixie() -> Graph:
    """The dependency graph of the Debian 13 archive (68,820 packages, with hubs), from SGF_DATA_ROOT."""
    path = Path(os.environ.get("SGF_DATA_ROOT", "../shared/data")) / "debian_trixie" / "debian_trixie_svd128.npz"
    if not path.exists():
        raise SystemExit(f"{path} does not exist: set SGF_DATA_ROOT to the folder that holds debian_trixie/")
    with np.load(path, allow_pickle=False) as data:
        return Graph.build(data["x"].astype(np.float32), data["edge_index"])


def cora() -> Graph:
    """The citation graph (2,708 papers, 1,433 words), from SGF_DATA_ROOT."""
    from training.data import datasets

    return datasets.load("cora", root=Path(os.environ.get("SGF_DATA_ROOT", "../shared/data"))).graph


def uniform(nodes: int, edges: int, features: int, seed: int = 0) -> Graph:
    """Random edges: the neighbourhood of a node does not depend on the number of nodes."""
    rng = np.random.default_rng(seed)
    return Graph.build(rng.standard_normal((nodes, features), dtype=np.float32), rng.integers(0, nodes, size=(2, edges)))


def skewed(nodes: int, edges: int, features: int, seed: int = 0) -> Graph:
    """One end of every edge follows a power law, so that there are hubs."""
    rng = np.random.default_rng(seed)
    ends = np.stack([(nodes * rng.random(edges) ** 3).astype(np.int64), rng.integers(0, nodes, size=edges)])
    return Graph.build(rng.standard_normal((nodes, features), dtype=np.float32), ends)


GRAPHS: dict[str, Callable[[], Graph]] = {
    "debian_trixie": debian_trixie,
    "cora": cora,
    "skewed": lambda: skewed(100_000, 1_000_000, 128),
}
