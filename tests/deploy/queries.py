"""The PromQL of the dashboard and of the alerts, and the metrics and labels that each query needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import promql_parser
import yaml

from tests.deploy.tools import ROOT

Node = TypeVar("Node")
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "sgformer.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
VARIABLES = {"$__rate_interval": "1m", "$instance": ".*", "$namespace": "", "$job": "sgformer"}
"""Grafana's variables, and a value of each. The namespace is empty, as in Compose."""
ADDED_BY_PROMETHEUS = {"ALERTS", "instance", "job", "le", "namespace", "up"}
DEPLOYMENT = {"namespace", "job"}
"""The labels that distinguish deployments in one Prometheus."""
COMPLETE = {"sgf_model_swaps_total", "sgf_shed_total", "sgf_retrain_jobs_total"}
"""Metrics that have every value of their label from the start."""


def read_dashboard() -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return dashboard


def of_dashboard(dashboard: dict[str, Any]) -> Iterator[str]:
    """Every query of its panels and annotations, ready for Prometheus."""
    yield from of_panels(dashboard["panels"])
    yield from (with_values(annotation["expr"]) for annotation in dashboard["annotations"]["list"])


def of_panels(panels: list[dict[str, Any]]) -> list[str]:
    return [with_values(target["expr"]) for panel in panels for target in panel.get("targets", ())]


def with_values(query: str) -> str:
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    return query


def alert_rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def of_alerts() -> list[str]:
    return [rule["expr"] for rule in alert_rules()]


def selectors(query: str) -> list[promql_parser.VectorSelector]:
    return _nodes(query, promql_parser.VectorSelector)


def needed(query: str) -> set[tuple[str, str]]:
    """(metric, label) for every label that it selects by, and (metric, "") for the metric. ValueError: not PromQL."""
    labels = {(selector.name, matcher.name) for selector in selectors(query) for matcher in selector.matchers.matchers}
    return labels | {(selector.name, "") for selector in selectors(query)}


def named_values(query: str) -> set[tuple[str, str, str]]:
    """(metric, label, value) for every value that it names, alone or among alternatives; a pattern names none."""
    return {
        (selector.name, matcher.name, value)
        for selector in selectors(query)
        for matcher in selector.matchers.matchers
        if re.fullmatch(r"[\w/|]+", matcher.value)
        for value in matcher.value.split("|")
    }


def aggregates_deployments(query: str) -> bool:
    """Whether it adds up several deployments."""
    aggregations = _nodes(query, promql_parser.AggregateExpr)
    return not all(node.modifier is not None and set(node.modifier.labels) >= DEPLOYMENT for node in aggregations)


def is_of_one_deployment(query: str) -> bool:
    exact = promql_parser.MatchOp.Equal
    matchers = [selector.matchers.matchers for selector in selectors(query)]
    return all({matcher.name for matcher in listed if matcher.op == exact} >= DEPLOYMENT for listed in matchers)


def _nodes(query: str, kind: type[Node]) -> list[Node]:
    nodes: list[Node] = []

    def visit(node: Any) -> bool:
        if isinstance(node, kind):
            nodes.append(node)
        return True

    promql_parser.walk(promql_parser.parse(query), visit)
    return nodes


def exported(page: str) -> set[tuple[str, ...]]:
    """The metrics, labels and values of a /metrics page, as `needed` and `named_values` have them."""
    names: set[tuple[str, ...]] = set()
    for metric, labels in re.findall(r"^([a-zA-Z_:]+)(?:\{(.*)\})? ", page, re.MULTILINE):
        names.add((metric, ""))
        for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
            names |= {(metric, label), (metric, label, value)}
    return names


def check_exported(queries: Iterable[str], page: str) -> None:
    """Raises AssertionError that names what a query needs and the page does not have."""
    names = exported(page)
    for query in queries:
        wanted: set[tuple[str, ...]] = {*needed(query), *(value for value in named_values(query) if value[0] in COMPLETE)}
        missing = {name for name in wanted - names if not ADDED_BY_PROMETHEUS & set(name[:2])}
        assert not missing, f"not exported: {sorted(missing)}, in {query}"
