"""The ledger in Redis: for jobs that `sgf-worker` processes train, on any machine that shares the store.

sgf:jobs:order            job ids by the time of their submission
sgf:jobs:record:<id>      the job
sgf:jobs:events:<id>      its events, a list; sgf:jobs:log:<id> the tail of its log
sgf:jobs:active:<model>   the id of the model's job that is queued or running
sgf:jobs:key:<model>:<key>   the id of the job that was added with this idempotency key
sgf:jobs:beat:<id>        the heartbeat of its worker; expires BEAT_SECONDS after the last report
sgf:jobs:workers          the connected workers by their last announcement, in seconds of the clock of Redis
sgf:jobs:once:<id>:<state>   a service has counted this state in its metrics

Other programs may write to Redis. Everything that is read is validated; an invalid record is skipped and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.jobs.job import Job, State
from service.jobs.ledger import KEPT_JOBS, JobsUnavailable, Ledger, check_addition, require_job
from service.redis_connection import cause_of, connection_options
from service.settings import Settings

LOG = logging.getLogger("service.jobs")
Result = TypeVar("Result")
PREFIX = "sgf:jobs:"
ORDER, WORKERS = f"{PREFIX}order", f"{PREFIX}workers"
KEPT_SECONDS = 30 * 86_400
BEAT_SECONDS = 5
WORKER_SECONDS = 10  # a worker counts as connected for this time after its last announcement
TIMEOUT_SECONDS = 2.0


class RedisLedger(Ledger):
    def __init__(self, settings: Settings, worker: str | None = None) -> None:
        """`worker` is the name under which the calling process announces itself when it claims or reports a job."""
        timeouts = {"socket_timeout": TIMEOUT_SECONDS, "socket_connect_timeout": TIMEOUT_SECONDS}
        options = {"decode_responses": True, "encoding_errors": "replace", **timeouts, **connection_options(settings)}
        # One immediate retry: the server may have closed an idle connection.
        self._redis: Any = Redis.from_url(retry=Retry(NoBackoff(), 1), **options)
        self._worker = worker
        self._invalid: set[str] = set()

    def add(self, job: Job, key: str | None) -> Job:
        key_name = f"{PREFIX}key:{job.model}:{key}"

        def attempt(pipe: Any) -> Job:
            same_key = None if key is None else self._find(pipe, pipe.get(key_name))
            if earlier := check_addition(job, key, same_key, self._find(pipe, pipe.get(_active(job)))):
                return earlier
            pipe.multi()
            if key is not None:
                pipe.set(key_name, job.id, ex=KEPT_SECONDS)
            _write(pipe, job, None)
            return job

        return self._transaction(attempt, key_name, _active(job))

    def get(self, job_id: str) -> Job:
        with _redis_errors():
            return require_job(self._find(self._redis, job_id), job_id)

    def jobs(self) -> list[Job]:
        with _redis_errors():
            ids = self._redis.zrevrange(ORDER, 0, KEPT_JOBS - 1)
            records = self._redis.mget([_record(job_id) for job_id in ids]) if ids else []
            self._redis.zremrangebyrank(ORDER, 0, -KEPT_JOBS - 1)
        jobs = (self._validate(job_id, record) for job_id, record in zip(ids, records, strict=True))
        return [job for job in jobs if job is not None]

    def update(self, job_id: str, change: Callable[[Job], Job]) -> Job:
        def attempt(pipe: Any) -> Job:
            before = require_job(self._find(pipe, job_id), job_id)
            holder, job = pipe.get(_active(before)), change(before)
            pipe.multi()
            if job != before:
                _write(pipe, job, holder)
            return job

        return self._transaction(attempt, _record(job_id))

    def claim(self) -> Job | None:
        if self._worker is not None:
            self.announce(self._worker)
        return super().claim()

    def report(self, job: Job, lines: list[str], log_tail: str) -> bool:
        """A heartbeat with the complete state of the job, so that it also restores a record that Redis has lost.

        Returns True if a cancel was requested, or if the job was abandoned and does not belong to this worker any more.
        """
        events = f"{PREFIX}events:{job.id}"

        def attempt(pipe: Any) -> bool:
            stored, holder, count = self._find(pipe, job.id), pipe.get(_active(job)), pipe.llen(events)
            if (stored is not None and not stored.active) or holder not in (None, job.id):
                return True
            cancel = stored is not None and stored.cancel_requested
            pipe.multi()
            _write(pipe, job.model_copy(update={"cancel_requested": cancel}), holder)
            if lines[count:]:
                pipe.rpush(events, *lines[count:])
            pipe.expire(events, KEPT_SECONDS)
            pipe.set(f"{PREFIX}log:{job.id}", log_tail, ex=KEPT_SECONDS)
            if job.active:
                pipe.set(f"{PREFIX}beat:{job.id}", 1, ex=BEAT_SECONDS)
            return cancel

        if self._worker is not None:
            self.announce(self._worker)
        return self._transaction(attempt, _record(job.id), _active(job))

    def abandon(self, job: Job) -> Job:
        """Writes the end of a job whose worker is silent, unless the worker has reported in the meantime."""
        # A report writes the record together with the heartbeat, so `update` notices it.
        return self.update(job.id, lambda stored: job if stored.active and not self.has_heartbeat(job.id) else stored)

    def has_heartbeat(self, job_id: str) -> bool:
        with _redis_errors():
            return bool(self._redis.exists(f"{PREFIX}beat:{job_id}"))

    def announce(self, worker: str) -> None:
        with _redis_errors():
            now = self._redis.time()[0]
            self._redis.zadd(WORKERS, {worker: now})
            self._redis.zremrangebyscore(WORKERS, "-inf", now - WORKER_SECONDS)

    def withdraw(self, worker: str) -> None:
        with _redis_errors():
            self._redis.zrem(WORKERS, worker)

    def workers(self) -> int:
        with _redis_errors():
            return int(self._redis.zcount(WORKERS, self._redis.time()[0] - WORKER_SECONDS, "+inf"))

    def count_once(self, job_id: str, state: State) -> bool:
        with _redis_errors():
            return bool(self._redis.set(f"{PREFIX}once:{job_id}:{state}", 1, nx=True, ex=KEPT_SECONDS))

    def events(self, job_id: str, position: int) -> tuple[list[str], int]:
        with _redis_errors():
            lines = self._redis.lrange(f"{PREFIX}events:{job_id}", position, -1)
        return lines, position + len(lines)

    def log_tail(self, job_id: str) -> str:
        with _redis_errors():
            return self._redis.get(f"{PREFIX}log:{job_id}") or ""

    def _find(self, client: Any, job_id: str | None) -> Job | None:
        return None if job_id is None else self._validate(job_id, client.get(_record(job_id)))

    def _validate(self, job_id: str, record: str | None) -> Job | None:
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
            self._invalid = {job_id} if len(self._invalid) >= KEPT_JOBS else self._invalid | {job_id}
            LOG.warning("Redis holds an invalid job, %srecord:%.64r (%s); it is skipped", PREFIX, job_id, problem)
        return None

    def _transaction(self, attempt: Callable[[Any], Result], *watched: str) -> Result:
        """Runs `attempt` atomically; repeats it if another client changed a watched key in between."""
        with _redis_errors():
            result: Result = self._redis.transaction(attempt, *watched, value_from_callable=True)
            return result


def _record(job_id: str) -> str:
    return f"{PREFIX}record:{job_id}"


def _active(job: Job) -> str:
    return f"{PREFIX}active:{job.model}"


def _write(pipe: Any, job: Job, holder: str | None) -> None:
    """`holder`: the job id in the active key of the model. It may be another id if Redis has lost its data meanwhile."""
    pipe.set(_record(job.id), job.model_dump_json(), ex=None if job.active else KEPT_SECONDS)
    pipe.zadd(ORDER, {job.id: datetime.fromisoformat(job.submitted_at).timestamp()})
    if job.active and holder in (None, job.id):
        pipe.set(_active(job), job.id)
    elif holder == job.id:
        pipe.delete(_active(job))


@contextmanager
def _redis_errors() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise JobsUnavailable(f"Redis, which keeps the jobs, failed ({cause_of(error)})") from error
