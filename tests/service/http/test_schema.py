"""The OpenAPI document, attacked: no 5xx, and no answer that it does not describe. SGF_CASES: how many cases per route."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from tests.service.named import FAN
from tests.service.redis_server import RedisServer
from tests.service.serving import in_thread

TOKEN = "t" * 20
CASES = int(os.environ.get("SGF_CASES", "30"))
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
PAGES = ("/models", "/models/{version}", "/models/{version}/report", "/health/live", "/health/ready", "/metrics", "/drift")
DATA_PAGES = ("/nodes", "/nodes/{node_id}", "/classes", "/features", "/map")
ANSWERS = ("/predict", "/embed", "/explain", "/similar")
ROUTES = [*(("POST", path) for path in ANSWERS), *(("GET", path) for path in (*DATA_PAGES, *PAGES))]
NAMED_ROUTES = [("POST", "/predict"), ("POST", "/embed"), ("GET", "/nodes/{node_id}")]
GRAPH_ROUTES = [("POST", "/graph"), ("GET", "/graph"), ("GET", "/graph/nodes/{node_id}")]
ADMIN_PAGES = ("/admin/jobs", "/admin/jobs/{job_id}", "/admin/jobs/{job_id}/events")
ADMIN_ORDERS = (
    "/admin/retrain",
    "/admin/graph/compact",
    "/admin/jobs/{job_id}/cancel",
    "/admin/models/activate",
    "/admin/models/rollback",
)
ADMIN_ROUTES = [*(("GET", path) for path in ADMIN_PAGES), *(("POST", path) for path in ADMIN_ORDERS)]
TAKE_NOTHING = {
    "/classes",
    "/features",
    "/models",
    "/health/live",
    "/health/ready",
    "/metrics",
    "/drift",
    "/graph",
    "/admin/jobs",
    "/admin/models/rollback",
    "/admin/graph/compact",
}


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


@pytest.fixture(scope="module")
def writer(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """With a store of its own, whose graph it may change."""
    own = shutil.copytree(store, tmp_path_factory.mktemp("changed") / "store")
    with in_thread(own, write_keys=(TOKEN,)) as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        yield client


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
@pytest.mark.parametrize(("method", "path"), [*GRAPH_ROUTES, ("POST", "/predict")])
def test_nor_does_one_that_changes_the_graph(
    writer: httpx.Client, method: str, path: str, mode: schemathesis.GenerationMode
) -> None:
    attack(writer, method, path, mode)


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_case_leads_to_a_server_error_or_an_undocumented_answer(
    client: httpx.Client, method: str, path: str, mode: schemathesis.GenerationMode
) -> None:
    attack(client, method, path, mode)


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
@pytest.mark.parametrize(("method", "path"), NAMED_ROUTES)
def test_nor_does_one_for_a_model_with_names(
    named_client: httpx.Client, method: str, path: str, mode: schemathesis.GenerationMode
) -> None:
    attack(named_client, method, path, mode)


VALUES = st.none() | st.booleans() | st.floats() | st.sampled_from(["jazz", "rock", "2024-01-31"]) | st.text(max_size=5)
NAMES = st.dictionaries(st.sampled_from([*FAN, "indices", "values", "agee"]), VALUES)
FEATURES = NAMES | st.builds(FAN.__or__, NAMES) | st.lists(st.floats(), min_size=7, max_size=7) | st.just(None)
NODES = st.builds(
    lambda features, neighbors: {"features": features, "neighbors": neighbors},
    FEATURES,
    st.lists(st.sampled_from(["fan-7", "a/b", "nobody", 3]), max_size=3),
)


@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(
    nodes=st.lists(NODES, min_size=1, max_size=5),
    known=st.lists(st.sampled_from(["fan-9", "nobody", 3]), max_size=3),
    probabilities=st.sampled_from([True, False, "by_class"]),
)
def test_per_item_every_node_gets_an_answer_or_an_error_in_order(
    named_client: httpx.Client, nodes: list[Any], known: list[Any], probabilities: Any
) -> None:
    """And the answers are those of the same nodes alone."""
    new = [node | {"id": place} for place, node in enumerate(nodes)]
    question = {"nodes": known, "new_nodes": new, "probabilities": probabilities, "on_error": "per_item"}

    def post(content: Any) -> httpx.Response:
        return named_client.post("/predict", content=json.dumps(content), headers={"content-type": "application/json"})

    response = post(question)
    assert response.status_code == 200, response.text
    predictions = response.json()["predictions"]
    assert [entry["node"] for entry in predictions] == [*known, *range(len(new))]
    for entry, item in zip(predictions, [*known, *new], strict=True):
        alone = {"new_nodes": [item]} if isinstance(item, dict) else {"nodes": [item]}
        single = post(alone | {"probabilities": probabilities})
        if "error" in entry:
            assert set(entry) == {"node", "error", "code"}
            assert single.json()["code"] == entry["code"]
        else:
            assert single.json()["predictions"] == [entry]


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

    takes_nothing = path in TAKE_NOTHING and (method, path) != ("POST", "/graph")
    if mode == schemathesis.GenerationMode.NEGATIVE and takes_nothing:
        return  # they take nothing that could be wrong
    one()
    assert answered >= (1 if takes_nothing else CASES), "there are not so many different ones"


def test_every_documented_route_is_attacked(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    documented = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert documented == {*ROUTES, *GRAPH_ROUTES, *ADMIN_ROUTES}
