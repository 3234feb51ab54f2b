"""Answers /explain, /similar and /map: parses the request, computes the answer off the event loop, and encodes it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import orjson

from service.engines.served_model import ServedModel
from service.explain.explain_rows import AnswerFields, ExplainRows
from service.explain.map_rows import MapRows
from service.explain.questions import parse_explain, parse_map_limit, parse_similar
from service.explain.similar_rows import SimilarRows
from service.http.request import Request
from service.predict.batching import Batcher
from service.predict.predictor import Answer, refusal_with_id
from service.predict.rows import Rows
from service.settings import Settings
from service.telemetry.metrics import Metrics
from sgformer import NeighborhoodTooLarge, NewNodeError

KEPT_MAPS = 2


class Explainer:
    def __init__(self, settings: Settings, metrics: Metrics, batcher: Batcher) -> None:
        self._settings, self._metrics, self._batcher = settings, metrics, batcher
        self._maps: dict[tuple[str, int, int], bytes] = {}
        """Encoded answers of /map by snapshot, version and limit; the last KEPT_MAPS."""

    async def explain(self, current: Callable[[], ServedModel], request: Request) -> Answer:
        """Raises Refusal and the domain's errors. `current` returns the served model."""
        question = parse_explain(request.content(self._settings.max_body_bytes), self._settings)
        rows = ExplainRows(question, self._settings.max_explain)
        return await self._answer(current, request, rows, [question.node_id])

    async def similar(self, current: Callable[[], ServedModel], request: Request) -> Answer:
        """Raises what `explain` raises."""
        question = parse_similar(request.content(self._settings.max_body_bytes), self._settings)
        rows = SimilarRows(question, self._settings.max_recompute)
        return await self._answer(current, request, rows, [node.id for node in question.new_nodes])

    async def map(self, current: Callable[[], ServedModel], request: Request) -> Answer:
        """The map of the snapshot, which is computed once per limit. Raises Refusal."""
        limit = parse_map_limit(request.target.partition(b"?")[2])
        model = current().acquire()
        try:
            key = model.id, model.version, min(limit, model.snapshot.states.num_nodes)
            if key not in self._maps:
                computed: AnswerFields = await self._batcher.compute(model, MapRows(limit), request)
                self._maps[key] = computed.fields["content"]
                for oldest in list(self._maps)[:-KEPT_MAPS]:
                    del self._maps[oldest]
            return Answer(self._maps[key], model.origin, {})
        finally:
            model.release()

    async def _answer(self, current: Callable[[], ServedModel], request: Request, rows: Rows, names: list[Any]) -> Answer:
        """`names`: the ids of the new nodes. Errors of `sgformer` name a new node by its position in this list."""
        model, start = current().acquire(), time.perf_counter()
        try:
            computed: AnswerFields = await self._batcher.compute(model, rows, request)
        except (NewNodeError, NeighborhoodTooLarge) as error:
            raise refusal_with_id(error, names) from None
        finally:
            model.release()
        self._metrics.record_stages(compute=computed.seconds, queue=time.perf_counter() - start - computed.seconds)
        origin = model.origin_at(computed.sequence)
        content = orjson.dumps(origin | computed.fields, option=orjson.OPT_SERIALIZE_NUMPY)
        return Answer(content, origin, {"server-timing": f"compute;dur={computed.seconds * 1000:.3f}"})
