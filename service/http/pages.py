"""The FastAPI application: models, health, drift, metrics, the routers of other modules, and the OpenAPI document.

The document also describes the routes that the gateway answers without FastAPI.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi import Path as PathParameter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

from model_store import ModelVersions, StoreError, UnknownVersion
from service.errors import Refusal
from service.explain.questions import DEFAULT_SHOWN, MAX_SHOWN, ExplainQuestion, SimilarQuestion
from service.http.console_routes import console_routes
from service.http.data_routes import data_routes
from service.http.errors import STATUS, HttpRefusal, error_responses, headers_for, refusal_for
from service.http.graph_routes import graph_routes
from service.http.openapi import Document
from service.http.reply import GZIP_FROM_BYTES, NPY
from service.jobs.ledger import JobError
from service.live.replica import Replica
from service.monitoring.monitor import Monitor
from service.predict.questions import Question
from service.rollout.probation import last_rollback
from service.rollout.rollout import Rollout
from service.settings import Settings
from service.store_reader import StoreReader
from service.telemetry.metrics import CONTENT_TYPE, Metrics
from sgformer import SgformerError
from sgformer_client.answers import (
    DriftAnswer,
    ExplainAnswer,
    Live,
    ManifestAnswer,
    MapAnswer,
    ModelsAnswer,
    PredictAnswer,
    Ready,
    SimilarAnswer,
    StoredVersion,
)

Version = Annotated[int, PathParameter(ge=1, lt=2**63, description="number of a version")]
KEY = HTTPBearer(scheme_name="key", auto_error=False)
"""For the OpenAPI document only: `Security` checks the key earlier."""
GROUPS = {
    "answers": "Predictions and embeddings.",
    "data": "The data of the served version: nodes, classes, features.",
    "graph": "The graph as it is now, and its changes.",
    "models": "The versions of the model.",
    "admin": "Retraining and roll-back, with the admin token.",
    "operations": "Health checks and metrics.",
}
"""Groups of routes, in the order of the page /docs."""
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def pages(
    settings: Settings,
    rollout: Rollout,
    replica: Replica,
    monitor: Monitor,
    metrics: Metrics,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
    admin: APIRouter,
) -> FastAPI:
    """The FastAPI application. If API keys are set, the public OpenAPI document shows no ids of the graph."""
    app = FastAPIOffline(
        title="SGFormer serving",
        version="1",
        description="Exact answers for nodes of a graph, and for nodes that it has never seen.",
        openapi_tags=[{"name": name, "description": about} for name, about in GROUPS.items()],
        lifespan=lifespan,
        redoc_url=None,
        static_url="/docs-assets",
    )
    document = Document(app, private=bool(settings.api_keys))
    app.openapi = lambda: document.of(rollout.model)  # type: ignore[method-assign]  # FastAPI's way
    app.add_middleware(GZipMiddleware, minimum_size=GZIP_FROM_BYTES, compresslevel=1)
    _add_errors(app)
    _add_answers(app)
    app.include_router(data_routes(rollout), responses=error_responses("data"), dependencies=[Depends(KEY)])
    app.include_router(
        graph_routes(rollout, replica, StoreReader(settings.deadline_seconds)),
        responses=error_responses("graph"),
        dependencies=[Depends(KEY)],
    )
    _add_models(app, rollout, StoreReader(settings.deadline_seconds))
    _add_operations(app, rollout, monitor, metrics)
    app.include_router(admin, responses=error_responses("admin"), dependencies=[Depends(KEY)])

    app.include_router(console_routes())
    return app


def _add_answers(app: FastAPI) -> None:
    """For the OpenAPI document only: the gateway answers these routes, and never calls these functions."""
    security: dict[str, Any] = {"security": [{}, {KEY.scheme_name: []}]}  # a key, if the service has keys
    post = partial(app.post, tags=["answers"], openapi_extra=security)
    errors = error_responses("answers")
    npy = {"content": {NPY: {"schema": {"type": "string", "format": "binary"}}}}
    about = "Predictions for nodes of the graph and for new nodes."

    @post("/predict", operation_id="predict", summary=about, responses=errors)
    def predict(_question: Question) -> PredictAnswer:
        raise NotImplementedError

    about = "Why a node has its answer: parts of the logits, effects of edges and features."

    @post("/explain", operation_id="explain", summary=about, responses=errors)
    def explain(_question: ExplainQuestion) -> ExplainAnswer:
        raise NotImplementedError

    about = "The known nodes with the most similar embeddings."

    @post("/similar", operation_id="similar", summary=about, responses=errors)
    def similar(_question: SimilarQuestion) -> SimilarAnswer:
        raise NotImplementedError

    about = "A map of all nodes: their embeddings in two dimensions."

    @app.get("/map", operation_id="map", summary=about, tags=["data"], responses=error_responses("data"))
    def draw(_limit: Annotated[int, Query(alias="limit", ge=1, le=MAX_SHOWN)] = DEFAULT_SHOWN) -> MapAnswer:
        raise NotImplementedError

    about = "Embeddings of the same nodes."

    @post("/embed", operation_id="embed", summary=about, responses=errors | {200: npy})
    def embed(_question: Question) -> PredictAnswer:
        raise NotImplementedError


def _add_operations(app: FastAPI, rollout: Rollout, monitor: Monitor, metrics: Metrics) -> None:
    get = partial(app.get, tags=["operations"], responses=error_responses("operations"))

    @get("/health/live", summary="The process answers.")
    async def live() -> Live:
        return Live()

    about = "A version is verified, validated against its probes, warm, and has all changes of the graph."

    @get("/health/ready", summary=about, response_model_exclude_none=True)
    async def ready() -> Ready:
        model = rollout.current()
        return Ready.model_validate(model.origin_at(model.sequence))

    about = "Requests in all workers, and the live graph, compared with the training graph."

    @get("/drift", summary=about, response_model_exclude_unset=True, dependencies=[Depends(KEY)])
    async def drift() -> DriftAnswer:
        return await monitor.report()

    about = "Metrics of all workers in the text format of Prometheus."

    @get("/metrics", summary=about, response_class=PlainTextResponse)
    async def metrics_page() -> Response:
        metrics.flush()
        await monitor.set_gauges()
        return Response(await asyncio.to_thread(metrics.page), media_type=CONTENT_TYPE)


def _add_models(app: FastAPI, rollout: Rollout, reader: StoreReader) -> None:
    get = partial(app.get, tags=["models"], responses=error_responses("models"))
    about = "The versions in the store, and which one this worker serves."

    def read_versions() -> dict[str, Any]:
        versions = rollout.versions()
        state, numbers = versions.state(), versions.versions()
        stored = [_stored(versions, version, version == state.live) for version in numbers]
        listed = [entry for entry in stored if entry is not None]
        return {"problem": state.problem, "rolled_back": last_rollback(state.history), "versions": listed}

    @get("/models", summary=about, response_model_exclude_unset=True)
    async def models() -> ModelsAnswer:
        try:
            stored = await reader.run(read_versions)
        except (StoreError, OSError):
            stored = {"problem": None, "rolled_back": None, "versions": []}  # `failure` says why
        model = rollout.model
        serving = model and model.origin | {"engine": model.engine_name, "loading_seconds": model.seconds}
        served: dict[str, Any] = {"serving": serving, "failure": rollout.failure, "probation": rollout.probation.version}
        return ModelsAnswer(**served, **stored)

    @get("/models/{version}", summary="The manifest of one version: settings, scores, classes, files.")
    async def manifest_of(version: Version) -> ManifestAnswer:
        manifest = await reader.run(lambda: rollout.versions().manifest(version))
        return ManifestAnswer(version=version, **json.loads(manifest.to_json()))

    @get("/models/{version}/report", summary="Its training report.", response_class=HTMLResponse)
    async def report(version: Version) -> HTMLResponse:
        page = await reader.run(lambda: rollout.versions().report(version))
        if page is None:
            raise Refusal("unknown_report", f"version {version} has no report")
        return HTMLResponse(page, headers={"content-security-policy": REPORT_POLICY})


def _stored(versions: ModelVersions, version: int, live: bool) -> StoredVersion | None:
    """None for a version that was pruned during the listing."""
    try:
        manifest = versions.manifest(version)
    except UnknownVersion:
        return None
    except StoreError as error:
        return StoredVersion(version=version, live=live, damaged=str(error))
    return StoredVersion(
        version=version,
        live=live,
        snapshot=manifest.snapshot,
        created=manifest.created,
        nodes=manifest.sizes.nodes,
        edges=manifest.sizes.adjacency_entries // 2,
        scores=dict(manifest.scores),
    )


def _add_errors(app: FastAPI) -> None:
    async def respond(request: Request, error: Exception) -> JSONResponse:
        refusal = _refusal_for(request, error)
        return JSONResponse(refusal.body(), STATUS[refusal.code], headers=headers_for(refusal))

    # After the response to an Exception, starlette raises the exception again, and the gateway logs it.
    for kind in (Refusal, StoreError, JobError, SgformerError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, respond)


def _refusal_for(request: Request, error: Exception) -> Refusal:
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return Refusal("not_json", f"the body is not JSON: {first.get('ctx', {}).get('error', 'it cannot be read')}")
        return Refusal("invalid", f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    if not isinstance(error, HTTPException):
        return refusal_for(error)
    path, headers = request.url.path, error.headers
    if error.status_code == 404:
        return HttpRefusal("not_found", f"there is no {path}", headers=headers)
    if error.status_code == 405:
        return HttpRefusal("method_not_allowed", f"{path} does not take {request.method}", headers=headers)
    return Refusal("not_json", "the body cannot be read as JSON")  # the body is not valid UTF-8
