"""Small files in the layouts of the published data sets."""

from __future__ import annotations

import gzip
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with small files in the published layouts, not writable."""
    root = tmp_path_factory.mktemp("data")
    (root / "heterophilous" / "minesweeper" / "raw").mkdir(parents=True)
    masks = np.zeros((10, 30), dtype=bool)
    parts = {"train_masks": masks.copy(), "val_masks": masks.copy(), "test_masks": masks.copy()}
    for number in range(10):
        for part, nodes in zip(parts.values(), np.split(RNG.permutation(30), [10, 20]), strict=True):
            part[number, nodes] = True
    arrays = {
        "node_features": (RNG.random((30, 40)) < 0.05).astype(np.float32),
        "node_labels": np.arange(30) % 3,
        "edges": RNG.integers(0, 30, size=(60, 2)),
    }
    for name in ("actor.npz", "squirrel_filtered.npz", "chameleon_filtered.npz", "minesweeper/raw/minesweeper.npz"):
        np.savez(root / "heterophilous" / name, **arrays, **parts)
    (root / "more").mkdir()
    graph = {"x": arrays["node_features"], "edge_index": arrays["edges"].T, "y": arrays["node_labels"]}
    np.savez(root / "more" / "acm.npz", **graph, splits=RNG.integers(0, 3, (3, 30)).astype(np.uint8))
    _write_deezer(root / "deezer")
    _write_debian(root / "debian_trixie")
    _write_planetoid(root / "planetoid" / "Cora" / "raw")
    _write_ogb(root / "ogb")
    _write_pokec(root / "pokec")
    for path in root.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return root


def _write_deezer(folder: Path) -> None:
    folder.mkdir()
    matrix, rows = (scipy.sparse.random(30, width, 0.1, "csr", random_state=0) for width in (30, 500))
    arrays = {
        f"{name}_{part}": np.asarray(getattr(one, part))
        for name, one in (("adj", matrix), ("attr", rows))
        for part in ("data", "indices", "indptr", "shape")
    }
    np.savez(folder / "deezer_europe_sparse.npz", labels=np.arange(30) % 2, **arrays)
    parts = dict(zip(("train", "valid", "test"), np.split(np.arange(30), [15, 22]), strict=True))
    splits = {f"{part}_{number}": nodes for number in range(5) for part, nodes in parts.items()}
    np.savez(folder / "deezer_splits.npz", **splits)


def _write_ogb(folder: Path) -> None:
    """The layout of OGB: csv.gz for arxiv and products, edge features only for proteins, npz for papers100M."""
    edges = RNG.integers(0, 30, (60, 2))
    for name, split in (("arxiv", "time"), ("proteins", "species"), ("products", "sales_ranking"), ("papers100M", "time")):
        raw, parts = folder / f"ogbn_{name}" / "raw", folder / f"ogbn_{name}" / "split" / split
        raw.mkdir(parents=True)
        parts.mkdir(parents=True)
        tables = {"edge": edges, "num-node-list": [[30]], "num-edge-list": [[60]], "node-label": np.arange(30)[:, None] % 4}
        if name == "proteins":
            tables |= {"edge-feat": RNG.random((60, 8)), "node-label": RNG.integers(0, 2, (30, 5))}
        else:
            tables["node-feat"] = RNG.random((30, 6))
        if name == "papers100M":
            arrays = {"edge_index": edges.T, "num_nodes_list": np.array([30]), "num_edges_list": np.array([60])}
            np.savez(raw / "data.npz", node_feat=tables["node-feat"], **arrays)
            some = np.where(np.arange(30) % 5 == 0, np.nan, np.arange(30) % 4)[:, None]
            np.savez(raw / "node-label.npz", node_label=some)
        else:
            for file, table in tables.items():
                np.savetxt(raw / f"{file}.csv.gz", np.asarray(table), delimiter=",", fmt="%g")
        for part, nodes in zip(("train", "valid", "test"), np.split(np.arange(30), [15, 22]), strict=True):
            np.savetxt(parts / f"{part}.csv.gz", nodes, fmt="%d")


def _write_pokec(folder: Path) -> None:
    folder.mkdir()
    lines = []
    for user in range(1, 31):
        gender = "null" if user == 5 else str(user % 2)
        cells = [str(user), "1", "55", gender, "region", "2012", "2012", "null" if user == 7 else "30", *["null"] * 51]
        lines.append("\t".join(cells))
    (folder / "soc-pokec-profiles.txt").write_text("\n".join(lines) + "\n")
    pairs = RNG.integers(1, 31, (60, 2))
    np.savetxt(folder / "soc-pokec-relationships.txt", pairs, delimiter="\t", fmt="%d")


def _write_debian(folder: Path) -> None:
    folder.mkdir()
    edges, features = RNG.integers(0, 30, (2, 50)), RNG.random((30, 4)).astype(np.float16)
    arrays = {"x": features, "edge_index": edges, "y": np.arange(30) % 2}
    splits = RNG.integers(0, 3, (5, 30)).astype(np.uint8)
    np.savez(folder / "debian_trixie_svd128.npz", **arrays, splits=splits, class_names=np.array(["admin", "libs"]))
    with gzip.open(folder / "node_names.txt.gz", "wt") as file:
        file.write("\n".join(f"package-{number}" for number in range(30)) + "\n")


def _write_planetoid(folder: Path) -> None:
    """The layout of the original pickles: 600 nodes, 20 of them for training."""
    folder.mkdir(parents=True)
    features = scipy.sparse.random(600, 50, 0.05, "csr", random_state=0)
    onehot = np.eye(3, dtype=np.int32)[np.arange(600) % 3]
    graph = defaultdict(list, {node: [(node + 1) % 600, (node + 7) % 600] for node in range(600)})
    parts: dict[str, Any] = {"x": features[:20], "tx": features[590:], "allx": features[:590]}
    parts |= {"y": onehot[:20], "ty": onehot[590:], "ally": onehot[:590], "graph": graph}
    for name, part in parts.items():
        (folder / f"ind.cora.{name}").write_bytes(pickle.dumps(part))
    (folder / "ind.cora.test.index").write_text("\n".join(str(node) for node in range(590, 600)) + "\n")
