"""Answers /predict and /embed: parses the body, looks it up in the cache, computes rows and encodes the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from service.engines.served_model import ServedModel
from service.errors import Refusal
from service.http.request import Request
from service.predict import encoding
from service.predict.batching import Batcher
from service.predict.cache import Cache
from service.predict.encoding import Form, Part
from service.predict.questions import NewNode, NodeId, Question, SparseFeatures, parse_question
from service.predict.rows import KnownRows, NewRows
from service.settings import Settings
from service.telemetry.metrics import Metrics
from sgformer import NeighborhoodTooLarge, NewNodeError, NewNodes, SparseRows
from sgformer.features import MixedRows


class Answer(NamedTuple):
    content: bytes
    origin: dict[str, Any]
    """The model, version and snapshot that computed it."""


class Predictor:
    def __init__(self, settings: Settings, metrics: Metrics, batcher: Batcher, cache: Cache | None) -> None:
        self._settings, self._metrics, self._batcher, self._cache = settings, metrics, batcher, cache

    async def answer(self, current: Callable[[], ServedModel], request: Request, form: Form) -> Answer:
        """Raises Refusal and the domain's errors.

        Args:
            current: returns the version in service, which stays open until the answer is encoded.
        """
        start = time.perf_counter()
        question = parse_question(request.content(self._settings.max_body_bytes), self._settings.max_body_weight)
        self._check_limits(question)
        self._metrics.record_stage("parse", time.perf_counter() - start)
        model = current().acquire()
        try:
            if self._cache is None or not (question.new_nodes or self._settings.cache_known):
                return Answer(await self._compute(model, question, form, request), model.origin)
            return Answer(await self._look_up(self._cache, model, question, form, request), model.origin)
        finally:
            model.release()

    async def _look_up(self, cache: Cache, model: ServedModel, question: Question, form: Form, request: Request) -> bytes:
        if not cache.available:
            self._metrics.cache_lookups.labels(cache.kind, "skipped").inc()
            return await self._compute(model, question, form, request)
        # Engines agree within 1e-5, not bit by bit, and another release may write other JSON.
        key = f"{encoding.FORMAT}:{model.id}:{model.version}:{model.engine_name}:{form}:{question.digest()}"
        content = await cache.get(key)
        self._metrics.cache_lookups.labels(cache.kind, "miss" if content is None else "hit").inc()
        if content is None:
            content = await self._compute(model, question, form, request)
            cache.put(key, content)
        return content

    async def _compute(self, model: ServedModel, question: Question, form: Form, request: Request) -> bytes:
        start = time.perf_counter()
        if question.top_k is not None and model.config.task == "regression":
            raise Refusal("invalid", "top_k selects classes, and this model predicts values")
        parts: list[Part] = []
        if question.nodes:
            embeddings = question.embeddings or form != "predictions"
            known = KnownRows(model.rows(question.nodes), embeddings)
            parts.append((question.nodes, await self._batcher.compute(model, known, request)))
        if question.new_nodes:
            names = [node.id for node in question.new_nodes]
            try:
                new = NewRows.of(model, new_nodes(model, question), question.mode, self._settings.max_recompute)
                results = await self._batcher.compute(model, new, request)
            except (NewNodeError, NeighborhoodTooLarge) as error:
                raise _refusal_with_id(error, names) from None
            parts.append((names, results))
        encoding.check_finite(parts)
        answered = time.perf_counter()
        seconds = sum(results.seconds for _, results in parts)
        self._metrics.record_stage("compute", seconds)
        self._metrics.record_stage("queue", answered - start - seconds)
        try:
            return encoding.encode(model, question, parts, form)
        finally:
            self._metrics.record_stage("encode", time.perf_counter() - answered)

    def _check_limits(self, question: Question) -> None:
        neighbors = sum(len(node.neighbors) for node in question.new_nodes)
        for what, count, limit in (
            ("nodes", len(question.nodes) + len(question.new_nodes), self._settings.max_nodes),
            ("edges", len(question.edges), self._settings.max_neighbors),
            ("neighbours", neighbors, self._settings.max_neighbors),
        ):
            if count > limit:
                raise Refusal("batch_too_large", f"{count:,} {what} in one request, the limit is {limit:,}", limit=limit)


def _refusal_with_id(error: NewNodeError | NeighborhoodTooLarge, names: Sequence[NodeId]) -> Exception:
    """The error counts new nodes from 0; the client knows them by their ids."""
    if error.item is None:
        return error
    name = names[error.item]
    message = f"new node {name!r}: {error.message}"
    if isinstance(error, NeighborhoodTooLarge):
        return Refusal("neighborhood_too_large", message, node=name, size=error.size, limit=error.limit)
    return Refusal("invalid", message, node=name)


def new_nodes(model: ServedModel, question: Question) -> NewNodes:
    """The new nodes of a question as arrays. Raises Refusal, which names the new node, and UnknownNodeError."""
    nodes, width = question.new_nodes, model.config.in_features
    flat = [neighbor for node in nodes for neighbor in node.neighbors]
    rows = model.rows(flat) if flat else np.empty(0, dtype=np.int64)
    ends = np.cumsum([len(node.neighbors) for node in nodes])
    places = {node.id: place for place, node in enumerate(nodes)}
    return NewNodes.build(
        _features(nodes, width),
        np.split(rows, ends[:-1]),  # type: ignore[arg-type]  # arrays of ints, not lists
        num_nodes=model.num_nodes,
        num_features=width,
        edges=[(places[left], places[right]) for left, right in question.edges],
        joint=question.joint,
    )


def _features(nodes: list[NewNode], width: int) -> object:
    """Dense rows, sparse rows, or both: each node keeps the form of its request, and so its bits."""
    for node in nodes:
        _check_features(node, width)
    is_sparse = np.array([isinstance(node.features, SparseFeatures) for node in nodes])
    if not is_sparse.any():
        return np.array([node.features for node in nodes], dtype=np.float64)
    indptr, indices, values = [0], [], []
    for node in nodes:
        if isinstance(node.features, SparseFeatures):
            entries = sorted(zip(node.features.indices, node.features.values, strict=True))
            indices += [place for place, _ in entries]
            values += [value for _, value in entries]
            indptr.append(len(indices))
    sparse = SparseRows(np.array(indptr), np.array(indices, dtype=np.int64), np.array(values, dtype=np.float64), width)
    dense = [node.features for node in nodes if not isinstance(node.features, SparseFeatures)]
    return MixedRows(np.array(dense, dtype=np.float64), sparse, is_sparse) if dense else sparse


def _check_features(node: NewNode, width: int) -> None:
    features = node.features
    if not isinstance(features, SparseFeatures):
        if len(features) != width:
            raise Refusal("invalid", f"new node {node.id!r} has {len(features)} features, expected {width}", node=node.id)
        return
    if len(features.indices) != len(features.values):
        problem = f"{len(features.indices)} indices and {len(features.values)} values, expected as many of both"
    elif features.indices and max(features.indices) >= width:
        problem = f"feature index {max(features.indices)}, expected 0 to {width - 1}"
    elif len(set(features.indices)) != len(features.indices):
        problem = "a feature index twice"
    else:
        return
    raise Refusal("invalid", f"new node {node.id!r} has {problem}", node=node.id)
