"""Answers /predict and /embed: parses the body, looks up the answer in the cache, or computes and encodes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from service.engines.served_model import ServedModel
from service.errors import Refusal
from service.http.errors import refusal_for
from service.http.request import Request
from service.live.operations import check_count
from service.live.replica import Replica
from service.predict import encoding
from service.predict.batching import Batcher
from service.predict.cache import Cache
from service.predict.encoding import Form, Part
from service.predict.questions import NewNode, Question, parse_question
from service.predict.results import PartialResults, Results
from service.predict.rows import AssumedRows, Rows, bisect_errors, rows_of
from service.request_fields import NodeId
from service.settings import Settings
from service.telemetry.metrics import Metrics
from sgformer import NeighborhoodTooLarge, NewNodeError, UnknownNodeError

MAX_ATTEMPTS = 4
"""Most computations of one request. A request is computed again if a change has removed one of its nodes meanwhile. With
`per_item`, it is also computed again without a new node that the engine refuses: the engine reports one node at a time."""
Prepare = Callable[[Sequence[Any]], Rows]
"""Makes the rows of nodes: ids of known nodes, then new nodes."""
ResultsAndErrors = tuple[Results | None, dict[int, Refusal]]
"""The results of all nodes without an error (None if there are none), and the errors by position."""


class Answer(NamedTuple):
    content: bytes
    origin: dict[str, Any]
    """The model, version and snapshot that computed it, and the last change of the graph that it contains."""
    headers: dict[str, str]
    """The durations of waiting and computing, and whether the answer was in the cache."""


class Predictor:
    def __init__(
        self, settings: Settings, metrics: Metrics, batcher: Batcher, cache: Cache | None, replica: Replica
    ) -> None:
        self._settings, self._metrics, self._batcher, self._cache = settings, metrics, batcher, cache
        self._replica = replica

    async def answer(self, current: Callable[[], ServedModel], request: Request, form: Form) -> Answer:
        """Raises Refusal and the domain's errors.

        Args:
            current: returns the served model, which stays open until the answer is encoded.
        """
        start = time.perf_counter()
        question = parse_question(request.content(self._settings.max_body_bytes), self._settings.max_body_weight)
        self._check_limits(question)
        self._metrics.record_stages(parse=time.perf_counter() - start)
        if question.min_sequence:
            await self._replica.reach(question.min_sequence, request.slot)
        model = current().acquire()
        try:
            if self._cache is None or not self._is_cached(question):
                return await self._compute(model, question, form, request)
            return await self._look_up(self._cache, model, question, form, request)
        finally:
            model.release()

    def _is_cached(self, question: Question) -> bool:
        """Errors of single nodes are not cached: some of them depend on the settings of the worker."""
        return bool(question.new_nodes or self._settings.cache_known) and question.on_error == "refuse"

    async def _look_up(self, cache: Cache, model: ServedModel, question: Question, form: Form, request: Request) -> Answer:
        if not cache.available:
            self._metrics.cache_lookups.labels(cache.kind, "skipped").inc()
            return await self._compute(model, question, form, request)
        # Engines agree within 1e-5, not bit by bit, and another release may write other JSON.
        prefix, digest = f"{encoding.FORMAT}:{model.id}:{model.version}:{model.engine_name}", question.digest()
        sequence = model.sequence
        content = await cache.get(f"{prefix}:{sequence}:{form}:{digest}")
        self._metrics.cache_lookups.labels(cache.kind, "miss" if content is None else "hit").inc()
        if content is not None:
            return Answer(content, model.origin_at(sequence), {"x-sgf-cache": "hit"})
        answer = await self._compute(model, question, form, request)
        cache.put(f"{prefix}:{answer.origin.get('sequence', 0)}:{form}:{digest}", answer.content)
        answer.headers["x-sgf-cache"] = "miss"
        return answer

    async def _compute(self, model: ServedModel, question: Question, form: Form, request: Request) -> Answer:
        start = time.perf_counter()
        _check_options(model, question, form)
        embeddings = question.embeddings or form != "predictions"
        if question.assuming:
            prepare: Prepare = lambda _: AssumedRows(question, embeddings, self._settings.max_recompute)  # noqa: E731
        else:
            prepare = lambda nodes: rows_of(model, question, nodes, embeddings, self._settings.max_recompute)  # noqa: E731
        assumed = question.assuming and question.on_error == "per_item"
        compute = self._compute_assumed_per_item if assumed else self._compute_rows
        results, errors = await compute(model, question, prepare, request)
        parts = _parts(question, results, errors)
        computed_at, seconds = time.perf_counter(), 0.0 if results is None else results.seconds
        origin = model.origin_at(model.sequence if results is None else results.sequence)
        if question.assuming:
            origin = origin | {"assumed": len(question.assuming)}
        content = encoding.encode(model, question, parts, form, origin)
        self._metrics.record_stages(
            queue=computed_at - start - seconds, compute=seconds, encode=time.perf_counter() - computed_at
        )
        headers = {}
        if question.new_nodes:  # for known nodes the header would cost a percent of the answer's time
            waited, computed = (computed_at - request.started - seconds) * 1000, seconds * 1000
            headers = {"server-timing": f"queue;dur={waited:.3f}, compute;dur={computed:.3f}"}
        return Answer(content, origin, headers)

    async def _compute_rows(
        self, model: ServedModel, question: Question, prepare: Prepare, request: Request
    ) -> ResultsAndErrors:
        """Raises the error of the first node without an answer; with `per_item`, returns the errors of all such nodes."""
        nodes: list[Any] = [*question.nodes, *question.new_nodes]
        per_item, errors, prepared_at = question.on_error == "per_item", dict[int, Refusal](), -1
        for attempt in range(MAX_ATTEMPTS):
            if model.sequence != prepared_at:
                # Rows are valid until their node is removed. Then they are looked up again, and the error names the node.
                prepared_at = model.sequence
                errors = await _errors(nodes, prepare) if per_item else {}
            valid = [node for position, node in enumerate(nodes) if position not in errors] if errors else nodes
            if not valid:
                return None, errors
            try:
                return await self._batcher.compute(model, prepare(valid), request), errors
            except (NewNodeError, NeighborhoodTooLarge, UnknownNodeError) as error:
                positions = [at for at, node in enumerate(nodes) if at not in errors and isinstance(node, NewNode)]
                refusal = refusal_with_id(error, [nodes[position].id for position in positions])
                item = getattr(error, "item", None) if per_item else None
                if attempt == MAX_ATTEMPTS - 1 or (item is None and model.sequence == prepared_at):
                    raise refusal from None
                if item is not None:
                    errors[positions[item]] = refusal
        raise AssertionError("the last attempt returns or raises")

    async def _compute_assumed_per_item(
        self, model: ServedModel, question: Question, prepare: Prepare, request: Request
    ) -> ResultsAndErrors:
        """The compute process finds the nodes without an answer: the operations are applied only there."""
        nodes: list[Any] = [*question.nodes, *question.new_nodes]
        partial = await self._batcher.compute(model, prepare(nodes), request)
        assert isinstance(partial, PartialResults)  # noqa: S101
        errors = {at: refusal_with_id(error, [_id(nodes[at])]) for at, error in partial.errors.items()}
        return partial.results, errors

    def _check_limits(self, question: Question) -> None:
        if question.assuming:
            check_count(question.assuming, self._settings.max_operations)
        limit = self._settings.max_neighbors
        _check_limit("nodes", len(question.nodes) + len(question.new_nodes), self._settings.max_nodes)
        if question.new_nodes:
            _check_limit("edges", len(question.edges), limit)
            _check_limit("neighbours", sum(len(node.neighbors) for node in question.new_nodes), limit)


def _check_limit(kind: str, count: int, limit: int) -> None:
    if count > limit:
        raise Refusal("batch_too_large", f"{count:,} {kind} in one request, the limit is {limit:,}", limit=limit)


def _id(node: Any) -> NodeId:
    return node.id if isinstance(node, NewNode) else node


def _parts(question: Question, results: Results | None, errors: dict[int, Refusal]) -> list[Part]:
    """The known and the new nodes. A row that is not finite becomes an error of its node; without `per_item`, raises
    Refusal.
    """
    if results is not None and results.is_finite and not errors:
        if not question.new_nodes:
            return [Part(question.nodes, results.parts[0], errors)]
        new = Part([node.id for node in question.new_nodes], results.parts[-1], errors)
        return [Part(question.nodes, results.parts[0], errors), new] if question.nodes else [new]
    parts, computed, start = [], iter(() if results is None else results.parts), 0
    for ids in (question.nodes, [node.id for node in question.new_nodes]):
        own = {position - start: refusal for position, refusal in errors.items() if start <= position < start + len(ids)}
        start += len(ids)
        part = next(computed) if len(own) < len(ids) else None
        if part is not None and (rows := part.rows_not_finite()):
            valid = [position for position in range(len(ids)) if position not in own]
            if question.on_error == "refuse":
                raise _no_answer(ids[rows[0]])
            own |= {valid[row]: _no_answer(ids[valid[row]]) for row in rows}
            part = part.without(rows) if len(own) < len(ids) else None
        if ids:
            parts.append(Part(ids, part, dict(sorted(own.items()))))
    return parts


async def _errors(nodes: Sequence[Any], prepare: Prepare) -> dict[int, Refusal]:
    """The error of each node that cannot be prepared, by position."""
    errors: dict[int, Refusal] = {}
    for position, error in bisect_errors(nodes, prepare):
        if error is not None:
            errors[position] = refusal_with_id(error, [_id(nodes[position])])
        await asyncio.sleep(0)  # other requests run in between
    return errors


def _check_options(model: ServedModel, question: Question, form: Form) -> None:
    """Raises Refusal if the options do not fit the task of the model or the format of the answer."""
    if question.top_k is not None and model.config.task == "regression":
        raise Refusal("invalid", "top_k selects classes, and this model predicts values")
    if question.probabilities == "by_class":
        model.derive(encoding.by_class_template)
    if question.on_error == "per_item" and form == "npy":
        message = "an npy array has one row per node and cannot hold errors, expected on_error: refuse, or Accept: */*"
        raise Refusal("invalid", message)


def _no_answer(node: NodeId) -> Refusal:
    return Refusal("no_answer", f"the model has no finite answer for node {node!r}", node=node)


def refusal_with_id(error: Exception, names: Sequence[NodeId]) -> Refusal:
    """The refusal for an error. It names a new node by its id; errors of `sgformer` number new nodes from 0."""
    if not isinstance(error, NewNodeError | NeighborhoodTooLarge) or error.item is None:
        return refusal_for(error)
    name = names[error.item]
    message = f"new node {name!r}: {error.message.replace(f'(row {error.item}, ', '(')}"
    if isinstance(error, NeighborhoodTooLarge):
        return Refusal("neighborhood_too_large", message, node=name, size=error.size, limit=error.limit)
    return Refusal("invalid", message, node=name)
