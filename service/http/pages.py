"""All routes but /admin, by FastAPI: models, health, metrics and the documentation, which includes /predict and /embed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi import Path as PathParameter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

from model_store import ModelVersions, StoreError, UnknownVersion
from service.errors import Refusal
from service.http.errors import STATUS, HttpRefusal, error_responses, headers_for, refusal_for
from service.http.openapi import Document
from service.http.reply import GZIP_FROM_BYTES, NPY
from service.jobs.ledger import JobError
from service.predict.questions import Question
from service.rollout.probation import last_rollback
from service.rollout.rollout import Rollout
from service.telemetry.metrics import CONTENT_TYPE, Metrics
from sgformer_client.answers import Live, ManifestAnswer, ModelsAnswer, PredictAnswer, Ready, StoredVersion

Version = Annotated[int, PathParameter(ge=1, lt=2**63, description="number of a version")]
KEY = HTTPBearer(scheme_name="key", auto_error=False)
"""For the OpenAPI document: `security` has checked the key already."""
GROUPS = {
    "answers": "Predictions and embeddings.",
    "models": "The versions of the model.",
    "admin": "Retraining and roll-back, with the admin token.",
    "operations": "Health checks and metrics.",
}
"""Groups of routes, in the order of the page."""
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def pages(
    rollout: Rollout,
    metrics: Metrics,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
    private: bool,
    admin: APIRouter,
) -> FastAPI:
    """The FastAPI application. `private`: API keys are set, so the public OpenAPI document shows no ids of the graph."""
    app = FastAPIOffline(
        title="SGFormer serving",
        version="1",
        description="Exact answers for nodes of a graph, and for nodes that it has never seen.",
        openapi_tags=[{"name": name, "description": about} for name, about in GROUPS.items()],
        lifespan=lifespan,
        redoc_url=None,
        static_url="/docs-assets",
    )
    document = Document(app, private)
    app.openapi = lambda: document.of(rollout.model)  # type: ignore[method-assign]  # FastAPI's way
    app.add_middleware(GZipMiddleware, minimum_size=GZIP_FROM_BYTES, compresslevel=1)
    _add_errors(app)
    _add_answers(app)
    _add_models(app, rollout)
    _add_operations(app, rollout, metrics)
    app.include_router(admin, responses=error_responses("admin"), dependencies=[Depends(KEY)])

    @app.get("/", include_in_schema=False)
    async def home() -> RedirectResponse:
        return RedirectResponse("/docs")

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

    about = "Embeddings of the same nodes."

    @post("/embed", operation_id="embed", summary=about, responses=errors | {200: npy})
    def embed(_question: Question) -> PredictAnswer:
        raise NotImplementedError


def _add_operations(app: FastAPI, rollout: Rollout, metrics: Metrics) -> None:
    get = partial(app.get, tags=["operations"], responses=error_responses("operations"))

    @get("/health/live", summary="The process answers.")
    async def live() -> Live:
        return Live()

    @get("/health/ready", summary="A version is verified, warmed and has answered its probes.")
    async def ready() -> Ready:
        return Ready.model_validate(rollout.current().origin)

    about = "Metrics of all workers in the text format of Prometheus."

    @get("/metrics", summary=about, response_class=PlainTextResponse)
    async def metrics_page() -> Response:
        metrics.flush()
        return Response(await asyncio.to_thread(metrics.page), media_type=CONTENT_TYPE)


def _add_models(app: FastAPI, rollout: Rollout) -> None:
    get = partial(app.get, tags=["models"], responses=error_responses("models"))
    about = "The versions in the store, and which one this worker serves."

    # Ordinary functions: they read files, so FastAPI runs them in its threads.
    @get("/models", summary=about, response_model_exclude_unset=True)
    def models() -> ModelsAnswer:
        model = rollout.model
        shown = model and model.origin | {"engine": model.engine_name, "loading_seconds": model.seconds}
        answer: dict[str, Any] = {"serving": shown, "failure": rollout.failure, "probation": rollout.probation.version}
        try:
            versions = rollout.versions()
            state, numbers = versions.state(), versions.versions()
        except (StoreError, OSError):
            return ModelsAnswer(**answer, problem=None, rolled_back=None, versions=[])  # `failure` says why
        stored = [_stored(versions, version, version == state.live) for version in numbers]
        answer |= {"problem": state.problem, "rolled_back": last_rollback(state.history)}
        return ModelsAnswer(**answer, versions=[entry for entry in stored if entry is not None])

    @get("/models/{version}", summary="The manifest of one version: settings, scores, classes, files.")
    def manifest_of(version: Version) -> ManifestAnswer:
        return ManifestAnswer(version=version, **json.loads(rollout.versions().manifest(version).to_json()))

    @get("/models/{version}/report", summary="Its training report.", response_class=HTMLResponse)
    def report(version: Version) -> HTMLResponse:
        page = rollout.versions().report(version)
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

    # After the response to an Exception starlette raises it again, and the gateway logs it.
    for kind in (Refusal, StoreError, JobError, RequestValidationError, HTTPException, Exception):
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
    return Refusal("not_json", "the body cannot be read as JSON")  # its bytes are not text
