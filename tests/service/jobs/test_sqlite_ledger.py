"""The ledger in SQLite: idempotency keys, migration of older files, and counting."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from service.jobs.job import Job
from service.jobs.job_folder import FOLDER
from service.jobs.job_service import JobService
from service.jobs.ledger import JobConflict
from service.jobs.sqlite_ledger import SqliteLedger
from service.settings import Settings
from service.telemetry.metrics import Metrics

EARLIER = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, model TEXT NOT NULL, state TEXT NOT NULL,
    key TEXT UNIQUE, digest TEXT NOT NULL, cancel INTEGER NOT NULL DEFAULT 0, record TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX one_per_model ON jobs (model) WHERE state IN ('queued', 'running');
"""


def earlier_file(store: Path) -> sqlite3.Connection:
    (store / FOLDER).mkdir()
    database = sqlite3.connect(store / FOLDER / "jobs.sqlite")
    database.executescript(EARLIER)
    return database


def test_a_key_belongs_to_one_model(tmp_path: Path) -> None:
    ledger = SqliteLedger(Settings(store=tmp_path))
    first = ledger.add(Job.new("one", {}), "nightly")
    other = ledger.add(Job.new("two", {}), "nightly")
    assert first.id != other.id
    assert ledger.add(Job.new("one", {}), "nightly") == first
    assert ledger.add(Job.new("two", {}), "nightly") == other
    with pytest.raises(JobConflict, match="was used for another request"):
        ledger.add(Job.new("one", {"recipe": "digits"}), "nightly")


def test_an_older_file_is_migrated_once(tmp_path: Path) -> None:
    old = Job.new("one", {})
    with earlier_file(tmp_path) as database:
        insert = (
            "INSERT INTO jobs (id, model, state, key, digest, record) VALUES (?, 'one', 'queued', 'nightly', 'digest', ?)"
        )
        database.execute(insert, (old.id, old.model_dump_json()))
    database.close()
    jobs: list[Job] = []
    ledgers = [SqliteLedger(Settings(store=tmp_path)) for _ in range(8)]
    threads = [threading.Thread(target=lambda ledger=ledger: jobs.extend(ledger.jobs())) for ledger in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert jobs == [old] * 8
    assert ledgers[0].add(Job.new("one", {}), "nightly") == old
    assert ledgers[1].add(Job.new("two", {}), "nightly").model == "two"
    with pytest.raises(JobConflict, match=r"is (queued|running); a model has one job at a time"):
        ledgers[2].add(Job.new("one", {}), None)


def test_a_job_that_is_cancelled_four_times_at_once_is_counted_once(tmp_path: Path) -> None:
    job = SqliteLedger(Settings(store=tmp_path)).add(Job.new("one", {}), None)
    metrics = Metrics()
    services = [JobService(Settings(store=tmp_path), metrics) for _ in range(4)]
    threads = [threading.Thread(target=service.cancel, args=(job.id,)) for service in services]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.registry.get_sample_value("sgf_retrain_jobs_total", {"state": "cancelled"}) == 1.0


def test_migration_keeps_a_requested_cancel_and_counts_no_state_again(tmp_path: Path) -> None:
    old = Job.new("one", {}).started()
    with earlier_file(tmp_path) as database:
        insert = "INSERT INTO jobs (id, model, state, digest, cancel, record) VALUES (?, 'one', 'running', '', 1, ?)"
        database.execute(insert, (old.id, old.model_dump_json()))
    database.close()
    ledger = SqliteLedger(Settings(store=tmp_path))
    assert ledger.get(old.id) == old.model_copy(update={"cancel_requested": True})
    assert [ledger.count_once(old.id, state) for state in ("queued", "running", "cancelled", "cancelled")] == [
        False,
        False,
        True,
        False,
    ]
