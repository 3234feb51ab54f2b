"""A user's tables as `TablesFolder` reads them, with the same flags, notes and messages, out of core.

Columns of nodes are read one at a time, encoded, and then put together by blocks of rows. The ends of edges are joined with
the ids by the engine. What the engine finds wrong is looked up again by the code for small tables, which writes the message.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from model_store import FeatureSchema, NodeIds
from training.data.graph_folder.edge_sorter import EdgeSorter
from training.data.graph_folder.engine import Engine, file_name, quoted
from training.data.graph_folder.large_table import LargeTable, open_large_table
from training.data.graph_folder.progress import Report
from training.data.tables.folder import Features, TablesFolder
from training.data.tables.ids import EXCEL_NUMBER, WHOLE, build_ids, id_texts, plain_numbers, rows_of
from training.data.tables.reading import Reading
from training.data.tables.table import Column, to_numpy

BLOCK_ROWS = 65_536
SPACES = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())


class FeatureSink(Protocol):
    """Receives the features block by block, in the order of the rows."""

    def create_features(self, count: int, width: int, /) -> NDArray[Any]: ...


class LargeTables(TablesFolder):
    """`features` and `edge_index` are not set: the features are in an array of the sink, the edges in `sorter`."""

    def __init__(
        self,
        path: Path,
        reading: Reading | None,
        schema: FeatureSchema | None,
        engine: Engine,
        scratch: Path,
        sink: FeatureSink,
        report: Report,
    ) -> None:
        self._engine, self._scratch, self._sink, self._report = engine, scratch, sink, report
        self.sorter: EdgeSorter
        self.width = 0
        super().__init__(path, reading, schema)

    @property
    def has_labels(self) -> bool:
        return self._label is not None

    def _open_table(self, path: Path) -> LargeTable:
        self._report(f"reading {path.name}", 0, 1)
        table = open_large_table(path, self._reading, self._engine, self._scratch)
        self._report(f"reading {path.name}", 1, 1)
        return table

    def _read_edges(self, ends: tuple[str, str], ids: str | None) -> NodeIds:
        self._check_floats(ends)
        nodes = None if self._nodes is None or ids is None else self._nodes.column(ids)
        texts = self._named_by_edges(ends) if nodes is None else id_texts(nodes)
        (texts,) = plain_numbers(texts, [])
        node_ids = build_ids(nodes, texts)
        self.sorter = EdgeSorter(self._scratch, len(node_ids))
        done = unknown = 0
        for batch in self._joined(ends, node_ids, texts):
            done += len(batch)
            sources, targets = (to_numpy(pc.fill_null(batch.column(place), -1)) for place in (0, 1))
            known = (sources >= 0) & (targets >= 0)
            unknown += len(batch) - int(known.sum())
            self.sorter.add(sources[known], targets[known])
            self._report("looking up the ids of edges", done, len(self._edges))
        if unknown:
            self._explain_unknown(ends, texts, unknown)
        return node_ids

    def _joined(self, ends: tuple[str, str], node_ids: NodeIds, texts: Any) -> Any:
        """The rows of the nodes at both ends of every edge, null for an id that no node has."""
        edges, by_number = self._large_edges, not node_ids.are_text and all(map(self._is_integer, ends))
        keys = pa.array(node_ids.arrays[0]) if by_number else texts
        nodes = pa.table({"id": keys, "node": pa.array(np.arange(len(node_ids)))})
        whole = pc.all(pc.match_substring_regex(texts, WHOLE)).as_py()
        left, right = (self._key(name, by_number, whole) for name in ends)
        join = f"LEFT JOIN nodes s ON {left} = s.id LEFT JOIN nodes t ON {right} = t.id"
        query = f"SELECT s.node, t.node FROM read_parquet({file_name(edges.values.path)}) e {join}"
        return self._engine.batches(query, {"nodes": nodes})

    def _named_by_edges(self, ends: tuple[str, str]) -> Any:
        """All ids that edges name, sources before targets, in the order of their first occurrence."""
        path = file_name(self._large_edges.values.path)
        parts = [
            f"SELECT {self._key(name, False, False)} AS id, file_row_number + {place * len(self._edges)} AS n "
            f"FROM read_parquet({path}, file_row_number = true) e"
            for place, name in enumerate(ends)
        ]
        query = f"SELECT id FROM (SELECT id, min(n) AS n FROM ({' UNION ALL '.join(parts)}) GROUP BY id) ORDER BY n"
        batches = [batch.column(0).cast(pa.large_string()) for batch in self._engine.batches(query)]
        texts = pa.concat_arrays(batches) if batches else pa.array([], pa.large_string())
        wrong = pc.or_(pc.equal(texts, ""), pc.match_substring_regex(texts, EXCEL_NUMBER))
        if pc.any(pc.fill_null(wrong, True)).as_py():
            self._check_texts(ends)
        return texts

    def _key(self, name: str, by_number: bool, whole: bool) -> str:
        """SQL for the id at the end of an edge: the text that `id_texts` and `plain_numbers` make of it."""
        column = 'e."' + self._large_edges.values.stored[name].replace('"', '""') + '"'
        kind = self._large_edges.values.type_of(name)
        if by_number:
            return f"CAST({column} AS BIGINT)"
        if pa.types.is_floating(kind):
            return f"CAST(CAST({column} AS BIGINT) AS VARCHAR)"
        text = f"trim(CAST({column} AS VARCHAR), {quoted(SPACES)})"
        is_decimal = f"contains({text}, '.')"  # the expression is costly, and few ids have a point
        return f"CASE WHEN {is_decimal} THEN regexp_replace({text}, '{WHOLE}', '\\1') ELSE {text} END" if whole else text

    def _is_integer(self, name: str) -> bool:
        return bool(pa.types.is_integer(self._large_edges.values.type_of(name)))

    @property
    def _large_edges(self) -> LargeTable:
        assert isinstance(self._edges, LargeTable)  # noqa: S101  # `_open_table` makes it
        return self._edges

    def _check_floats(self, ends: tuple[str, str]) -> None:
        """A float as an id may have lost digits. SQL would round it."""
        if any(pa.types.is_floating(self._large_edges.values.type_of(name)) for name in ends):
            self._check_texts(ends)

    def _check_texts(self, ends: tuple[str, str]) -> None:
        for name in ends:
            for part in self._large_edges.parts((name,)):
                id_texts(part.column(name))

    def _explain_unknown(self, ends: tuple[str, str], nodes: Any, count: int) -> None:
        """Raises DataError for the first wrong or unknown id, or notes that edges were dropped."""
        self._check_texts(ends)
        for part in self._large_edges.parts(ends):
            columns: list[Column] = [part.column(name) for name in ends]
            _, *texts = plain_numbers(nodes, [id_texts(column) for column in columns])
            rows = np.stack([rows_of(end, nodes) for end in texts])
            if (unknown := np.any(rows < 0, axis=0)).any():
                row = int(unknown.argmax())
                end = 0 if rows[0, row] < 0 else 1
                self._check_unknown(columns[end], row, texts[end][row].as_py(), count, nodes)
                return

    def _read_features(self, features: Features) -> None:
        """Encodes the columns to files, then writes blocks of rows of all columns to the sink."""
        parts: list[NDArray[np.float32]] = []
        for number, (read_column, feature) in enumerate(features, 1):
            encoded = self._encode(read_column(), feature)
            path = self._scratch / f"column_{number}.npy"
            np.save(path, encoded)
            parts.append(np.load(path, mmap_mode="r"))
            self._report("encoding columns", number, len(features))
        self.width = sum(part.shape[1] for part in parts)
        if not parts:
            return
        count = len(parts[0])
        target = self._sink.create_features(count, self.width)
        for start in range(0, count, BLOCK_ROWS):
            np.concatenate(
                [part[start : start + BLOCK_ROWS] for part in parts], axis=1, out=target[start : start + BLOCK_ROWS]
            )
            self._report("writing features", min(start + BLOCK_ROWS, count), count)
