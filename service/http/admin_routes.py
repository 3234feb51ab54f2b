"""The routes of /admin: retraining jobs, and which version is live. `security` has checked the token already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header
from fastapi import Path as PathParameter
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from model_store import ModelVersions, SnapshotError, StoreError
from service.errors import Refusal
from service.http.event_stream import EventStream
from service.jobs.job import Job
from service.jobs.job_service import JobService
from service.jobs.submission import Submission
from service.rollout.rollout import Rollout

JobId = Annotated[str, PathParameter(pattern="^[0-9a-f]{16}$", description="of a job")]
IdempotencyKey = Annotated[
    str | None, Header(min_length=1, max_length=200, description="the same key and body again: the same job again")
]
NO_WORKER = "no sgf-worker is connected to this Redis; the job waits until one is"
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


class LiveVersion(BaseModel):
    model: str
    live: int
    before: int | None


def admin_routes(service: JobService | None, data_root: Path, rollout: Rollout) -> APIRouter:
    """`service` is None if /admin is off: then requests are refused earlier, and OpenAPI still describes the routes."""
    router = APIRouter(prefix="/admin", tags=["admin"])
    _add_models(router, rollout)

    def job_service() -> JobService:
        if service is None:
            raise Refusal("not_found", "the admin endpoints are off (SGF_ADMIN_TOKEN)")
        return service

    # Not async: the functions read files or Redis, so FastAPI runs them in threads.
    @router.post(
        "/retrain", status_code=202, summary="Submit a retraining; returns its job.", response_model_exclude_none=True
    )
    def retrain(submission: Submission, idempotency_key: IdempotencyKey = None) -> Submitted:
        submission.check(data_root)
        try:
            model = rollout.versions().name
        except StoreError as error:
            raise Refusal("conflict", f"the model to retrain is unknown: {error}") from None
        workers = job_service().ledger.workers()  # before the job is accepted: this may fail
        submitted = job_service().submit(submission, model, idempotency_key)
        return Submitted(job=submitted.id, **_waiting(submitted, workers))

    @router.get("/jobs", summary="All recorded retrainings.")
    def jobs() -> Jobs:
        return Jobs(jobs=job_service().ledger.jobs())

    @router.get("/jobs/{job_id}", summary="One retraining: state, epoch, scores, verdict, lineage, log.")
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

    return router


def _waiting(job: Job, workers: int) -> dict[str, Any]:
    return {"workers": workers, "warning": NO_WORKER if job.state == "queued" and not workers else None}


def _add_models(router: APIRouter, rollout: Rollout) -> None:
    @router.post("/models/activate", summary="Verify a version, replay its probes, make it live.")
    def activate(activation: Activation) -> LiveVersion:
        versions = rollout.versions()
        before = _live(versions)
        versions.activate(activation.version)
        return LiveVersion(model=versions.name, live=activation.version, before=before)

    @router.post("/models/rollback", summary="Go back to the version that was live before.")
    def rollback() -> LiveVersion:
        versions = rollout.versions()
        before = _live(versions)
        return LiveVersion(model=versions.name, live=versions.rollback(), before=before)


def _live(versions: ModelVersions) -> int | None:
    try:
        return versions.live()
    except SnapshotError:
        return None  # activating a version mends it
