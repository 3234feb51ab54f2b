"""The dashboard and the alerts use metrics that the service exports; each alert does what its name says."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.deploy import queries
from tests.deploy.tools import ROOT, need, run
from tests.service.serving import in_processes

PROMETHEUS = ROOT / "deploy" / "prometheus"
OF_THE_DATA_SOURCE = {"annotations list 0 step", "annotations list 0 titleFormat"}
"""Fields of annotations that Grafana's schema leaves to the data source."""
TESTS = ("alerts_test.yml", "capacity_test.yml", "deployments_test.yml", "stale_model_test.yml", "startup_test.yml")


@pytest.fixture(scope="module")
def page(store: Path) -> Iterator[str]:
    """/metrics of a real service of two processes that has answered for known and new nodes, and refused a request."""
    new = {"id": "a", "features": [1, 2, 3, 4, 5], "neighbors": [0, 3]}
    with in_processes(store, workers=2) as (client, _process, _lines):
        for _ in range(2):
            client.post("/predict", json={"nodes": [1], "new_nodes": [new]}).raise_for_status()
        assert client.post("/predict", json={"nodes": [10**9]}).status_code == 404
        yield client.get("/metrics").text


def all_queries() -> list[str]:
    return [*queries.of_dashboard(queries.read_dashboard()), *queries.of_alerts()]


def test_every_query_is_about_exported_metrics(page: str) -> None:
    assert len(list(queries.of_dashboard(queries.read_dashboard()))) > 20
    queries.check_exported(all_queries(), page)


@pytest.mark.parametrize(
    ("right", "wrong", "error"),
    [
        ("sgf_queue_depth", "sgf_queue_deep", "sgf_queue_deep"),
        ('result="hit"', 'outcome="hit"', "outcome"),
        ("sgf_stage_duration_seconds_bucket", "sgf_stage_duration_seconds_buckets", "buckets"),
        ('result="refused"', 'result="rejected"', "'result', 'rejected'"),
        ('reason!="gone"', 'reason!="left"', "'reason', 'left'"),
        ('state="failed"', 'state="failure"', "'state', 'failure'"),
        ("succeeded|failed|cancelled", "succeeded|failed|canceled", "'state', 'canceled'"),
    ],
)
def test_a_query_about_another_metric_is_found(page: str, right: str, wrong: str, error: str) -> None:
    assert any(right in query for query in all_queries())
    with pytest.raises(AssertionError, match=error):
        queries.check_exported([query.replace(right, wrong) for query in all_queries()], page)


def test_a_query_that_is_not_promql_is_found(page: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        queries.check_exported(["sum(rate(sgf_queue_depth[5m])"], page)


def test_the_dashboard_shows_every_metric() -> None:
    names = {name for query in queries.of_dashboard(queries.read_dashboard()) for name, _ in queries.needed(query)}
    defined = set(re.findall(r'"(sgf_[a-z_]+)"', (ROOT / "service" / "telemetry" / "metrics.py").read_text()))
    assert defined - {re.sub("_(bucket|sum|count)$", "", name) for name in names} == {"sgf_build_info"}


def test_the_dashboard_follows_grafanas_schema() -> None:
    """Grafana's library reads it and writes it again: a field that Grafana does not know would be lost."""
    dashboard = queries.read_dashboard()
    assert unknown_fields(dashboard) == OF_THE_DATA_SOURCE
    dashboard["panels"][1]["fieldConfigs"] = dashboard["panels"][1].pop("fieldConfig")
    assert unknown_fields(dashboard) == {*OF_THE_DATA_SOURCE, "panels 1 fieldConfigs"}


def unknown_fields(dashboard: dict[str, Any]) -> set[str]:
    register_default_plugins()
    rewritten = json.loads(JSONEncoder().encode(Dashboard.from_json(copy.deepcopy(dashboard))))
    return {" ".join(path) for path in lost_paths(dashboard, rewritten)}


def lost_paths(before: Any, after: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where `after` does not have what `before` has."""
    if isinstance(before, dict | list) and type(before) is type(after):
        for key, value in before.items() if isinstance(before, dict) else enumerate(before):
            missing = key not in after if isinstance(after, dict) else key >= len(after)
            yield from [(*path, str(key))] if missing else lost_paths(value, after[key], (*path, str(key)))
    elif before != after:
        yield path


def test_panels_do_not_overlap_and_have_descriptions() -> None:
    panels = queries.read_dashboard()["panels"]
    cells = [cell for panel in panels for cell in cells_of(**panel["gridPos"])]
    assert len(cells) == len(set(cells))
    assert max(column for column, _ in cells) < 24
    for panel in panels:
        assert panel["type"] == "row" or (panel["description"] and panel["datasource"]["uid"] == "prometheus")
    assert len({panel["id"] for panel in panels}) == len(panels)


def cells_of(x: int, y: int, w: int, h: int) -> list[tuple[int, int]]:
    return [(column, line) for column in range(x, x + w) for line in range(y, y + h)]


def test_without_traffic_no_panel_shows_no_data_or_nan() -> None:
    for panel in (panel for panel in queries.read_dashboard()["panels"] if panel["type"] == "stat"):
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["noValue"], panel["title"]
        if any(" / " in target["expr"] or "histogram_quantile" in target["expr"] for target in panel["targets"]):
            mapped = {mapping["options"].get("match") for mapping in defaults["mappings"] if mapping["type"] == "special"}
            assert mapped & {"nan", "null+nan"}, panel["title"]


def test_every_alert_has_a_runbook_and_a_test() -> None:
    runbook = (ROOT / "docs" / "deployment.md").read_text()
    tested = "".join((PROMETHEUS / name).read_text() for name in TESTS)
    for rule in queries.alert_rules():
        assert f"| `{rule['alert']}` |" in runbook  # what it means
        assert f"\n- `{rule['alert']}`: " in runbook  # what to do
        assert f"alertname: {rule['alert']}\n" in tested, f"{rule['alert']} is never expected to fire"
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_only_alerts_about_failing_requests_page() -> None:
    """Wrong answers are failing requests, too. An alert about retraining, or about a fault that the service repairs itself,
    is for working hours.
    """
    paging = {rule["alert"] for rule in queries.alert_rules() if rule["labels"]["severity"] == "page"}
    assert paging == {"ServiceDown", "NotReady", "ErrorRatio", "Latency", "Shedding", "WrongAnswers"}


def test_alerts_and_panels_distinguish_deployments() -> None:
    assert not any(queries.aggregates_deployments(query) for query in queries.of_alerts())
    assert all(queries.is_of_one_deployment(query) for query in queries.of_dashboard(queries.read_dashboard()))
    assert queries.aggregates_deployments("sum by (job) (rate(sgf_shed_total[5m]))")
    assert queries.aggregates_deployments("max(sgf_ready)")
    assert not queries.is_of_one_deployment('max(sgf_ready{job="sgformer",namespace=~".*"})')


def check_rules(folder: Path) -> None:
    promtool = need("promtool")
    run(promtool, "check", "config", folder / "prometheus.yml")
    for name in TESTS:
        run(promtool, "test", "rules", name, cwd=folder)


def test_promtool_accepts_the_configuration_and_the_tests_of_the_alerts_pass() -> None:
    check_rules(PROMETHEUS)


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("prometheus.yml", "scrape_interval: 5s", "scrape_interval: soon"),
        ("prometheus.yml", "alerts.yml", "alarms.yml"),
        ("alerts.yml", "== 0", "==== 0"),
    ],
)
def test_promtool_refuses_what_it_cannot_read(tmp_path: Path, file: str, right: str, wrong: str) -> None:
    broken = Path(shutil.copytree(PROMETHEUS, tmp_path / "prometheus"))
    text = (broken / file).read_text()
    assert right in text
    (broken / file).write_text(text.replace(right, wrong))
    with pytest.raises(AssertionError, match="promtool failed"):
        run(need("promtool"), "check", "config", broken / "prometheus.yml")


MUTATIONS = {
    "> 0.01": "> 0.5",
    'reason!="gone"': 'reason!="lag"',
    "30 * 24 * 3600": "60 * 24 * 3600",
    'absent_over_time(up{job=~"sgformer.*"}[1h])': 'absent_over_time(up{job="other"}[1h])',
    "and increase(sgf_cache_errors_total[5m]) > 0": "",
    'result="rolled_back"': 'result="refused"',
    "max by (namespace, job) (sgf_retrain_jobs_waiting) > 0": "increase(sgf_retrain_jobs_waiting[1h]) > 0",
    'result="failed"}[10m]': 'result="refused"}[10m]',
    "for: 12m": "for: 3m",
    "(sgf_retrain_workers) == 0": "(sgf_retrain_workers) >= 0",
    "(sgf_store_size_bytes > 0) < 0.1": "sgf_store_size_bytes < 0.2",
    "(sgf_memory_limit_bytes > 0) > 0.9": "(sgf_memory_limit_bytes > 0) > 0.8",
    "start_time_seconds[15m]) > 2": "start_time_seconds[15m]) > 1",
    "increase(sgf_log_lines_dropped_total[15m]) > 0": "sgf_log_lines_dropped_total > 0",
    "sgf_graph_apply_lag_seconds > 30": "sgf_graph_apply_lag_seconds > 3000",
    'route="/graph",code=~"5.."': 'route="/graph",code=~"4.."',
    "count by (namespace, job) (count": "count by (job) (count",
    "group by (namespace, job) (up": "group by (job) (up",
    'or (sgf_model_swaps_total{result="refused"} > 0': 'or (sgf_model_swaps_total{result="refused"} > 9',
    'or (sgf_model_swaps_total{result="rolled_back"} > 0': 'or (sgf_model_swaps_total{result="taken"} > 0',
    'or (sgf_retrain_jobs_total{state="failed"} > 0': 'or (sgf_retrain_jobs_total{state="failed"} > 9',
    'unless max_over_time(sgf_model_swaps_total{result="refused"}[15m] ': 'unless (sgf_model_swaps_total{result="refused"} ',
}
"""What is replaced in alerts.yml, and by what. The tests of the alert that it changes must fail."""


def alert_texts(text: str) -> dict[str, str]:
    _, *parts = re.split(r"- alert: (\w+)\n", text)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def alerts_with(part: str) -> set[str]:
    alerts = {name for name, text in alert_texts((PROMETHEUS / "alerts.yml").read_text()).items() if part in text}
    assert alerts, f"no alert has {part}"
    return alerts


def independent_mutations() -> list[dict[str, set[str]]]:
    """Groups of mutations, with the alerts that each changes: no two of a group change the same alert."""
    groups: list[dict[str, set[str]]] = []
    for right in MUTATIONS:
        alerts = alerts_with(right)
        group = next((group for group in groups if alerts.isdisjoint(set().union(*group.values()))), None)
        if group is None:
            groups.append(group := {})
        group[right] = alerts
    return groups


@pytest.mark.parametrize("group", range(len(independent_mutations())))
def test_the_tests_of_the_alerts_find_every_broken_rule(tmp_path: Path, group: int) -> None:
    """One run of promtool for several mutations: a run takes seconds."""
    mutations = independent_mutations()[group]
    broken = Path(shutil.copytree(PROMETHEUS, tmp_path / "prometheus"))
    text = (broken / "alerts.yml").read_text()
    for right in mutations:
        text = text.replace(right, MUTATIONS[right])
    (broken / "alerts.yml").write_text(text)
    command = [need("promtool"), "test", "rules", *TESTS]
    output = subprocess.run(command, cwd=broken, capture_output=True, text=True, check=False).stderr
    failed = set(re.findall(r"alertname: (\w+), time:", output))
    assert {right for right, alerts in mutations.items() if not alerts & failed} == set(), output
