"""The routes of /admin: retraining jobs, and which version is live. `Security` has checked the token already."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header
from fastapi import Path as PathParameter
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from model_store import ModelVersions, SnapshotError, StoreError
from service.errors import Refusal
from service.http.event_stream import EventStream
from service.jobs.compaction import COMPACTION
from service.jobs.job import Job
from service.jobs.job_service import JobService
from service.jobs.submission import Submission
from service.rollout.rollout import Rollout

JobId = Annotated[str, PathParameter(pattern="^[0-9a-f]{16}$", description="id of a job")]
IdempotencyKey = Annotated[
    str | None,
    Header(min_length=1, max_length=200, description="a request with the same key and body returns the same job"),
]
NO_WORKER = "no sgf-worker is connected to this Redis; the job waits until one is"
DISCARD_CHANGES = "accept a version over other data, to which the changes of the live graph cannot be applied"
EVENT_STREAM = {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Server-sent events."}


class Waiting(BaseModel):
    workers: int | None = Field(default=None, description="connected processes that can train a queued job")
    warning: str | None = Field(default=None, description="why the job does not start")


class Submitted(Waiting):
    job: str


class JobShown(Waiting, Job):
    log_tail: str = Field(description="the last lines of the training's own output")


class Jobs(BaseModel):
    jobs: list[Job] = Field(description="newest first")


class Activation(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    version: int = Field(ge=1, lt=2**31, description="the version to make live")
    discard_changes: bool = Field(default=False, description=DISCARD_CHANGES)


class Rollback(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    discard_changes: bool = Field(default=False, description=DISCARD_CHANGES)


class LiveVersion(BaseModel):
    model: str
    live: int
    before: int | None


def admin_routes(service: JobService | None, data_root: Path, rollout: Rollout) -> APIRouter:
    """`service` is None if /admin is off. `Security` then refuses the requests; the OpenAPI document has the routes
    anyway.
    """
    router = APIRouter(prefix="/admin", tags=["admin"])
    _add_models(router, rollout)

    def job_service() -> JobService:
        if service is None:
            raise Refusal("not_found", "the admin endpoints are off: SGF_ADMIN_TOKEN is not set")
        return service

    # Not async: the functions read files or Redis, so FastAPI runs them in threads.
    @router.post(
        "/retrain", status_code=202, summary="Submit a retraining; returns its job.", response_model_exclude_none=True
    )
    def retrain(submission: Submission, idempotency_key: IdempotencyKey = None) -> Submitted:
        submission.check(data_root)
        return submit(submission, idempotency_key)

    def submit(submission: Submission, idempotency_key: str | None) -> Submitted:
        try:
            model = rollout.versions().name
        except StoreError as error:
            raise Refusal("conflict", f"the model to retrain is unknown: {error}") from None
        workers = job_service().ledger.workers()  # before the job is submitted: this call may fail
        submitted = job_service().submit(submission, model, idempotency_key)
        return Submitted(job=submitted.id, **_waiting(submitted, workers))

    @router.get("/jobs", summary="All recorded retrainings.")
    def jobs() -> Jobs:
        return Jobs(jobs=job_service().ledger.jobs())

    @router.get("/jobs/{job_id}", summary="One retraining: state, epoch, scores, verdict, parent version, log.")
    def job(job_id: JobId) -> JobShown:
        ledger = job_service().ledger
        job = ledger.get(job_id)
        waiting = _waiting(job, ledger.workers()) if job.state == "queued" else {}
        return JobShown(**job.model_dump(), **waiting, log_tail=ledger.log_tail(job_id))

    @router.post("/jobs/{job_id}/cancel", summary="Stop a retraining, or take it out of the queue.")
    def cancel(job_id: JobId) -> Job:
        return job_service().cancel(job_id)

    @router.get(
        "/jobs/{job_id}/events",
        summary="The events of a job as server-sent events, until it has ended.",
        response_class=StreamingResponse,
        responses={200: EVENT_STREAM},
    )
    def events(
        job_id: JobId, last_event_id: Annotated[int, Header(ge=0, lt=2**31, description="resume after this event")] = 0
    ) -> StreamingResponse:
        job_service().ledger.get(job_id)  # refuses an unknown job before the stream begins
        return EventStream(job_service().ledger, job_id, last_event_id)

    _add_compaction(router, rollout, submit)
    return router


def _add_compaction(router: APIRouter, rollout: Rollout, submit: Callable[[Submission, str | None], Submitted]) -> None:
    @router.post(
        "/graph/compact",
        status_code=202,
        summary="Submit a compaction: the live weights over the graph as it is now, as a new version.",
        response_model_exclude_none=True,
    )
    def compact(idempotency_key: IdempotencyKey = None) -> Submitted:
        model = rollout.current()
        if not model.is_changed:
            message = f"the graph has not changed since version {model.version}: there is nothing to compact"
            raise Refusal("conflict", message)
        return submit(COMPACTION, idempotency_key)


def _waiting(job: Job, workers: int) -> dict[str, Any]:
    return {"workers": workers, "warning": NO_WORKER if job.state == "queued" and not workers else None}


def _add_models(router: APIRouter, rollout: Rollout) -> None:
    @router.post("/models/activate", summary="Verify a version, replay its probes, make it live.")
    def activate(activation: Activation) -> LiveVersion:
        versions = rollout.versions()
        before = _live(versions)
        versions.activate(activation.version, discard_changes=activation.discard_changes)
        return LiveVersion(model=versions.name, live=activation.version, before=before)

    @router.post("/models/rollback", summary="Go back to the version that was live before.")
    def rollback(request: Rollback | None = None) -> LiveVersion:
        versions = rollout.versions()
        before = _live(versions)
        live = versions.rollback(discard_changes=request is not None and request.discard_changes)
        return LiveVersion(model=versions.name, live=live, before=before)


def _live(versions: ModelVersions) -> int | None:
    try:
        return versions.live()
    except SnapshotError:
        return None  # the record of live versions is damaged; activating a version repairs it
