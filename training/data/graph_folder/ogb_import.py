"""Imports a node data set in the layout of OGB's own files: raw/ with CSV or npz, and split/<rule>/.

OGB's readers are not used: they load everything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import DataError
from model_store.run_settings import Structural
from model_store.structural import HINT
from sgformer import GraphError
from training.data.graph_folder.array_import import import_arrays, map_npz
from training.data.graph_folder.engine import Engine, file_name
from training.data.graph_folder.manifest import GraphManifest
from training.data.graph_folder.writer import GraphWriter
from training.data.labelled import TEST, TRAIN, VALIDATION
from training.data.splits import from_nodes

PARTS = {"train": TRAIN, "valid": VALIDATION, "test": TEST}


def is_ogb_folder(path: Path) -> bool:
    return any((path / "raw" / name).is_file() for name in ("data.npz", "edge.csv.gz"))


def import_ogb(path: Path, writer: GraphWriter, engine: Engine, structural: Structural | None) -> GraphManifest:
    raw = path / "raw"
    arrays = _npz_arrays(raw, writer) if (raw / "data.npz").exists() else _csv_arrays(raw, writer, engine)
    if "x" not in arrays and not structural:
        raise DataError(f"{path.name} has no features of nodes, and features of edges are not read; {HINT}")
    if structural:
        arrays.pop("x", None)
    arrays["y"], is_multilabel = _labels(arrays["y"])
    arrays["split"] = _split(path, len(arrays["y"]), engine)
    task: Any = "multilabel" if is_multilabel else "multiclass"
    try:
        return import_arrays(arrays, path.name, writer, task, structural, feature_type="<f4")
    except GraphError as error:
        raise DataError(f"{path.name}: {error}") from error


def _npz_arrays(raw: Path, writer: GraphWriter) -> dict[str, NDArray[Any]]:
    """The layout of ogbn-papers100M."""
    graph = map_npz(raw / "data.npz", ["edge_index", "node_feat"], writer.scratch, writer.report)
    labels = map_npz(_required(raw / "node-label.npz"), ["node_label"], writer.scratch, writer.report)
    return {"edge_index": graph["edge_index"], "x": graph["node_feat"], "y": labels["node_label"]}


def _csv_arrays(raw: Path, writer: GraphWriter, engine: Engine) -> dict[str, NDArray[Any]]:
    arrays = {"edge_index": _matrix(raw / "edge.csv.gz", writer, engine, np.dtype(np.int64)).T}
    arrays["y"] = _matrix(_required(raw / "node-label.csv.gz"), writer, engine, np.dtype(np.float32))
    if (raw / "node-feat.csv.gz").exists():
        arrays["x"] = _matrix(raw / "node-feat.csv.gz", writer, engine, np.dtype(np.float32))
    return arrays


def _matrix(path: Path, writer: GraphWriter, engine: Engine, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The numbers of a CSV file without a header, in a mapped scratch file."""
    target, width = writer.scratch / f"{path.name}.matrix", 0
    with target.open("wb") as file:
        for batch in engine.batches(f"SELECT * FROM read_csv({file_name(path)}, header = false, delim = ',')"):
            width = batch.num_columns
            columns = [batch.column(place).to_numpy(zero_copy_only=False) for place in range(width)]
            np.stack(columns, axis=1).astype(dtype).tofile(file)
            writer.report(f"reading {path.name}", 0, 1)
    if not width:
        raise DataError(f"{path.name} has no rows")
    writer.report(f"reading {path.name}", 1, 1)
    return np.memmap(target, dtype=dtype, mode="r").reshape(-1, width)


def _labels(values: NDArray[Any]) -> tuple[NDArray[Any], bool]:
    """OGB has a column per task, and NaN for a node without a label."""
    if values.ndim == 2 and values.shape[1] > 1:
        return values.astype(np.float32), True
    column = np.asarray(values.reshape(-1), dtype=np.float64)
    return np.where(np.isnan(column), -1, np.nan_to_num(column)).astype(np.int64), False


def _split(path: Path, count: int, engine: Engine) -> NDArray[np.int8]:
    rules = sorted(folder for folder in (path / "split").iterdir() if folder.is_dir()) if (path / "split").is_dir() else []
    if len(rules) != 1:
        names = ", ".join(rule.name for rule in rules) or "nothing"
        raise DataError(f"{path.name}/split has {names}, expected one folder with train, valid and test .csv.gz")
    nodes = [_numbers(_required(rules[0] / f"{part}.csv.gz"), engine) for part in PARTS]
    if any(len(part) and not 0 <= part.min() <= part.max() < count for part in nodes):
        raise DataError(f"{path.name}/split/{rules[0].name} names nodes outside 0 to {count - 1}")
    return from_nodes(count, *nodes)


def _numbers(path: Path, engine: Engine) -> NDArray[np.int64]:
    query = f"SELECT * FROM read_csv({file_name(path)}, header = false, columns = {{'node': 'BIGINT'}})"
    return np.concatenate([np.empty(0, np.int64), *(batch.column(0).to_numpy() for batch in engine.batches(query))])


def _required(path: Path) -> Path:
    if not path.exists():
        raise DataError(f"{path.parent.name}/{path.name} is missing")
    return path
