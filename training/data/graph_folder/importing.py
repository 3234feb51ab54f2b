"""`sgf-train import`: makes a graph folder from tables, graph.npz or the files of OGB."""

from __future__ import annotations

from pathlib import Path

import duckdb

from model_store import DataError, FeatureSchema
from model_store.structural import HINT, SCHEMAS, StructuralFeatures
from sgformer import GraphError
from sgformer.config import Task
from training.data.graph_folder.array_import import import_npz, write_features
from training.data.graph_folder.engine import Engine, open_engine
from training.data.graph_folder.folder import is_graph_folder
from training.data.graph_folder.large_tables import LargeTables
from training.data.graph_folder.manifest import GraphManifest
from training.data.graph_folder.ogb_import import import_ogb, is_ogb_folder
from training.data.graph_folder.progress import Report, no_report
from training.data.graph_folder.staging import staged
from training.data.graph_folder.writer import GraphWriter
from training.data.tables.reading import Reading
from training.data.user_data import refuse_flags, source_of


def import_graph(
    data: Path,
    out: Path,
    reading: Reading | None = None,
    task: Task | None = None,
    schema: FeatureSchema | None = None,
    report: Report = no_report,
) -> GraphManifest:
    """Imports a user's graph. `out` appears when it is complete.

    Args:
        out: a folder that does not exist.
        reading, schema, task: as for `read_user_data`.

    Raises:
        DataError: the data is wrong, with the messages of `read_user_data`, or `out` exists.
        OSError: e.g. the disk is full.
    """
    path = data if is_ogb_folder(data) else source_of(data)
    if is_graph_folder(path):
        raise DataError(f"{path.name} is a graph folder already: training reads it as it is")
    structural = None if reading is None else reading.structural
    with staged(out) as folder:
        writer = GraphWriter(folder, report)
        try:
            with open_engine(writer.scratch) as engine:
                if is_ogb_folder(path):
                    return import_ogb(path, writer, engine, structural)
                if path.is_dir():
                    return _import_tables(path, writer, engine, reading or Reading(), task, schema)
                refuse_flags(path, reading, schema)
                return import_npz(path, writer, task, structural)
        except duckdb.Error as error:
            raise DataError(f"{path.name} cannot be read: {error}") from error


def _import_tables(
    path: Path, writer: GraphWriter, engine: Engine, reading: Reading, task: Task | None, schema: FeatureSchema | None
) -> GraphManifest:
    structural = reading.structural
    earlier = None if structural else schema
    tables = LargeTables(path, reading, earlier, engine, writer.scratch, writer, writer.report)
    if not tables.width and not structural:
        raise DataError(f"{path.name} has no features: no column besides those of the id, the label and the split; {HINT}")
    if tables.width and structural:
        raise DataError(f"{path.name} has features: features of the structure are for graphs without features")
    if len(tables.ids) < 2:
        raise DataError(f"{path.name}: {GraphError(f'a graph needs at least 2 nodes, got {len(tables.ids)}')}")
    classes = None
    if tables.has_labels:
        labels, classes = tables.labels(task)
        writer.write_labels(labels)
        task = "multiclass" if classes else "regression"
        if (split := tables.split()) is not None:
            writer.write_split(split)
    writer.write_edges(tables.sorter)
    writer.write_ids(tables.ids)
    width = tables.width
    if structural:
        _, width = write_features(StructuralFeatures(structural, writer.adjacency, tables.ids), writer)
    return writer.finish(
        "tables",
        task=task if tables.has_labels else None,
        classes=classes,
        features=SCHEMAS[structural] if structural else tables.schema,
        reading=reading.to_json(),
        notes=tuple(tables.notes),
        missing_cells=tables.missing_cells,
        width=width,
    )
