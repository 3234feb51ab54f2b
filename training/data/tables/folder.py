"""A user's graph in a folder of two tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from model_store import DataError, FeatureColumn, FeatureSchema, NodeIds
from sgformer.config import Task
from training.data.tables import roles
from training.data.tables.feature_columns import describe_column, encode_column
from training.data.tables.files import describe_missing_table, find_table, read_table
from training.data.tables.ids import build_ids, id_texts, plain_numbers, rows_of, similar_id
from training.data.tables.labels import Labels, read_labels, read_split
from training.data.tables.reading import Reading
from training.data.tables.table import Column, Table, shorten

Features = list[tuple[Callable[[], Column], FeatureColumn]]
"""Functions that read the columns, which may be too many for memory, and their descriptions."""


class TablesFolder:
    """The tables of a folder. The constructor checks every cell but the labels and the split.

    Attributes:
        ids: of the nodes, in the order of the table of nodes; without this table, of all nodes that edges name.
        features: (N, D), where D is 0 if there are no features.
        schema: of the features; None if there are none.
        edge_index: (2, E) rows of nodes.
        missing_cells: the number of cells that were filled in, of the columns that have any.
        notes: sentences about what was left out or filled in; `labels` adds to them.
    """

    def __init__(
        self, path: Path, reading: Reading | None = None, schema: FeatureSchema | None = None, fixed: bool = False
    ) -> None:
        """
        Args:
            reading: what the user chose; everything else is detected.
            schema: of an earlier version of the model: its columns come first and keep their kinds and categories.
            fixed: the features must be exactly those of `schema`: published weights can read no others.
        """
        self._reading, self._known, self._fixed = reading or Reading(), schema, fixed and schema is not None
        self.notes: list[str] = []
        self.missing_cells: dict[str, int] = {}
        nodes_path, edges_path = find_table(path, "nodes"), find_table(path, "edges")
        if edges_path is None:
            raise DataError(describe_missing_table(path, "edges"))
        self._edges = self._open_table(edges_path)
        self._nodes = self._open_table(nodes_path) if nodes_path else None
        self._label: str | None = None
        self._split: str | None = None
        if schema is None:  # choices that the store keeps may outlive their columns
            roles.check_chosen_names(self._reading, filter(None, (self._nodes, self._edges)))
        ends = roles.end_names(self._edges, self._reading)
        ids, features = (None, []) if self._nodes is None else self._read_nodes(self._nodes, ends[0])
        self.schema = FeatureSchema(tuple(feature for _, feature in features)) if features else None
        self.ids = self._read_edges(ends, ids)
        self._read_features(features)

    def labels(self, task: Task | None) -> Labels:
        """Class numbers with the names of the classes, or for regression the values to predict."""
        if self._nodes is None:
            raise DataError(f"{self._edges.file} is the only table, so no node has a label: training needs a table of nodes")
        if self._label is None:
            names = f"{', '.join(roles.LABEL_NAMES[:-1])} or {roles.LABEL_NAMES[-1]}"
            table = self._nodes
            raise DataError(
                f"{table.file} has no column {names}; it has {table.names_text}: --label-column chooses the labels"
            )
        return read_labels(self._nodes.column(self._label), task, self.notes)

    def split(self) -> NDArray[np.int8] | None:
        return read_split(self._nodes.column(self._split)) if self._nodes and self._split else None

    def _open_table(self, path: Path) -> Table:
        return read_table(path, self._reading)

    def _read_nodes(self, table: Table, sources: str) -> tuple[str, Features]:
        """The name of the column of the ids, and the features. `sources`: the column of the edges with their first ends."""
        if not len(table):
            raise DataError(f"{table.file} has the names of the columns, but no rows")
        reading = self._reading
        ids = roles.id_name(table, reading, partial(self._edges.column, sources))
        if not self._fixed or reading.label_column in (None, *table.values):  # published weights need no labels
            self._label = roles.label_name(table, reading, self._known)
        self._split = roles.split_name(table, reading)
        names = roles.feature_names(table, reading, {ids, self._label, self._split})
        if self._known:
            if self._fixed:
                roles.check_fixed_names(table, names, self._known)
            places = {feature.name: place for place, feature in enumerate(self._known.columns)}
            names.sort(key=lambda name: places.get(name, len(places)))
        return ids, [(partial(table.column, name), self._describe(table.column(name))) for name in names]

    def _describe(self, column: Column) -> FeatureColumn:
        columns = self._known.columns if self._known else ()
        known = next((feature for feature in columns if feature.name == column.name), None)
        return known if known and self._fixed else describe_column(column, self._reading, known)

    def _read_edges(self, ends: tuple[str, str], ids: str | None) -> NodeIds:
        """Reads the ids and sets `edge_index`."""
        columns = [self._edges.column(name) for name in ends]
        texts = [id_texts(column) for column in columns]
        nodes = None if self._nodes is None or ids is None else self._nodes.column(ids)
        node_texts, *texts = plain_numbers(pc.unique(pa.concat_arrays(texts)) if nodes is None else id_texts(nodes), texts)
        edges = np.stack([rows_of(end, node_texts) for end in texts])
        if (unknown := np.any(edges < 0, axis=0)).any():
            row = int(unknown.argmax())
            end = 0 if edges[0, row] < 0 else 1
            self._check_unknown(columns[end], row, texts[end][row].as_py(), int(unknown.sum()), node_texts)
        self.edge_index: NDArray[np.int64] = edges[:, ~unknown]
        return build_ids(nodes, node_texts)

    def _read_features(self, features: Features) -> None:
        """Sets `features`."""
        parts = [self._encode(read_column(), feature) for read_column, feature in features]
        self.features = np.concatenate(parts, axis=1) if parts else np.zeros((len(self.ids), 0), dtype=np.float32)

    def _encode(self, column: Column, feature: FeatureColumn) -> NDArray[np.float32]:
        encoded = encode_column(column, feature, self._reading).astype(np.float32)
        if feature.fill is not None and (gaps := int(column.missing().sum())):
            self.missing_cells[column.name] = gaps
            fill = feature.fill if isinstance(feature.fill, str) else f"{feature.fill:g}"
            self.notes.append(f"column {column.name}: {gaps:,} of {len(column):,} cells are missing, filled in with {fill}")
        return encoded

    def _check_unknown(self, column: Column, row: int, text: str, count: int, nodes: Any) -> None:
        """Notes that edges of unknown nodes are dropped, or raises DataError.

        Args:
            column: the column with the first unknown id.
            row: the row of this id.
            text: the id.
            count: the number of edges that name unknown ids.
            nodes: the ids of the nodes, as texts.
        """
        total = len(self._edges)
        if self._reading.unknown_edges == "drop":
            self.notes.append(f"{count:,} of {total:,} edges name ids that no node has: dropped")
            return
        problem = f"{shorten(text)} is not the id of a node ({count:,} of {total:,} edges name such ids)"
        hint = similar_id(text, nodes) or ": add the node, or --unknown-edges drop leaves such edges out"
        if count == total > 1:
            hint = ": --id-column chooses the column of the ids, --source-column and --target-column those of the edges"
        raise column.error(problem + hint, row)
