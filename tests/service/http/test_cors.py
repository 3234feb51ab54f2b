"""Pages of other origins: what browsers are told, over every way in which a response is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.http.request import usual_head
from service.settings import Settings, SettingsError
from tests.service.http.raw import BODY, request
from tests.service.serving import in_thread, refused

APP, OTHER, KEY = "https://app.example.com", "https://other.example.com", "k" * 16
ALLOWED = "access-control-allow-origin"


@pytest.fixture(scope="module")
def strict(store: Path) -> Iterator[httpx.Client]:
    with in_thread(store, cors_origins=(APP, "http://localhost:3000"), api_keys=(KEY,)) as client:
        yield client


def preflight(client: httpx.Client, origin: str, path: str = "/predict") -> httpx.Response:
    return client.options(path, headers={"origin": origin, "access-control-request-method": "POST"})


@pytest.mark.parametrize("path", ["/predict", "/embed", "/models", "/admin/retrain"])
def test_a_preflight_needs_no_key_and_allows_what_clients_send(strict: httpx.Client, path: str) -> None:
    response = preflight(strict, APP, path)
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers[ALLOWED] == APP
    assert {"POST", "GET"} <= set(response.headers["access-control-allow-methods"].split(", "))
    assert {"authorization", "content-type"} <= set(response.headers["access-control-allow-headers"].split(", "))
    assert strict.get("/health/live").status_code == 200, "the connection goes on"


@pytest.mark.parametrize(
    ("method", "path", "key", "status"),
    [
        ("POST", "/predict", KEY, 200),  # without ASGI
        ("POST", "/predict", "", 401),  # refused before it has a task
        ("GET", "/predict", KEY, 405),
        ("GET", "/classes", KEY, 200),  # FastAPI
        ("GET", "/nodes/99", KEY, 404),
        ("GET", "/nothing", KEY, 404),
    ],
)
def test_every_response_to_an_allowed_page_can_be_read(
    strict: httpx.Client, method: str, path: str, key: str, status: int
) -> None:
    headers = {"origin": APP} | ({"authorization": f"Bearer {key}"} if key else {})
    response = strict.request(method, path, headers=headers, json={"nodes": [1]} if method == "POST" else None)
    assert response.status_code == status
    assert (response.headers[ALLOWED], response.headers["access-control-allow-credentials"]) == (APP, "true")
    assert "origin" in response.headers["vary"]
    assert "x-request-id" in response.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origin", [OTHER, f"{APP}:8443", "null", APP.upper(), ""])
def test_pages_of_other_origins_are_told_nothing(strict: httpx.Client, origin: str) -> None:
    headers = {"origin": origin, "authorization": f"Bearer {KEY}"}
    for response in (strict.get("/classes", headers=headers), strict.post("/predict", json={"nodes": [1]}, headers=headers)):
        assert response.status_code == 200
        assert ALLOWED not in response.headers
        assert "origin" in response.headers["vary"]
    message = refused(preflight(strict, origin), 403, "forbidden")
    assert message == f"pages of the origin {origin!r} may not call this service (SGF_CORS_ORIGINS)"


def test_all_origins_without_cookies(store: Path) -> None:
    with in_thread(store, cors_origins=("*",)) as client:
        for response in (preflight(client, OTHER), client.post("/predict", json={"nodes": [1]}), client.get("/classes")):
            assert response.headers[ALLOWED] == "*"
            assert "access-control-allow-credentials" not in response.headers


def test_without_the_setting_nothing_is_said(client: httpx.Client) -> None:
    refused(preflight(client, APP), 405, "method_not_allowed")
    response = client.post("/predict", json={"nodes": [1]}, headers={"origin": APP})
    assert not {"vary", ALLOWED} & set(response.headers)


def test_preflights_are_not_counted_as_predictions(store: Path) -> None:
    with in_thread(store, cors_origins=(APP,)) as client:
        preflight(client, APP)
        assert 'sgf_requests_total{code="200",route="/predict"} 0.0' in client.get("/metrics").text


def test_a_request_that_was_refused_unparsed_has_its_origin() -> None:
    head, other = usual_head(request(BODY, f"Origin: {APP}".encode())), usual_head(request(b"\norigin: x\r\n"))
    assert head is not None
    assert head.origin == APP.encode()
    assert other is not None
    assert other.origin is None


@pytest.mark.parametrize("value", ["app.example.com", f"{APP}/", f"*,{APP}", "https://App.example.com", "ftp://x", "null"])
def test_wrong_origins_stop_the_start(value: str) -> None:
    with pytest.raises(SettingsError, match=r"SGF_CORS_ORIGINS is .*expected \* or origins such as https://app.example.com"):
        Settings.from_env({"SGF_CORS_ORIGINS": value})


def test_origins_are_read_and_shown() -> None:
    settings = Settings.from_env({"SGF_CORS_ORIGINS": f"{APP}, http://[::1]:3000"})
    assert settings.cors_origins == (APP, "http://[::1]:3000")
    assert settings.resolved()["SGF_CORS_ORIGINS"] == f"{APP},http://[::1]:3000"
