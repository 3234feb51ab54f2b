"""The job records in Redis, for workers on other machines.

sgf:jobs:order            job ids by the time of their submission
sgf:jobs:record:<id>      the job; its worker writes it while it runs, the service at all other times
sgf:jobs:events:<id>      its events, a list; sgf:jobs:log:<id> the tail of its log
sgf:jobs:active:<model>   the id of the model's job that is queued or running
sgf:jobs:key:<model>:<key>   the job id and the request's digest of an idempotency key
sgf:jobs:cancel:<id>      a cancel was requested
sgf:jobs:beat:<id>        the heartbeat of its worker; expires BEAT_SECONDS after the last one
sgf:jobs:workers          the connected workers by their last announcement, in seconds of the clock of Redis
sgf:jobs:once:<id>:<state>   a service has counted this state in its metrics

Whatever is read is data of unknown origin: it is validated, and a record that does not validate is skipped and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.jobs.record import Job
from service.jobs.runner import JobsUnavailable, Line, Place, already_running, has_ended, other_request, unknown_job
from service.jobs.supervision import running
from service.redis_connection import cause_of, connection_options
from service.settings import Settings

LOG = logging.getLogger("service.jobs")
Result = TypeVar("Result")
PREFIX = "sgf:jobs:"
ORDER, WORKERS = f"{PREFIX}order", f"{PREFIX}workers"
KEPT = 200
KEPT_SECONDS = 30 * 86_400
BEAT_SECONDS = 5
WORKER_SECONDS = 10
"""A worker counts as connected for so long after its last announcement."""
TIMEOUT_SECONDS = 2.0


class KeyUse(BaseModel):
    """The first use of an idempotency key."""

    id: str
    digest: str


class RedisLedger:
    """Every method raises JobsUnavailable if Redis fails."""

    def __init__(self, settings: Settings) -> None:
        timeouts = {"socket_timeout": TIMEOUT_SECONDS, "socket_connect_timeout": TIMEOUT_SECONDS}
        options = {"decode_responses": True, "encoding_errors": "replace", **timeouts, **connection_options(settings)}
        # One retry, at once: the server may have closed an idle connection.
        self._redis: Any = Redis.from_url(retry=Retry(NoBackoff(), 1), **options)
        self._invalid: set[str] = set()

    def add(self, job: Job, key: str | None, digest: str) -> Job:
        named, active = f"{PREFIX}key:{job.model}:{key}", f"{PREFIX}active:{job.model}"

        def attempt(pipe: Any) -> Job:
            use = None if key is None else _key_use(pipe.get(named))
            if key is not None and use is not None and (before := self._find(pipe, use.id)):
                if use.digest != digest:
                    raise other_request(key, before.id)
                return before
            other = self._find(pipe, pipe.get(active))
            if other is not None and other.active:
                raise already_running(job.model, other.id)
            pipe.multi()
            if key is not None:
                pipe.set(named, KeyUse(id=job.id, digest=digest).model_dump_json(), ex=KEPT_SECONDS)
            pipe.set(active, job.id)
            _write(pipe, job)
            return job

        return self._transaction(attempt, named, active)

    def get(self, job_id: str) -> Job:
        with _failures():
            return self._read(self._redis, job_id)

    def jobs(self) -> list[Job]:
        with _failures():
            ids = self._redis.zrevrange(ORDER, 0, KEPT - 1)
            records = self._redis.mget([f"{PREFIX}record:{job_id}" for job_id in ids]) if ids else []
            self._redis.zremrangebyrank(ORDER, 0, -KEPT - 1)
        found = (self._validated(job_id, record) for job_id, record in zip(ids, records, strict=True))
        return [job for job in found if job is not None]

    def cancel(self, job_id: str) -> Job:
        def attempt(pipe: Any) -> Job:
            job = self._read(pipe, job_id)
            if not job.active and job.state != "cancelled":
                raise has_ended(job)
            pipe.multi()
            if job.state == "queued":
                job = job.ended("cancelled")
                _write(pipe, job)
                pipe.delete(f"{PREFIX}active:{job.model}")  # names this job: no other is accepted while it is active
            elif job.state == "running":
                job = job.model_copy(update={"cancel_requested": True})
                pipe.set(f"{PREFIX}cancel:{job_id}", 1, ex=KEPT_SECONDS)
            return job

        return self._transaction(attempt, f"{PREFIX}record:{job_id}")

    def claim(self) -> Job | None:
        """The job that has waited longest, now running. None if no job waits."""
        for waiting in reversed(self.jobs()):
            if waiting.state == "queued" and (job := self._claim(waiting.id)):
                return job
        return None

    def _claim(self, job_id: str) -> Job | None:
        def attempt(pipe: Any) -> Job | None:
            job = self._find(pipe, job_id)
            if job is None or job.state != "queued":
                return None  # another worker has claimed it, or it was cancelled
            pipe.multi()
            job = running(job)
            _write(pipe, job)
            pipe.set(f"{PREFIX}beat:{job_id}", 1, ex=BEAT_SECONDS)
            return job

        return self._transaction(attempt, f"{PREFIX}record:{job_id}")

    def report(self, job: Job, lines: list[str], tail: str) -> bool:
        """A heartbeat with the whole state of the job, which restores what Redis has lost.

        Returns whether to stop: a cancel was requested, or the job was abandoned and is not of this worker any more.
        """
        record, events, active = f"{PREFIX}record:{job.id}", f"{PREFIX}events:{job.id}", f"{PREFIX}active:{job.model}"

        def attempt(pipe: Any) -> bool:
            stored, holder, known = self._find(pipe, job.id), pipe.get(active), pipe.llen(events)
            cancel = bool(pipe.get(f"{PREFIX}cancel:{job.id}"))
            abandoned = stored is not None and not stored.active
            if abandoned or holder not in (None, job.id):
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
        """Writes the end of an abandoned job, unless its worker has reported in the meantime."""
        record, beat, active = f"{PREFIX}record:{job.id}", f"{PREFIX}beat:{job.id}", f"{PREFIX}active:{job.model}"

        def attempt(pipe: Any) -> Job:
            stored, alive, holder = self._read(pipe, job.id), pipe.get(beat), pipe.get(active)
            if alive or not stored.active:
                return stored
            pipe.multi()
            _write(pipe, job)
            if holder == job.id:
                pipe.delete(active)
            return job

        return self._transaction(attempt, record, beat, active)

    def amend(self, job: Job) -> None:
        """Adds what an abandoned job has published or made live nevertheless. Its state stays."""
        facts = {"version": job.version, "snapshot": job.snapshot, "scores": job.scores, "live": job.live}

        def attempt(pipe: Any) -> None:
            stored = self._read(pipe, job.id)
            pipe.multi()
            if stored.given_up:
                _write(pipe, stored.model_copy(update=facts))

        self._transaction(attempt, f"{PREFIX}record:{job.id}")

    def beats(self, job_id: str) -> bool:
        with _failures():
            return bool(self._redis.exists(f"{PREFIX}beat:{job_id}"))

    def announce(self, worker: str) -> None:
        """Counts the worker as connected for WORKER_SECONDS."""
        with _failures():
            now = self._redis.time()[0]
            self._redis.zadd(WORKERS, {worker: now})
            self._redis.zremrangebyscore(WORKERS, "-inf", now - WORKER_SECONDS)

    def withdraw(self, worker: str) -> None:
        with _failures():
            self._redis.zrem(WORKERS, worker)

    def workers(self) -> int:
        """How many workers are connected."""
        with _failures():
            return int(self._redis.zcount(WORKERS, self._redis.time()[0] - WORKER_SECONDS, "+inf"))

    def first_time(self, event: str) -> bool:
        """True for one of all processes that call this for the event."""
        with _failures():
            return bool(self._redis.set(f"{PREFIX}once:{event}", 1, nx=True, ex=KEPT_SECONDS))

    def events(self, job_id: str, after: Place) -> list[Line]:
        with _failures():
            lines = self._redis.lrange(f"{PREFIX}events:{job_id}", after.number, -1)
            return [Line(Place(number), text) for number, text in enumerate(lines, after.number + 1)]

    def log_tail(self, job_id: str) -> str:
        with _failures():
            return self._redis.get(f"{PREFIX}log:{job_id}") or ""

    def _read(self, client: Any, job_id: str) -> Job:
        job = self._find(client, job_id)
        if job is None:
            raise unknown_job(job_id)
        return job

    def _find(self, client: Any, job_id: str | None) -> Job | None:
        return None if job_id is None else self._validated(job_id, client.get(f"{PREFIX}record:{job_id}"))

    def _validated(self, job_id: str, record: str | None) -> Job | None:
        """The job in a record; None, logged once, if the record is not a job of this id."""
        if record is None:
            return None
        try:
            job = Job.model_validate_json(record)
            if job.id == job_id:
                return job
            problem = f"it is the record of job {job.id}"
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        if job_id not in self._invalid:
            self._invalid = {job_id} if len(self._invalid) >= KEPT else self._invalid | {job_id}
            LOG.warning("Redis holds an invalid job, %srecord:%.64r (%s); it is skipped", PREFIX, job_id, problem)
        return None

    def _transaction(self, attempt: Callable[[Any], Result], *watched: str) -> Result:
        """Runs `attempt` atomically; repeats it if another client changed a watched key in between."""
        with _failures():
            result: Result = self._redis.transaction(attempt, *watched, value_from_callable=True)
            return result


def _key_use(stored: str | None) -> KeyUse | None:
    try:
        return None if stored is None else KeyUse.model_validate_json(stored)
    except ValidationError:
        return None


def _write(pipe: Any, job: Job) -> None:
    pipe.set(f"{PREFIX}record:{job.id}", job.model_dump_json(), ex=None if job.active else KEPT_SECONDS)
    pipe.zadd(ORDER, {job.id: datetime.fromisoformat(job.submitted_at).timestamp()})


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise JobsUnavailable(f"Redis, which keeps the jobs, failed ({cause_of(error)})") from error
