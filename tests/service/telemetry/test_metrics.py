"""Metrics that are written in bulk equal metrics that are written one by one."""

from __future__ import annotations

import re
import shutil
import threading
import time
from pathlib import Path

import httpx
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from service.telemetry.metrics import SECONDS, BulkHistogram, Metrics
from tests.service.serving import in_thread

DURATIONS = [0.0, 0.0004, 0.0005, 0.00051, 0.03, 0.025, 1.0, 2.5, 2.6, 1e9, 0.007, 0.007]


def test_observing_many_values_at_once_equals_observing_each() -> None:
    registries = CollectorRegistry(), CollectorRegistry()
    bulk = BulkHistogram("seconds", "about", ["route"], buckets=SECONDS, registry=registries[0])
    plain = Histogram("seconds", "about", ["route"], buckets=SECONDS, registry=registries[1])
    bulk.labels("a").observe_all(DURATIONS[:5])
    bulk.labels("a").observe_all(DURATIONS[5:])
    for duration in DURATIONS:
        plain.labels("a").observe(duration)
    pages = [re.sub(r".*_created.*", "", generate_latest(registry).decode()) for registry in registries]
    assert pages[0] == pages[1]


def test_recorded_values_are_written_once() -> None:
    metrics = Metrics()
    for status in (200, 200, 429):
        metrics.record_response("/predict", status, 0.002)
    metrics.record_stages(parse=0.0001)
    for _ in range(2):
        metrics.flush()
        page = metrics.page().decode()
        assert 'sgf_requests_total{code="200",route="/predict"} 2.0' in page
        assert 'sgf_requests_total{code="429",route="/predict"} 1.0' in page
        assert 'sgf_request_duration_seconds_count{route="/predict"} 3.0' in page
        assert 'sgf_stage_duration_seconds_count{stage="parse"} 1.0' in page


def test_every_answer_is_counted_once_while_the_page_is_read(store: Path) -> None:
    with in_thread(store) as client:
        statuses: list[int] = []
        stop = threading.Event()

        def send_requests() -> None:
            with httpx.Client(base_url=client.base_url, timeout=30) as own:
                while not stop.is_set():
                    statuses.append(own.post("/predict", json={"nodes": [1]}).status_code)

        threads = [threading.Thread(target=send_requests) for _ in range(4)]
        for thread in threads:
            thread.start()
        pages = [client.get("/metrics").status_code for _ in range(200)]
        stop.set()
        for thread in threads:
            thread.join(timeout=30)
        assert set(pages) == set(statuses) == {200}
        assert f'sgf_requests_total{{code="200",route="/predict"}} {len(statuses)}.0' in client.get("/metrics").text


def value_of(page: str, name: str) -> float:
    return float(next(line.split()[-1] for line in page.splitlines() if line.split("{")[0].split(" ")[0] == name))


def test_metrics_include_the_space_of_the_store_and_the_start_of_the_worker(store: Path) -> None:
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
