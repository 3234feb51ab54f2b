"""The ledger in a SQLite file of the store: for jobs that the service trains on this machine (without Redis). All workers
share the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.jobs.job import Job, State
from service.jobs.job_folder import FOLDER, JobFolder
from service.jobs.ledger import KEPT_JOBS, JobsUnavailable, Ledger, check_addition, require_job
from service.settings import Settings

READ = "BEGIN"  # does not block writers
FORMAT = 2  # Changes: 1 made keys unique per model; 2 replaced the columns `cancel` and `digest` by `counted`
CREATE = (
    """CREATE TABLE jobs (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, model TEXT NOT NULL, state TEXT NOT NULL,
        key TEXT, record TEXT NOT NULL, counted TEXT NOT NULL DEFAULT '', UNIQUE (model, key)
    ) STRICT""",
    "CREATE UNIQUE INDEX one_per_model ON jobs (model) WHERE state IN ('queued', 'running')",
)
RENAME = ("DROP INDEX IF EXISTS one_per_model", "ALTER TABLE jobs RENAME TO jobs_before")
COPY = (
    """INSERT INTO jobs SELECT number, id, model, state, key,
        CASE cancel WHEN 1 THEN json_set(record, '$.cancel_requested', json('true')) ELSE record END,
        'queued running ' || state FROM jobs_before""",
    "DROP TABLE jobs_before",
)


class SqliteLedger(Ledger):
    def __init__(self, settings: Settings) -> None:
        self._settings, self._path = settings, settings.store / FOLDER / "jobs.sqlite"
        self._has_tables = False

    def add(self, job: Job, key: str | None) -> Job:
        with self._transaction() as database:
            same_key = _first(database, "model = ? AND key = ?", job.model, key)
            active = _first(database, "model = ? AND state IN ('queued', 'running')", job.model)
            if earlier := check_addition(job, key, same_key, active):
                return earlier
            insert = "INSERT INTO jobs (id, model, state, key, record) VALUES (?, ?, ?, ?, ?)"
            database.execute(insert, (job.id, job.model, job.state, key, job.model_dump_json()))
            old = "number <= (SELECT max(number) FROM jobs) - ? AND state NOT IN ('queued', 'running')"
            database.execute(f"DELETE FROM jobs WHERE {old}", (KEPT_JOBS,))  # noqa: S608  # a constant
        return job

    def get(self, job_id: str) -> Job:
        with self._transaction(READ) as database:
            return require_job(_first(database, "id = ?", job_id), job_id)

    def jobs(self) -> list[Job]:
        with self._transaction(READ) as database:
            return _select(database, "true ORDER BY number DESC")

    def update(self, job_id: str, change: Callable[[Job], Job]) -> Job:
        with self._transaction() as database:
            before = require_job(_first(database, "id = ?", job_id), job_id)
            job = change(before)
            if job != before:
                update = "UPDATE jobs SET state = ?, record = ? WHERE id = ?"
                database.execute(update, (job.state, job.model_dump_json(), job.id))
        return job

    def report(self, job: Job, lines: list[str], log_tail: str) -> bool:  # noqa: ARG002  # read from the folder of the job
        def change(stored: Job) -> Job:
            return job.model_copy(update={"cancel_requested": stored.cancel_requested})

        return self.update(job.id, change).cancel_requested

    def workers(self) -> int:
        return 1  # the leader

    def events(self, job_id: str, position: int) -> tuple[list[str], int]:
        return JobFolder(self._settings, job_id).read_events(position)

    def log_tail(self, job_id: str) -> str:
        return JobFolder(self._settings, job_id).read_log_tail()

    def count_once(self, job_id: str, state: State) -> bool:
        count = "UPDATE jobs SET counted = counted || ' ' || ? WHERE id = ? AND instr(counted, ?) = 0"
        with self._transaction() as database:
            return database.execute(count, (state, job_id, state)).rowcount == 1

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """A connection per transaction: transactions are short and come from any thread; opening costs about 1 ms."""
        try:
            database = self._open()
            try:
                database.execute(begin)
                yield database
                database.execute("COMMIT")
            finally:
                database.close()  # rolls back what was not committed
        except (sqlite3.Error, OSError) as error:
            cause = error.strerror if isinstance(error, OSError) else error  # without the path
            raise JobsUnavailable(f"the job records in SQLite are unavailable ({cause})") from error

    def _open(self) -> sqlite3.Connection:
        if not self._has_tables:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self._path, timeout=5, isolation_level=None)
        if not self._has_tables:
            database.execute("PRAGMA journal_mode = WAL")
            _create_tables(database)
            self._has_tables = True
        return database


def _create_tables(database: sqlite3.Connection) -> None:
    """Creates or migrates the tables. If several workers start at the same time, the transaction lets only one create the
    tables.
    """
    database.execute("BEGIN IMMEDIATE")
    if database.execute("PRAGMA user_version").fetchone()[0] < FORMAT:
        exists = database.execute("SELECT 1 FROM sqlite_schema WHERE name = 'jobs'").fetchone() is not None
        for step in (*RENAME, *CREATE, *COPY) if exists else CREATE:
            database.execute(step)
        database.execute(f"PRAGMA user_version = {FORMAT}")
    database.execute("COMMIT")


def _first(database: sqlite3.Connection, condition: str, *values: str | None) -> Job | None:
    return next(iter(_select(database, condition, *values)), None)


def _select(database: sqlite3.Connection, condition: str, *values: str | None) -> list[Job]:
    rows = database.execute(f"SELECT record FROM jobs WHERE {condition}", values)  # noqa: S608  # constants of this module
    return [Job.model_validate_json(record) for (record,) in rows]
