"""Reads users' data as a labelled graph: `graph.npz`, tables or a graph folder. Makes a split if the data has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from model_store import DataError, FeatureSchema, NodeIds
from model_store.publish.graph_file import GraphFile, NoFeatures, read_graph_file
from model_store.publish.labelled_file import read_labelled_file, unread_arrays
from model_store.run_settings import Structural
from model_store.structural import HINT, SCHEMAS, StructuralFeatures, feature_maker
from model_store.suggestions import did_you_mean
from sgformer import Adjacency, Graph, GraphError
from sgformer.config import Task
from training.data.graph_folder.folder import GraphFolder, is_graph_folder
from training.data.labelled import LabelledGraph, is_labelled
from training.data.splits import HALF, Shares, describe_rule, steady_split
from training.data.tables.files import SUFFIXES, find_table
from training.data.tables.folder import TablesFolder
from training.data.tables.reading import Reading
from training.fit import tasks

Read = TypeVar("Read")


@dataclass(frozen=True)
class UserGraph:
    """A user's graph without labels."""

    graph: Graph
    node_ids: NodeIds | None
    schema: FeatureSchema | None = None
    reading: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    missing_cells: Mapping[str, int] | None = None
    """As in `LabelledGraph`."""
    names: tuple[str, ...] | None = None
    """Of features without a schema."""

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        return tuple(self.schema.position_names) if self.schema else self.names


class Labels(NamedTuple):
    labels: NDArray[Any]
    split: NDArray[np.int8] | None
    """None if the data has no split."""
    task: Task
    class_names: tuple[str, ...] | None


def read_user_data(
    path: Path,
    task: Task | None = None,
    shares: Shares = HALF,
    seed: int = 0,
    reading: Reading | None = None,
    schema: FeatureSchema | None = None,
) -> LabelledGraph:
    """Reads a user's graph with its labels and split.

    Args:
        task: None derives it from the labels: 2-D is multi-label, fractions are regression, else multi-class.
        shares: of training, validation and test nodes, if the data has no split.
        reading: how tables are read.
        schema: of an earlier version; its columns keep their places, kinds and categories.

    Raises:
        DataError: names the problem, the file, the line and the column.
    """
    name, path = path.resolve().stem, source_of(path)
    user, (labels, split, task, class_names) = _read_source(path, task, reading, schema)
    drawn = None
    if split is None:
        keys = np.arange(len(labels)) if user.node_ids is None else user.node_ids.arrays[0]
        split = steady_split(keys, is_labelled(labels, task), seed, shares)
        drawn = describe_rule(shares, seed, by_id=user.node_ids is not None)
    data = LabelledGraph(
        name=name,
        graph=user.graph,
        labels=labels,
        split=split,
        task=task,
        metric=tasks.TASK_METRICS[task][0],
        class_names=class_names if task != "regression" else None,
        node_ids=user.node_ids,
        feature_names=user.feature_names,
        drawn=drawn,
        schema=user.schema,
        reading=user.reading,
        missing_cells=user.missing_cells,
        notes=user.notes,
    )
    data.check_parts(path.name)
    return data


def _read_source(
    path: Path, task: Task | None, reading: Reading | None, schema: FeatureSchema | None
) -> tuple[UserGraph, Labels]:
    """Reads a graph folder, a folder of tables, or a `graph.npz`."""
    structural = _structural(reading)
    if is_graph_folder(path):
        folder = _open_folder(path, reading, schema)
        labels, task = _folder_labels(folder, path, task)
        return _folder_graph(folder), Labels(labels, folder.split, task, folder.manifest.classes)
    if path.is_dir():
        tables = TablesFolder(path, reading, None if structural else schema)
        labels, class_names = tables.labels(task)
        task = "multiclass" if class_names else "regression"
        return _user_graph(path, tables, reading), Labels(labels, tables.split(), task, class_names)
    refuse_flags(path, reading, schema)
    npz = _with_hint(read_labelled_file, path, task, feature_maker(structural))
    labels = _require_labels(path, npz.labels)
    return _npz_graph(path, npz.file, structural), Labels(labels, npz.split, npz.task, npz.file.class_names)


def _folder_labels(folder: GraphFolder, path: Path, task: Task | None) -> tuple[NDArray[Any], Task]:
    """The labels of a graph folder, and the task for which it was imported."""
    imported = folder.manifest.task
    if folder.labels is None or imported is None:
        raise DataError(f"{path.name} was imported without labels: training needs labels")
    if task not in (None, imported):
        raise DataError(f"{path.name} was imported for {imported}: import the data again with --task {task}")
    return _require_labels(path, folder.labels), imported


def _require_labels(path: Path, labels: NDArray[Any] | None) -> NDArray[Any]:
    if labels is None:
        raise DataError(f"{path.name} has no array y: training needs labels")
    if labels.dtype.kind == "i" and len(np.unique(labels[labels >= 0])) == 1:
        raise DataError(f"{path.name}: y has a single class, expected at least two")
    return labels


def read_user_graph(path: Path, reading: Reading | None = None, schema: FeatureSchema | None = None) -> UserGraph:
    """Reads a graph without labels, for published weights.

    Args:
        schema: of the features that the weights read; tables must have exactly these features.
    """
    path = source_of(path)
    if is_graph_folder(path):
        return _folder_graph(_open_folder(path, reading, schema, fixed=True))
    if path.is_dir():
        earlier = None if _structural(reading) else schema
        return _user_graph(path, TablesFolder(path, reading, earlier, fixed=True), reading)
    refuse_flags(path, reading, schema)
    structural = _structural(reading)
    return _npz_graph(path, _with_hint(read_graph_file, path, feature_maker(structural)), structural)


def source_of(path: Path) -> Path:
    """The file or folder to read: for a folder that holds graph.npz, this file.

    Raises DataError if there is none.
    """
    if not path.exists():
        siblings = [sibling.name for sibling in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"there is no file or folder {path}{did_you_mean(path.name, siblings, repr)}")
    if path.is_file() and path.name.lower().endswith(SUFFIXES):
        raise DataError(f"{path.name} is one table: give the folder that holds the tables nodes and edges")
    file = path / "graph.npz"
    if not path.is_dir() or not file.exists():
        return path
    if table := find_table(path, "nodes") or find_table(path, "edges"):
        raise DataError(f"{path.name} has graph.npz and {table.name}: keep one of them")
    return file


def _open_folder(path: Path, reading: Reading | None, schema: FeatureSchema | None, fixed: bool = False) -> GraphFolder:
    """Opens a graph folder. `fixed`: its columns must be those of `schema`."""
    folder = GraphFolder.open(path)
    if schema is None and reading not in (None, Reading()):
        raise DataError(f"{reading}: tables are read when they are imported; import them again with these flags")
    if fixed and schema is not None and folder.manifest.features != schema:
        raise DataError(
            f"{path.name} has other columns or categories than the model reads: import the data again with --model"
        )
    return folder


def _folder_graph(folder: GraphFolder) -> UserGraph:
    manifest = folder.manifest
    return UserGraph(
        folder.graph, folder.node_ids, manifest.features, manifest.reading, manifest.notes, manifest.missing_cells
    )


def refuse_flags(path: Path, reading: Reading | None, schema: FeatureSchema | None) -> None:
    """Raises DataError for flags about tables. A schema comes with the choices of an earlier version, not of the user."""
    if schema is None and reading not in (None, Reading(), Reading(structural=_structural(reading))):
        raise DataError(f"{reading}: for tables only, and {path.name} is none")


def _structural(reading: Reading | None) -> Structural | None:
    return None if reading is None else reading.structural


def _with_hint(read: Callable[..., Read], *arguments: Any) -> Read:
    try:
        return read(*arguments)
    except NoFeatures as error:
        raise DataError(f"{error}; {HINT}") from error


def _npz_graph(path: Path, file: GraphFile, structural: Structural | None) -> UserGraph:
    notes = unread_arrays(path)
    if not structural:
        return UserGraph(file.graph, file.node_ids, notes=notes)
    return UserGraph(file.graph, file.node_ids, SCHEMAS[structural], Reading(structural=structural).to_json(), notes)


def _user_graph(path: Path, tables: TablesFolder, reading: Reading | None) -> UserGraph:
    structural, has_features = _structural(reading), tables.features.shape[1] > 0
    if not has_features and not structural:
        raise DataError(f"{path.name} has no features: no column besides those of the id, the label and the split; {HINT}")
    if has_features and structural:
        raise DataError(f"{path.name} has features: features of the structure are for graphs without features")
    try:
        if structural:
            adjacency = Adjacency.from_edges(tables.edge_index, len(tables.features))
            graph = Graph.build(StructuralFeatures(structural, adjacency, tables.ids)[:], tables.edge_index)
        else:
            graph = Graph.build(tables.features, tables.edge_index)
    except GraphError as error:
        raise DataError(f"{path.name}: {error}") from error
    schema = SCHEMAS[structural] if structural else tables.schema
    return UserGraph(graph, tables.ids, schema, (reading or Reading()).to_json(), tuple(tables.notes), tables.missing_cells)
