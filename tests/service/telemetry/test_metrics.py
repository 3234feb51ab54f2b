"""Metrics are booked in bulk, and say what booking one by one would."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import httpx
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from service.telemetry.metrics import SECONDS, BulkHistogram, Metrics
from tests.service.serving import in_thread

DURATIONS = [0.0, 0.0004, 0.0005, 0.00051, 0.03, 0.025, 1.0, 2.5, 2.6, 1e9, 0.007, 0.007]


def test_many_observations_at_once_are_the_same_as_one_by_one() -> None:
    registries = CollectorRegistry(), CollectorRegistry()
    bulk = BulkHistogram("seconds", "about", ["route"], buckets=SECONDS, registry=registries[0])
    plain = Histogram("seconds", "about", ["route"], buckets=SECONDS, registry=registries[1])
    bulk.labels("a").observe_all(DURATIONS[:5])
    bulk.labels("a").observe_all(DURATIONS[5:])
    for one in DURATIONS:
        plain.labels("a").observe(one)
    shown = [[line for line in generate_latest(one).decode().splitlines() if "_created" not in line] for one in registries]
    assert shown[0] == shown[1]


def test_what_was_noted_is_booked_once() -> None:
    metrics = Metrics()
    for status in (200, 200, 429):
        metrics.record_response("/predict", status, 0.002)
    metrics.record_stage("parse", 0.0001)
    for _ in range(2):
        metrics.flush()
        page = metrics.page().decode()
        assert 'sgf_requests_total{code="200",route="/predict"} 2.0' in page
        assert 'sgf_requests_total{code="429",route="/predict"} 1.0' in page
        assert 'sgf_request_duration_seconds_count{route="/predict"} 3.0' in page
        assert 'sgf_stage_duration_seconds_count{stage="parse"} 1.0' in page


def test_the_page_can_be_read_while_answers_are_given_and_every_one_is_counted_once(store: Path) -> None:
    with in_thread(store) as client:
        answered: list[int] = []
        enough = threading.Event()

        def load() -> None:
            with httpx.Client(base_url=client.base_url, timeout=30) as own:
                while not enough.is_set():
                    answered.append(own.post("/predict", json={"nodes": [1]}).status_code)

        callers = [threading.Thread(target=load) for _ in range(4)]
        for caller in callers:
            caller.start()
        pages = [client.get("/metrics").status_code for _ in range(200)]
        enough.set()
        for caller in callers:
            caller.join(timeout=30)
        assert set(pages) == set(answered) == {200}
        assert f'sgf_requests_total{{code="200",route="/predict"}} {len(answered)}.0' in client.get("/metrics").text


def value_of(page: str, name: str) -> float:
    return float(next(line.split()[-1] for line in page.splitlines() if line.split("{")[0].split(" ")[0] == name))


def test_the_space_of_the_store_and_the_start_of_the_worker_are_on_the_page(store: Path) -> None:
    before = time.time()
    with in_thread(store) as client:
        page = client.get("/metrics").text
    size, free = value_of(page, "sgf_store_size_bytes"), value_of(page, "sgf_store_free_bytes")
    assert size == shutil.disk_usage(store).total
    assert 0 < free <= size
    assert before <= value_of(page, "sgf_process_start_time_seconds") <= time.time()


def test_a_store_that_does_not_exist_has_no_size(tmp_path: Path) -> None:
    page = Metrics(store=tmp_path / "none").page().decode()
    assert value_of(page, "sgf_store_size_bytes") == 0
