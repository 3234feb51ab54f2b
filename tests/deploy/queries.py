"""What the dashboard and the alerts ask Prometheus, and which metrics and labels those questions need."""

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
"""Of Grafana, and what may stand in their place. Without a namespace, as in compose, Grafana has an empty one."""
ADDED_BY_PROMETHEUS = {"ALERTS", "instance", "job", "le", "namespace", "up"}
DEPLOYMENT = {"namespace", "job"}
"""The labels that tell deployments in one Prometheus apart."""
COMPLETE = {"sgf_model_swaps_total", "sgf_shed_total", "sgf_retrain_jobs_total"}
"""Have a series for every value of their label from the start: a value that is not there never will be."""


def of_dashboard(dashboard: dict[str, Any]) -> Iterator[str]:
    """Every query, ready for Prometheus."""
    texts = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    texts += [one["expr"] for one in dashboard["annotations"]["list"]]
    for text in texts:
        for variable, value in VARIABLES.items():
            text = text.replace(variable, value)
        yield text


def alert_rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def of_alerts() -> list[str]:
    return [rule["expr"] for rule in alert_rules()]


def read_dashboard() -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return dashboard


def needed(query: str) -> set[tuple[str, str]]:
    """(metric, label) for every label it selects by, and (metric, "") for the metric itself. ValueError: not PromQL."""
    found = {(selector.name, "") for selector in selectors(query)}
    return found | {(one.name, matcher.name) for one in selectors(query) for matcher in one.matchers.matchers}


def chosen(query: str) -> set[tuple[str, str, str]]:
    """(metric, label, value) for every value that it names, alone or among alternatives; patterns name none."""
    return {
        (selector.name, matcher.name, value)
        for selector in selectors(query)
        for matcher in selector.matchers.matchers
        if re.fullmatch(r"[\w/|]+", matcher.value)
        for value in matcher.value.split("|")
    }


def blends(query: str) -> bool:
    """Whether it adds up several deployments."""
    made = _nodes(query, promql_parser.AggregateExpr)
    return not all(one.modifier is not None and set(one.modifier.labels) >= DEPLOYMENT for one in made)


def is_of_one(query: str) -> bool:
    """Whether everything that it selects is of one deployment."""
    exact = promql_parser.MatchOp.Equal
    return all(
        {matcher.name for matcher in one.matchers.matchers if matcher.op == exact} >= DEPLOYMENT for one in selectors(query)
    )


def selectors(query: str) -> list[promql_parser.VectorSelector]:
    return _nodes(query, promql_parser.VectorSelector)


def _nodes(query: str, kind: type[Node]) -> list[Node]:
    found: list[Node] = []

    def visit(node: Any) -> bool:
        if isinstance(node, kind):
            found.append(node)
        return True

    promql_parser.walk(promql_parser.parse(query), visit)
    return found


def exported(page: str) -> set[tuple[str, ...]]:
    """What of both a /metrics page has."""
    found: set[tuple[str, ...]] = set()
    for name, labels in re.findall(r"^([a-zA-Z_:]+)(?:\{(.*)\})? ", page, re.MULTILINE):
        found.add((name, ""))
        for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
            found |= {(name, label), (name, label, value)}
    return found


def check_known(queries: Iterable[str], page: str) -> None:
    """Raises AssertionError that names what a query needs and the page has not."""
    have = exported(page)
    for query in queries:
        for metric, label in needed(query):
            if metric in ADDED_BY_PROMETHEUS or label in ADDED_BY_PROMETHEUS:
                continue
            assert (metric, label) in have, f"{metric} {label or '(the metric)'} is not exported, but asked for: {query}"
        for metric, label, value in chosen(query):
            if metric in COMPLETE and label not in ADDED_BY_PROMETHEUS:
                assert (metric, label, value) in have, f"{metric} {label} {value} is not exported, but asked for: {query}"
