"""The OpenAPI document, attacked: no 5xx, and no answer that it does not describe. SGF_CASES: how many cases per route."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from tests.service.redis_server import RedisServer
from tests.service.serving import in_thread

TOKEN = "t" * 20
CASES = int(os.environ.get("SGF_CASES", "60"))
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
PAGES = ("/models", "/models/{version}", "/models/{version}/report", "/health/live", "/health/ready", "/metrics")
ROUTES = [("POST", "/predict"), ("POST", "/embed"), *(("GET", path) for path in PAGES)]
ADMIN_PAGES = ("/admin/jobs", "/admin/jobs/{job_id}", "/admin/jobs/{job_id}/events")
ADMIN_ORDERS = ("/admin/retrain", "/admin/jobs/{job_id}/cancel", "/admin/models/activate", "/admin/models/rollback")
ADMIN_ROUTES = [*(("GET", path) for path in ADMIN_PAGES), *(("POST", path) for path in ADMIN_ORDERS)]
TAKE_NOTHING = {"/models", "/health/live", "/health/ready", "/metrics", "/admin/jobs", "/admin/models/rollback"}


@pytest.fixture(scope="module")
def admin(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Jobs go to Redis, where no worker takes them: whatever is submitted, nothing trains."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    try:
        with in_thread(store, admin_token=TOKEN, redis_url=server.url) as client:
            client.headers["authorization"] = f"Bearer {TOKEN}"
            yield client
    finally:
        server.kill()


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_case_leads_to_a_server_error_or_an_undocumented_answer(
    client: httpx.Client, method: str, path: str, mode: schemathesis.GenerationMode
) -> None:
    attack(client, method, path, mode)


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
@pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
def test_nor_does_one_of_somebody_with_the_token(
    admin: httpx.Client, method: str, path: str, mode: schemathesis.GenerationMode
) -> None:
    attack(admin, method, path, mode)


def attack(client: httpx.Client, method: str, path: str, mode: schemathesis.GenerationMode) -> None:
    operation = schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")[path][method]
    headers = {name: value for name, value in client.headers.items() if name == "authorization"}
    documented = client.get("/openapi.json").json()["paths"][path][method.lower()]["responses"]
    codes = {status: told["description"].split(", ") for status, told in documented.items()}
    answered = 0

    @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy(generation_mode=mode))
    def one(case: schemathesis.Case) -> None:
        nonlocal answered
        response = case.call_and_validate(checks=CHECKS, headers=headers)
        if response.status_code >= 400:
            assert response.json()["code"] in codes[str(response.status_code)]
        answered += 1

    if mode == schemathesis.GenerationMode.NEGATIVE and path in TAKE_NOTHING:
        return  # they take nothing that could be wrong
    one()
    assert answered >= (1 if path in TAKE_NOTHING else CASES), "there are not so many different ones"


def test_every_documented_route_is_attacked(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {(method.upper(), path) for path, methods in paths.items() for method in methods} == {*ROUTES, *ADMIN_ROUTES}
