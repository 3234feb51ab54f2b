"""The graphs that contests run on: a real one with a hub, and generated ones of any size."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from sgformer import Graph


def debian_trixie() -> Graph:
    """The dependency graph of the Debian 13 archive (68,820 packages), from SGF_DATA_ROOT."""
    path = Path(os.environ.get("SGF_DATA_ROOT", "../shared/data")) / "debian_trixie" / "debian_trixie_svd128.npz"
    if not path.exists():
        raise SystemExit(f"{path} is not there: set SGF_DATA_ROOT to the folder that holds debian_trixie/")
    with np.load(path, allow_pickle=False) as data:
        return Graph.build(data["x"].astype(np.float32), data["edge_index"])


def cora() -> Graph:
    """The citation graph (2,708 papers, 1,433 words), from SGF_DATA_ROOT."""
    from training.data import datasets

    return datasets.load("cora", root=Path(os.environ.get("SGF_DATA_ROOT", "../shared/data"))).graph


def uniform(nodes: int, edges: int, features: int, seed: int = 0) -> Graph:
    """Edges between nodes drawn evenly: the neighbourhood of a node looks the same whatever the number of nodes."""
    rng = np.random.default_rng(seed)
    return Graph.build(rng.standard_normal((nodes, features), dtype=np.float32), rng.integers(0, nodes, size=(2, edges)))


def skewed(nodes: int, edges: int, features: int, seed: int = 0) -> Graph:
    """One end of every edge drawn by a power law, so that there are hubs."""
    rng = np.random.default_rng(seed)
    ends = np.stack([(nodes * rng.random(edges) ** 3).astype(np.int64), rng.integers(0, nodes, size=edges)])
    return Graph.build(rng.standard_normal((nodes, features), dtype=np.float32), ends)
