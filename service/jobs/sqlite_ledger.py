"""The job records of a store in SQLite, shared by all workers; they survive a restart."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.jobs.progress import log_tail, whole_lines
from service.jobs.record import Job
from service.jobs.redaction import Redaction
from service.jobs.runner import JobsUnavailable, Line, Place, already_running, has_ended, other_request, unknown_job
from service.jobs.supervision import running

READING = "BEGIN"
"""Does not block writers."""
KEPT = 200
"""Jobs that are kept; older ended ones are deleted."""
FORMAT = 1
"""In format 0 a key was unique over all models."""
MAKE = (
    """CREATE TABLE jobs (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, model TEXT NOT NULL, state TEXT NOT NULL,
        key TEXT, digest TEXT NOT NULL, cancel INTEGER NOT NULL DEFAULT 0, record TEXT NOT NULL, UNIQUE (model, key)
    ) STRICT""",
    "CREATE UNIQUE INDEX one_per_model ON jobs (model) WHERE state IN ('queued', 'running')",
)
SET_ASIDE = ("DROP INDEX IF EXISTS one_per_model", "ALTER TABLE jobs RENAME TO jobs_before")
TAKE_OVER = ("INSERT INTO jobs SELECT * FROM jobs_before", "DROP TABLE jobs_before")


class SqliteLedger:
    def __init__(self, path: Path, redaction: Redaction) -> None:
        """The folders of the jobs, with their events and logs, are next to the file."""
        self._path, self._redaction = path, redaction
        self._made = False

    def add(self, job: Job, key: str | None, digest: str) -> Job:
        with self._transaction() as database:
            known = "SELECT * FROM jobs WHERE model = ? AND key = ?"
            if key is not None and (row := database.execute(known, (job.model, key)).fetchone()):
                if row["digest"] != digest:
                    raise other_request(key, row["id"])
                return _job(row)
            active = "SELECT id FROM jobs WHERE model = ? AND state IN ('queued', 'running')"
            if row := database.execute(active, (job.model,)).fetchone():
                raise already_running(job.model, row["id"])
            insert = "INSERT INTO jobs (id, model, state, key, digest, record) VALUES (?, ?, ?, ?, ?, ?)"
            database.execute(insert, (job.id, job.model, job.state, key, digest, job.model_dump_json()))
            forget = (
                "DELETE FROM jobs WHERE state NOT IN ('queued', 'running') AND number <= (SELECT max(number) FROM jobs) - ?"
            )
            database.execute(forget, (KEPT,))
        return job

    def get(self, job_id: str) -> Job:
        with self._transaction(READING) as database:
            return _job(_row(database, job_id))

    def jobs(self) -> list[Job]:
        with self._transaction(READING) as database:
            return [_job(row) for row in database.execute("SELECT * FROM jobs ORDER BY number DESC")]

    def workers(self) -> int:
        return 1  # the leader

    def events(self, job_id: str, after: Place) -> list[Line]:
        return whole_lines(self._path.parent / job_id, self._redaction, after)

    def log_tail(self, job_id: str) -> str:
        return log_tail(self._path.parent / job_id, self._redaction)

    def waiting(self) -> int:
        with self._transaction(READING) as database:
            return int(database.execute("SELECT count(*) FROM jobs WHERE state = 'queued'").fetchone()[0])

    def save(self, job: Job) -> None:
        with self._transaction() as database:
            _save(database, job)

    def cancel(self, job_id: str) -> tuple[Job, bool]:
        """The job, and whether this call ended it."""
        with self._transaction() as database:
            job = _job(_row(database, job_id))
            waiting = job.state == "queued"
            if waiting:
                job = job.ended("cancelled")
                _save(database, job)
            elif job.state == "running":
                database.execute("UPDATE jobs SET cancel = 1 WHERE id = ?", (job_id,))
                job = job.model_copy(update={"cancel_requested": True})
            elif job.state != "cancelled":
                raise has_ended(job)
        return job, waiting

    def running(self) -> Job | None:
        with self._transaction(READING) as database:
            row = database.execute("SELECT * FROM jobs WHERE state = 'running' ORDER BY number").fetchone()
            return None if row is None else _job(row)

    def claim(self) -> Job | None:
        """The job that has waited longest, now running. None if no job waits."""
        with self._transaction() as database:
            row = database.execute("SELECT * FROM jobs WHERE state = 'queued' ORDER BY number").fetchone()
            if row is None:
                return None
            job = running(_job(row))
            _save(database, job)
        return job

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """A connection per transaction: transactions are short and come from any thread; opening costs about 1 ms."""
        try:
            database = self._opened()
            try:
                database.execute(begin)
                yield database
                database.execute("COMMIT")
            finally:
                database.close()  # rolls back what was not committed
        except (sqlite3.Error, OSError) as error:
            cause = error.strerror if isinstance(error, OSError) else error  # without the path
            raise JobsUnavailable(f"the job records in SQLite are unavailable ({cause})") from error

    def _opened(self) -> sqlite3.Connection:
        if not self._made:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self._path, timeout=5, isolation_level=None)
        database.row_factory = sqlite3.Row
        if not self._made:
            database.execute("PRAGMA journal_mode = WAL")
            _make(database)
            self._made = True
        return database


def _make(database: sqlite3.Connection) -> None:
    """Creates or migrates the tables. Of several workers that start at once, one does it."""
    database.execute("BEGIN IMMEDIATE")
    if database.execute("PRAGMA user_version").fetchone()[0] < FORMAT:
        older = database.execute("SELECT 1 FROM sqlite_schema WHERE name = 'jobs'").fetchone() is not None
        for step in (*(SET_ASIDE if older else ()), *MAKE, *(TAKE_OVER if older else ())):
            database.execute(step)
        database.execute(f"PRAGMA user_version = {FORMAT}")
    database.execute("COMMIT")


def _row(database: sqlite3.Connection, job_id: str) -> sqlite3.Row:
    row: sqlite3.Row | None = database.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
    if row is None:
        raise unknown_job(job_id)
    return row


def _job(row: sqlite3.Row) -> Job:
    return Job.model_validate_json(row["record"]).model_copy(update={"cancel_requested": bool(row["cancel"])})


def _save(database: sqlite3.Connection, job: Job) -> None:
    update = "UPDATE jobs SET state = ?, record = ? WHERE id = ?"
    database.execute(update, (job.state, job.model_dump_json(), job.id))
