"""/admin: retrainings, and which version is live. Who may ask is checked at the door (`security`)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header
from fastapi import Path as PathParameter
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from model_store import ModelVersions, SnapshotError, StoreError
from service.errors import Refusal
from service.jobs import stream
from service.jobs.catalogue import Catalogue
from service.jobs.record import Job
from service.jobs.runner import Runner
from service.jobs.submission import Submission
from service.rollout import Rollout

JobId = Annotated[str, PathParameter(pattern="^[0-9a-f]{16}$", description="of a job")]
IdempotencyKey = Annotated[
    str | None, Header(min_length=1, max_length=200, description="the same key and body again: the same job again")
]
EVENT_STREAM = {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Server-sent events."}


class Submitted(BaseModel):
    job: str


class JobShown(Job):
    log_tail: str = Field(description="the last lines of the training's own output")


class Jobs(BaseModel):
    jobs: list[Job] = Field(description="the newest first")


class Activation(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    version: int = Field(ge=1, lt=2**31, description="the version to make live")


class LiveVersion(BaseModel):
    model: str
    live: int
    before: int | None


def admin_pages(runner: Runner | None, catalogue: Catalogue, rollout: Rollout) -> APIRouter:
    """`runner` is None where /admin is off: then nothing gets past the door, and the document still describes it all."""
    router = APIRouter(prefix="/admin", tags=["admin"])
    _add_models(router, rollout)

    def jobs_of() -> Runner:
        if runner is None:
            raise Refusal("not_found", "the admin endpoints are off (SGF_ADMIN_TOKEN)")
        return runner

    # Ordinary functions: they read files or ask Redis, so FastAPI runs them in its threads.
    @router.post("/retrain", status_code=202, summary="Submit a retraining; the answer is its job.")
    def retrain(submission: Submission, idempotency_key: IdempotencyKey = None) -> Submitted:
        submission.check(catalogue)
        try:
            model = rollout.versions().name
        except StoreError as error:
            raise Refusal("conflict", f"which model is to be retrained? {error}") from None
        return Submitted(job=jobs_of().submit(submission, model, idempotency_key).id)

    @router.get("/jobs", summary="All retrainings that are remembered.")
    def jobs() -> Jobs:
        return Jobs(jobs=jobs_of().jobs())

    @router.get("/jobs/{job_id}", summary="One retraining: state, epoch, scores, verdict, lineage, log.")
    def job(job_id: JobId) -> JobShown:
        found = jobs_of().job(job_id)
        return JobShown(**found.model_dump(), log_tail=jobs_of().log_tail(job_id))

    @router.post("/jobs/{job_id}/cancel", summary="Stop a retraining, or take it out of the queue.")
    def cancel(job_id: JobId) -> Job:
        return jobs_of().cancel(job_id)

    @router.get(
        "/jobs/{job_id}/events",
        summary="What happens, as server-sent events, until the job has ended.",
        response_class=StreamingResponse,
        responses={200: EVENT_STREAM},
    )
    def events(
        job_id: JobId, last_event_id: Annotated[int, Header(ge=0, lt=2**31, description="go on after this one")] = 0
    ) -> StreamingResponse:
        jobs_of().job(job_id)  # an unknown one is refused before the stream begins
        lines = stream.events(jobs_of(), job_id, last_event_id)
        return StreamingResponse(lines, media_type="text/event-stream", headers={"cache-control": "no-store"})

    return router


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
