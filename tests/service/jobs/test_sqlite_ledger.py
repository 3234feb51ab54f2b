"""The record of jobs in SQLite: keys belong to a model, also in files that were made before they did."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from service.http.errors import Refusal
from service.jobs.record import Job
from service.jobs.redaction import Redaction
from service.jobs.sqlite_ledger import SqliteLedger

EARLIER = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, model TEXT NOT NULL, state TEXT NOT NULL,
    key TEXT UNIQUE, digest TEXT NOT NULL, cancel INTEGER NOT NULL DEFAULT 0, record TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX one_per_model ON jobs (model) WHERE state IN ('queued', 'running');
"""


def test_a_key_is_of_one_model(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "jobs.sqlite", Redaction())
    first = ledger.add(Job.new("one", {}), "nightly", "digest")
    other = ledger.add(Job.new("two", {}), "nightly", "digest")
    assert first.id != other.id
    assert ledger.add(Job.new("one", {}), "nightly", "digest") == first
    assert ledger.add(Job.new("two", {}), "nightly", "digest") == other
    with pytest.raises(Refusal, match="was used for another request"):
        ledger.add(Job.new("one", {}), "nightly", "another")


def test_a_file_of_before_is_taken_over_by_one_of_many(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    old = Job.new("one", {})
    with sqlite3.connect(path) as database:
        database.executescript(EARLIER)
        insert = (
            "INSERT INTO jobs (id, model, state, key, digest, record) VALUES (?, 'one', 'queued', 'nightly', 'digest', ?)"
        )
        database.execute(insert, (old.id, old.model_dump_json()))
    database.close()
    found: list[Job] = []
    ledgers = [SqliteLedger(path, Redaction()) for _ in range(8)]
    threads = [threading.Thread(target=lambda one=one: found.extend(one.jobs())) for one in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [old] * 8
    assert ledgers[0].add(Job.new("one", {}), "nightly", "digest") == old
    assert ledgers[1].add(Job.new("two", {}), "nightly", "digest").model == "two"
    with pytest.raises(Refusal, match="is not done yet"):
        ledgers[2].add(Job.new("one", {}), None, "digest")


def test_of_many_that_cancel_a_job_one_has_ended_it(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "jobs.sqlite", Redaction())
    job = ledger.add(Job.new("one", {}), None, "digest")
    changed: list[bool] = []
    threads = [threading.Thread(target=lambda: changed.append(ledger.cancel(job.id)[1])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(changed) == [False, False, False, True]
