"""Writes the embeddings of all nodes, as unit rows for similarity, and a map of them: their two main components."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.format import npy
from model_store.format.layout import (
    CENTROIDS,
    LIST_ROWS,
    LIST_STARTS,
    MAP,
    UNIT_EMBEDDINGS,
    ArraySpec,
    Sizes,
    optional_specs,
)
from sgformer import ModelConfig
from sgformer.nearest.lists import InvertedLists
from sgformer.nearest.scan import unit_rows

CHUNK_ROWS = 65_536
INDEX_FROM_NODES = 100_000
"""Graphs of this size or more get an index: an exact scan of 100,000 embeddings takes about as long as the rest of an answer
(docs/explain.md has the figures)."""


class EmbeddingFiles:
    """Takes the embeddings block by block, in order (`add`), then writes the map and the index (`finish`)."""

    def __init__(self, folder: Path, specs: Mapping[str, ArraySpec]) -> None:
        self._folder, self._map_spec = folder, specs[MAP]
        self._unit = npy.create(folder / UNIT_EMBEDDINGS, specs[UNIT_EMBEDDINGS])
        count, width = self._unit.shape
        self._lengths = np.empty(count, dtype=np.float32)
        self._sum, self._products = np.zeros(width), np.zeros((width, width))
        self._origin: NDArray[np.float64] | None = None

    def add(self, start: int, embeddings: NDArray[Any]) -> None:
        rows, end = np.asarray(embeddings, dtype=np.float64), start + len(embeddings)
        self._unit[start:end] = unit_rows(rows)
        self._lengths[start:end] = np.sqrt(np.vecdot(rows, rows))
        if self._origin is None:
            self._origin = rows.mean(axis=0)  # subtracted before the products: far from zero they would lose digits
        shifted = rows - self._origin
        self._sum += shifted.sum(axis=0)
        self._products += shifted.T @ shifted

    def finish(self, config: ModelConfig, sizes: Sizes) -> tuple[dict[str, Any], Sizes]:
        """Writes the map and, for a large graph, the index. Returns their entry of the manifest, and the new sizes."""
        map_facts = self._write_map()
        lists = InvertedLists.build(self._unit) if len(self._unit) >= INDEX_FROM_NODES else None
        measured = None if lists is None else lists.fewest_probes(self._unit)
        if lists is None or measured is None:  # a scan is fast enough, or no number of probes reaches the recall
            return {"map": map_facts, "index": None}, sizes
        sizes = replace(sizes, similar_lists=len(lists.centroids))
        specs = optional_specs(config, sizes)
        for name, array in ((CENTROIDS, lists.centroids), (LIST_STARTS, lists.starts), (LIST_ROWS, lists.order)):
            npy.write(self._folder / name, array, specs[name])
        probes, recall = measured
        return {"map": map_facts, "index": {"lists": len(lists.centroids), "probes": probes, "recall": recall}}, sizes

    def _write_map(self) -> dict[str, Any]:
        """Writes the map. Returns its entry of the manifest: how embeddings are projected onto it."""
        assert self._origin is not None  # noqa: S101  # a graph has nodes
        count = len(self._lengths)
        shift = self._sum / count
        mean, covariance = self._origin + shift, self._products / count - np.outer(shift, shift)
        components, explained = main_components(covariance)
        target = npy.create(self._folder / MAP, self._map_spec)
        for start in range(0, count, CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            target[rows] = (self._unit[rows] * self._lengths[rows, None] - mean) @ components.T
        return {"method": "pca", "explained": explained, "mean": mean.tolist(), "components": components.tolist()}


def main_components(covariance: NDArray[np.float64]) -> tuple[NDArray[np.float64], list[float]]:
    """The two main directions (2, width), and the share of the variance along each; zeros if there are fewer.

    The largest entry of a direction is positive, so that the same data gives the same map.
    """
    values, vectors = np.linalg.eigh(covariance)
    width, total = len(values), float(np.trace(covariance))
    components, explained = np.zeros((2, width)), [0.0, 0.0]
    for number in range(min(2, width)):
        direction, value = vectors[:, -1 - number], float(values[-1 - number])
        if value > 0 and total > 0:
            components[number] = direction * np.sign(direction[np.abs(direction).argmax()])
            explained[number] = min(value / total, 1.0)
    return components, explained
