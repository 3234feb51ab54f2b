"""The dashboard and the alerts ask for what the service really exports; the rules do what their names say."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.deploy import queries
from tests.deploy.tools import ROOT, need, run
from tests.service.serving import in_processes

PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
KNOWN_TO_GRAFANA_ONLY = {"annotations list 0 step", "annotations list 0 titleFormat"}
"""Annotations of a Prometheus data source have these; the schema leaves them to the data source."""
TESTS = ("alerts_test.yml", "capacity_test.yml", "deployments_test.yml", "stale_model_test.yml", "startup_test.yml")


@pytest.fixture(scope="module")
def page(store: Path) -> Iterator[str]:
    """/metrics of a real service of two processes that has answered for known and new nodes, twice, and refused one."""
    new = {"id": "a", "features": [1, 2, 3, 4, 5], "neighbors": [0, 3]}
    with in_processes(store, workers=2) as (client, _process, _lines):
        for _ in range(2):
            client.post("/predict", json={"nodes": [1], "new_nodes": [new]}).raise_for_status()
        assert client.post("/predict", json={"nodes": [10**9]}).status_code == 404
        yield client.get("/metrics").text


def test_every_query_of_the_dashboard_is_about_what_is_exported(page: str) -> None:
    found = list(queries.of_dashboard(queries.read_dashboard()))
    assert len(found) > 20
    queries.check_known(found, page)


def test_every_alert_is_about_what_is_exported(page: str) -> None:
    queries.check_known(queries.of_alerts(), page)


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("sgf_queue_depth", "sgf_queue_deep", "sgf_queue_deep"),
        ('result="hit"', 'outcome="hit"', "outcome"),
        ("sgf_stage_duration_seconds_bucket", "sgf_stage_duration_seconds_buckets", "buckets"),
        ('result="refused"', 'result="rejected"', "result rejected"),
        ('reason!="gone"', 'reason!="left"', "reason left"),
        ('state="failed"', 'state="failure"', "state failure"),
        ("succeeded|failed|cancelled", "succeeded|failed|canceled", "state canceled"),
    ],
)
def test_a_query_about_something_else_is_found(page: str, right: str, wrong: str, told: str) -> None:
    asked = [*queries.of_dashboard(queries.read_dashboard()), *queries.of_alerts()]
    assert any(right in query for query in asked)
    found = [query.replace(right, wrong) for query in asked]
    with pytest.raises(AssertionError, match=told):
        queries.check_known(found, page)


def test_a_query_that_is_not_promql_is_found(page: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        queries.check_known(["sum(rate(sgf_queue_depth[5m])"], page)


def test_the_dashboard_shows_every_metric_of_the_contract() -> None:
    """A metric that nobody looks at is one that nobody misses when it breaks."""
    dashboard = queries.read_dashboard()
    assert hidden(dashboard) == {"sgf_build_info"}
    dashboard["panels"] = [one for one in dashboard["panels"] if one["title"] != "In hand"]
    assert hidden(dashboard) == {"sgf_build_info", "sgf_queue_depth"}


def hidden(dashboard: dict[str, Any]) -> set[str]:
    """Metrics that no panel shows."""
    asked = {name for query in queries.of_dashboard(dashboard) for name, _ in queries.needed(query)}
    made = set(re.findall(r'"(sgf_[a-z_]+)"', (ROOT / "service" / "telemetry" / "metrics.py").read_text()))
    return made - {re.sub("_(bucket|sum|count)$", "", name) for name in asked}


def test_the_dashboard_is_one_by_grafanas_own_schema() -> None:
    """Read by their library and written again, nothing is lost: a field that Grafana does not know would be."""
    dashboard = queries.read_dashboard()
    assert unknown_fields(dashboard) == KNOWN_TO_GRAFANA_ONLY
    dashboard["panels"][1]["fieldConfigs"] = dashboard["panels"][1].pop("fieldConfig")
    assert unknown_fields(dashboard) == {*KNOWN_TO_GRAFANA_ONLY, "panels 1 fieldConfigs"}


def unknown_fields(dashboard: dict[str, Any]) -> set[str]:
    register_default_plugins()
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(copy.deepcopy(dashboard))))
    return {" ".join(path) for path in lost(dashboard, again)}


def lost(before: Any, after: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where `after` has not what `before` has."""
    if isinstance(before, dict | list) and type(before) is type(after):
        for key, value in before.items() if isinstance(before, dict) else enumerate(before):
            missing = key not in after if isinstance(after, dict) else key >= len(after)
            yield from [(*path, str(key))] if missing else lost(value, after[key], (*path, str(key)))
    elif before != after:
        yield path


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    panels = queries.read_dashboard()["panels"]
    places = [place for panel in panels for place in cells(**panel["gridPos"])]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24
    for panel in panels:
        assert panel["type"] == "row" or (panel["description"] and panel["datasource"]["uid"] == "prometheus")
    assert len({panel["id"] for panel in panels}) == len(panels)


def cells(x: int, y: int, w: int, h: int) -> list[tuple[int, int]]:
    return [(column, line) for column in range(x, x + w) for line in range(y, y + h)]


def test_without_traffic_no_panel_looks_broken() -> None:
    dashboard = queries.read_dashboard()
    assert puzzling(dashboard) == []
    del next(one for one in dashboard["panels"] if one["title"] == "Version")["fieldConfig"]["defaults"]["noValue"]
    next(one for one in dashboard["panels"] if one["title"] == "p99")["fieldConfig"]["defaults"]["mappings"] = []
    assert puzzling(dashboard) == ["Version: No data", "p99: NaN"]


def puzzling(dashboard: dict[str, Any]) -> list[str]:
    """Single numbers that would be Grafana's "No data", or, where something is divided by how many came, NaN."""
    found = []
    for panel in (one for one in dashboard["panels"] if one["type"] == "stat"):
        given = panel["fieldConfig"]["defaults"]
        divides = any(" / " in one["expr"] or "histogram_quantile" in one["expr"] for one in panel["targets"])
        mapped = {one["options"].get("match") for one in given["mappings"] if one["type"] == "special"}
        if not given.get("noValue"):
            found.append(f"{panel['title']}: No data")
        if divides and not mapped & {"nan", "null+nan"}:
            found.append(f"{panel['title']}: NaN")
    return found


def test_grafana_finds_its_data_source_and_dashboard() -> None:
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"][0]
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/sgformer.yml").read_text())["providers"][0]
    grafana = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["grafana"]
    assert source["uid"] == "prometheus"
    assert source["url"] == "http://prometheus:9090"
    assert f"./deploy/grafana/dashboards:{provider['options']['path']}:ro" in grafana["volumes"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/{queries.DASHBOARD.name}"


def test_every_alert_has_a_runbook_and_a_test() -> None:
    runbook = (ROOT / "docs" / "deployment.md").read_text()
    tested = "".join((PROMETHEUS / name).read_text() for name in TESTS)
    for group in yaml.safe_load(queries.ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            assert f"| `{rule['alert']}` |" in runbook
            assert f"alertname: {rule['alert']}\n" in tested, f"{rule['alert']} is never expected to fire"
            assert rule["labels"]["severity"] in ("page", "ticket")


def test_a_page_is_about_answers_that_callers_do_not_get() -> None:
    """What the service mends by itself, or what only retraining waits for, is for working hours."""
    rules = [rule for group in yaml.safe_load(queries.ALERTS.read_text())["groups"] for rule in group["rules"]]
    paging = {rule["alert"] for rule in rules if rule["labels"]["severity"] == "page"}
    assert paging == {"ServiceDown", "NotReady", "ErrorRatio", "Latency", "Shedding"}


def test_alerts_and_panels_tell_deployments_apart() -> None:
    assert not any(queries.blends(one) for one in queries.of_alerts())
    assert all(queries.is_of_one(one) for one in queries.of_dashboard(queries.read_dashboard()))
    assert queries.blends("sum by (job) (rate(sgf_shed_total[5m]))")
    assert queries.blends("max(sgf_ready)")
    assert not queries.is_of_one('max(sgf_ready{job="sgformer",namespace=~".*"})')


def test_promtool_accepts_the_configuration_and_the_rules_do_what_they_say() -> None:
    check_rules(PROMETHEUS)


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("prometheus.yml", "scrape_interval: 5s", "scrape_interval: soon"),
        ("prometheus.yml", "alerts.yml", "alarms.yml"),
        ("alerts.yml", "== 0", "==== 0"),
        ("alerts.yml", "> 0.01", "> 0.5"),
        ("alerts.yml", 'reason!="gone"', 'reason!="lag"'),
        ("alerts.yml", "30 * 24 * 3600", "60 * 24 * 3600"),
        ("alerts.yml", 'absent_over_time(up{job=~"sgformer.*"}[1h])', 'absent_over_time(up{job="other"}[1h])'),
        ("alerts.yml", "and increase(sgf_cache_errors_total[5m]) > 0", ""),
        ("alerts.yml", 'result="rolled_back"', 'result="refused"'),
        (
            "alerts.yml",
            "max by (namespace, job) (sgf_retrain_jobs_waiting) > 0",
            "increase(sgf_retrain_jobs_waiting[1h]) > 0",
        ),
        ("alerts.yml", 'result="failed"}[10m]', 'result="refused"}[10m]'),
        ("alerts.yml", "for: 12m", "for: 3m"),
        ("alerts.yml", "(sgf_retrain_workers) == 0", "(sgf_retrain_workers) >= 0"),
        ("alerts.yml", "(sgf_store_size_bytes > 0) < 0.1", "sgf_store_size_bytes < 0.2"),
        ("alerts.yml", "(sgf_memory_limit_bytes > 0) > 0.9", "(sgf_memory_limit_bytes > 0) > 0.8"),
        ("alerts.yml", "start_time_seconds[15m]) > 2", "start_time_seconds[15m]) > 1"),
        ("alerts.yml", "increase(sgf_log_lines_dropped_total[15m]) > 0", "sgf_log_lines_dropped_total > 0"),
        ("alerts.yml", "count by (namespace, job) (count", "count by (job) (count"),
        ("alerts.yml", "group by (namespace, job) (up", "group by (job) (up"),
        ("alerts.yml", 'or (sgf_model_swaps_total{result="refused"} > 0', 'or (sgf_model_swaps_total{result="refused"} > 9'),
        (
            "alerts.yml",
            'or (sgf_model_swaps_total{result="rolled_back"} > 0',
            'or (sgf_model_swaps_total{result="taken"} > 0',
        ),
        ("alerts.yml", 'or (sgf_retrain_jobs_total{state="failed"} > 0', 'or (sgf_retrain_jobs_total{state="failed"} > 9'),
        (
            "alerts.yml",
            'unless max_over_time(sgf_model_swaps_total{result="refused"}[15m] offset 15m)',
            'unless sgf_model_swaps_total{result="refused"} offset 15m',
        ),
    ],
)
def test_promtool_finds_what_is_broken(tmp_path: Path, file: str, right: str, wrong: str) -> None:
    broken = Path(shutil.copytree(PROMETHEUS, tmp_path / "prometheus"))
    text = (broken / file).read_text()
    assert right in text
    (broken / file).write_text(text.replace(right, wrong))
    with pytest.raises(AssertionError, match="promtool failed"):
        check_rules(broken)


def check_rules(folder: Path) -> None:
    promtool = need("promtool")
    run(promtool, "check", "config", folder / "prometheus.yml")
    run(promtool, "test", "rules", *TESTS, cwd=folder)
