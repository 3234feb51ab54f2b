"""What Health computes from /metrics and shows of /drift."""

from __future__ import annotations

import json
import re
from itertools import count
from typing import Any

from playwright.sync_api import Route, expect

METRICS = """
# HELP sgf_ready 1 if every worker serves a version.
sgf_ready 1.0
sgf_requests_total{{code="200",route="/predict"}} {answers}.0
sgf_requests_total{{code="500",route="/predict"}} 0.0
sgf_requests_total{{code="200",route="/metrics"}} 7.0
sgf_request_duration_seconds_bucket{{le="0.001",route="/predict"}} {fast}.0
sgf_request_duration_seconds_bucket{{le="0.01",route="/predict"}} {answers}.0
sgf_request_duration_seconds_bucket{{le="+Inf",route="/predict"}} {answers}.0
sgf_request_duration_seconds_bucket{{le="+Inf",route="/metrics"}} 7.0
sgf_cache_lookups_total{{kind="local",result="hit"}} {hits}.0
sgf_cache_lookups_total{{kind="local",result="miss"}} {answers}.0
sgf_shed_total{{reason="queue"}} 3.0
sgf_process_memory_bytes{{pid="1"}} 5e+07
sgf_process_memory_bytes{{pid="2"}} 7e+07
sgf_graph_sequence 12.0
sgf_graph_apply_lag_seconds 0.25
sgf_graph_overlay_nodes 4.0
sgf_graph_nodes 1796.0
sgf_graph_edges 9922.0
sgf_build_info{{version="a \\"b\\" <i>"}} 1.0
"""
DRIFT = {
    "kinds": {
        "features": {
            "verdict": "drift",
            "value": 0.31,
            "threshold": 0.2,
            "samples": 500,
            "worst": [{"name": 21, "value": 0.31}],
        },
        "degrees": {"verdict": "no_data", "reason": "no requests yet"},
        "graph_sums": {"verdict": "ok", "statistic": "relative_change", "value": 0.0, "threshold": 0.1, "samples": 9},
    }
}


def test_figures_come_from_two_scrapes(visit: Any) -> None:
    """Between two scrapes: 80 answers below 1 ms and 20 between 1 and 10 ms; 33 hits and 100 misses."""
    scrapes = count()

    def metrics(route: Route) -> None:
        number = next(scrapes)
        figures = {"answers": 100 + 100 * number, "fast": 90 + 80 * number, "hits": 10 + 33 * number}
        route.fulfill(body=METRICS.format(**figures), content_type="text/plain")

    def drift(route: Route) -> None:
        route.fulfill(body=json.dumps(DRIFT), content_type="application/json")

    with visit("#/ask") as page:
        page.route("**/metrics", metrics)
        page.route("**/drift", drift)
        page.goto(f"{page.url.partition('#')[0]}#/health")
        latency = page.get_by_role("region", name="Latency").locator(".plot-value")
        # p50: rank 50 of 80 in the bucket from 0 to 1 ms; p99: rank 19 of 20 in the one from 1 to 10 ms.
        expect(latency).to_have_text("0.63 msp99 9.5 ms")
        expect(page.get_by_role("region", name="Cache hits").locator(".plot-value")).to_have_text("25 %")
        expect(page.get_by_role("region", name="Answers").locator(".plot-note")).to_have_text(
            re.compile(r"[2-9]00 since the start")
        )
        expect(page.get_by_role("region", name="Shed requests").locator(".plot-note")).to_have_text("queue 3")
        expect(page.get_by_role("region", name="Memory of the workers").locator(".plot-value")).to_have_text("120 MB")
        expect(page.get_by_role("region", name="Graph sequence").locator(".plot-value")).to_have_text("12")
        expect(page.get_by_role("region", name="Lag of the graph").locator(".plot-value")).to_have_text("250 ms")
        expect(page.get_by_text('software a "b" <i>')).to_be_visible()
        expect(page.get_by_role("row", name="features PSI 0.31 0.2 500 drift most: 21")).to_be_visible()
        expect(page.get_by_role("row", name="graph sums relative change 0 0.1 9 ok")).to_be_visible()
        expect(page.get_by_role("row", name="no requests yet")).to_contain_text("no data")


def test_a_service_that_stops_answering_is_reported(visit: Any) -> None:
    with visit("#/health") as page:
        expect(page.locator(".plots")).to_be_visible()
        page.route("**/metrics", lambda route: route.abort())
        expect(page.get_by_role("alert")).to_contain_text("The service does not answer")
        page.unroute("**/metrics")
        expect(page.get_by_role("alert")).to_have_count(0)
