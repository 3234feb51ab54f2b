"""The record of all jobs in Redis, for workers on other machines.

sgf:jobs:order            ids by the time of their submission
sgf:jobs:record:<id>      the job; written by whoever trains it, or by the service while nobody does
sgf:jobs:events:<id>      its events, a list; sgf:jobs:log:<id> the tail of its log
sgf:jobs:active:<model>   the id of the job that is not done yet
sgf:jobs:key:<model>:<key>   the id and the request's digest of an idempotency key
sgf:jobs:cancel:<id>      somebody wants it cancelled
sgf:jobs:beat:<id>        its trainer lives; gone BEAT_SECONDS after the last beat
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

import orjson
from redis import Redis, RedisError

from service.errors import Refusal
from service.jobs.record import Job
from service.jobs.runner import Line, already_running, has_ended, other_request, unknown_job
from service.jobs.supervision import running
from service.settings import Settings

Result = TypeVar("Result")
PREFIX = "sgf:jobs:"
ORDER = f"{PREFIX}order"
KEPT = 200
KEPT_SECONDS = 30 * 86_400
BEAT_SECONDS = 5
TIMEOUT_SECONDS = 2.0


class RedisLedger:
    """Every method raises Refusal (jobs_unavailable) where Redis does not answer."""

    def __init__(self, settings: Settings) -> None:
        timeouts = {"socket_timeout": TIMEOUT_SECONDS, "socket_connect_timeout": TIMEOUT_SECONDS}
        self._redis: Any = Redis.from_url(settings.redis_url or "redis://", decode_responses=True, **timeouts)

    def add(self, job: Job, key: str | None, digest: str) -> Job:
        named, active = f"{PREFIX}key:{job.model}:{key}", f"{PREFIX}active:{job.model}"

        def attempt(pipe: Any) -> Job:
            if key is not None and (known := pipe.get(named)):
                before = orjson.loads(known)
                if pipe.exists(f"{PREFIX}record:{before['id']}"):  # else it was forgotten
                    if before["digest"] != digest:
                        raise other_request(key, before["id"])
                    return self._read(pipe, before["id"])
            if (other := pipe.get(active)) and pipe.exists(f"{PREFIX}record:{other}"):
                raise already_running(job.model, other)
            pipe.multi()
            if key is not None:
                pipe.set(named, orjson.dumps({"id": job.id, "digest": digest}), ex=KEPT_SECONDS)
            pipe.set(active, job.id)
            _write(pipe, job)
            return job

        return self._transaction(attempt, named, active)

    def get(self, job_id: str) -> Job:
        with _answering():
            return self._read(self._redis, job_id)

    def jobs(self) -> list[Job]:
        with _answering():
            ids = self._redis.zrevrange(ORDER, 0, KEPT - 1)
            records = self._redis.mget([f"{PREFIX}record:{one}" for one in ids]) if ids else []
            self._redis.zremrangebyrank(ORDER, 0, -KEPT - 1)
            return [Job.model_validate_json(record) for record in records if record]

    def cancel(self, job_id: str) -> Job:
        record = f"{PREFIX}record:{job_id}"

        def attempt(pipe: Any) -> Job:
            job = self._read(pipe, job_id)
            if not job.active and job.state != "cancelled":
                raise has_ended(job)
            pipe.multi()
            if job.state == "queued":
                job = job.ended("cancelled")
                _write(pipe, job)
                pipe.delete(f"{PREFIX}active:{job.model}")  # its own: another one is refused while it is active
            elif job.state == "running":
                job = job.model_copy(update={"cancel_requested": True})
                pipe.set(f"{PREFIX}cancel:{job_id}", 1, ex=KEPT_SECONDS)
            return job

        return self._transaction(attempt, record)

    def claim(self, job_id: str) -> Job | None:
        """Running from now on; None where it does not wait any more."""

        def attempt(pipe: Any) -> Job | None:
            job = self._read(pipe, job_id)
            if job.state != "queued":
                return None
            pipe.multi()
            job = running(job)
            _write(pipe, job)
            pipe.set(f"{PREFIX}beat:{job_id}", 1, ex=BEAT_SECONDS)
            return job

        return self._transaction(attempt, f"{PREFIX}record:{job_id}")

    def report(self, job: Job, lines: list[str], tail: str) -> bool:
        """A sign of life with all that is known. Puts back what a Redis that was lost has forgotten.

        Returns whether to stop: somebody wants it cancelled, or it was given up while we were away and is not ours any more.
        """
        record, events, active = f"{PREFIX}record:{job.id}", f"{PREFIX}events:{job.id}", f"{PREFIX}active:{job.model}"

        def attempt(pipe: Any) -> bool:
            stored, holder, known = pipe.get(record), pipe.get(active), pipe.llen(events)
            cancel = bool(pipe.get(f"{PREFIX}cancel:{job.id}"))
            given_up = stored is not None and not Job.model_validate_json(stored).active
            if given_up or holder not in (None, job.id):
                return True
            pipe.multi()
            _write(pipe, job.model_copy(update={"cancel_requested": cancel}))
            if lines[known:]:
                pipe.rpush(events, *lines[known:])
            pipe.expire(events, KEPT_SECONDS)
            pipe.set(f"{PREFIX}log:{job.id}", tail, ex=KEPT_SECONDS)
            if job.active:
                pipe.set(f"{PREFIX}beat:{job.id}", 1, ex=BEAT_SECONDS)
                pipe.set(active, job.id)
            else:
                pipe.delete(active)
            return cancel

        return self._transaction(attempt, record, active)

    def give_up(self, job: Job) -> Job:
        """Marks a job as it now stands, unless its trainer has spoken in the meantime."""
        record, beat, active = f"{PREFIX}record:{job.id}", f"{PREFIX}beat:{job.id}", f"{PREFIX}active:{job.model}"

        def attempt(pipe: Any) -> Job:
            found, spoken, holder = self._read(pipe, job.id), pipe.get(beat), pipe.get(active)
            if spoken or not found.active:
                return found
            pipe.multi()
            _write(pipe, job)
            if holder == job.id:
                pipe.delete(active)
            return job

        return self._transaction(attempt, record, beat, active)

    def amend(self, job: Job) -> None:
        """What a job that was given up has published, or made live, all the same. The state that was told stays."""
        record = f"{PREFIX}record:{job.id}"
        facts = {"version": job.version, "snapshot": job.snapshot, "scores": job.scores, "live": job.live}

        def attempt(pipe: Any) -> None:
            found = self._read(pipe, job.id)
            pipe.multi()
            if found.given_up:
                _write(pipe, found.model_copy(update=facts))

        self._transaction(attempt, record)

    def beats(self, job_id: str) -> bool:
        with _answering():
            return bool(self._redis.exists(f"{PREFIX}beat:{job_id}"))

    def first_time(self, what: str) -> bool:
        """Whether nobody has said this before, of all processes."""
        with _answering():
            return bool(self._redis.set(f"{PREFIX}once:{what}", 1, nx=True, ex=KEPT_SECONDS))

    def events(self, job_id: str, after: int) -> list[Line]:
        with _answering():
            lines = self._redis.lrange(f"{PREFIX}events:{job_id}", after, -1)
            return [Line(number, text) for number, text in enumerate(lines, after + 1)]

    def log_tail(self, job_id: str) -> str:
        with _answering():
            return self._redis.get(f"{PREFIX}log:{job_id}") or ""

    def _read(self, client: Any, job_id: str) -> Job:
        record = client.get(f"{PREFIX}record:{job_id}")
        if record is None:
            raise unknown_job(job_id)
        return Job.model_validate_json(record)

    def _transaction(self, attempt: Callable[[Any], Result], *watched: str) -> Result:
        """All or nothing, and again if somebody changed a watched key in between."""
        with _answering():
            result: Result = self._redis.transaction(attempt, *watched, value_from_callable=True)
            return result


def _write(pipe: Any, job: Job) -> None:
    pipe.set(f"{PREFIX}record:{job.id}", job.model_dump_json(), ex=None if job.active else KEPT_SECONDS)
    pipe.zadd(ORDER, {job.id: datetime.fromisoformat(job.submitted_at).timestamp()})


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise Refusal(
            "jobs_unavailable", f"Redis, which keeps the jobs, does not answer ({type(error).__name__})"
        ) from error
