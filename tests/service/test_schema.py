"""The OpenAPI document, attacked: no 5xx, and no answer that it does not describe. SGF_CASES: how many cases per route."""

from __future__ import annotations

import os

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CASES = int(os.environ.get("SGF_CASES", "60"))
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
ROUTES = [
    ("POST", "/predict"),
    ("POST", "/embed"),
    ("GET", "/models"),
    ("GET", "/models/{version}"),
    ("GET", "/models/{version}/report"),
    ("GET", "/health/live"),
    ("GET", "/health/ready"),
    ("GET", "/metrics"),
]


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_case_leads_to_a_server_error_or_an_undocumented_answer(
    client: httpx.Client, method: str, path: str, mode: schemathesis.GenerationMode
) -> None:
    operation = schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")[path][method]
    answered = 0

    @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy(generation_mode=mode))
    def attack(case: schemathesis.Case) -> None:
        nonlocal answered
        case.call_and_validate(checks=CHECKS)
        answered += 1

    if mode == schemathesis.GenerationMode.NEGATIVE and path in ("/models", "/health/live", "/health/ready", "/metrics"):
        return  # they take nothing that could be wrong
    attack()
    assert answered


def test_every_documented_route_is_attacked(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {(method.upper(), path) for path, methods in paths.items() for method in methods} == set(ROUTES)
