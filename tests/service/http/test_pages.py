"""The documentation that the service gives of itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from model_store import Store
from service.engines.served_model import ServedModel
from tests.model_store.samples import publish, small_contents
from tests.model_store.versions.stopped import locked_by_a_stopped_process
from tests.service.http.raw import connect
from tests.service.http.test_schema import ADMIN_ROUTES, GRAPH_ROUTES, ROUTES
from tests.service.serving import in_thread, refused


def test_the_examples_of_the_document_work_when_pasted(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    for path in ("/predict", "/embed"):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert set(body["examples"]) == {"known", "new", "joint", "frozen"}
        answer = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]
        shown = answer["examples"]["known"]["value"]
        assert client.post(path, json=body["examples"]["known"]["value"]).json() == shown
        for example in body["examples"].values():
            assert client.post(path, json=example["value"]).status_code == 200


def test_the_document_does_without_an_answer_that_cannot_be_had(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(ServedModel, "known", fails)
    with in_thread(store) as client:
        answer = client.get("/openapi.json").json()["paths"]["/predict"]["post"]["responses"]["200"]["content"]
    assert set(answer["application/json"]) == {"schema"}


def test_many_classes_do_not_swell_the_document(tmp_path: Path) -> None:
    Store(tmp_path).publish("demo", small_contents(config={"out_features": 5000}), onnx=False, activate=True)
    with in_thread(tmp_path) as client:
        assert len(client.get("/openapi.json").content) < 150_000
        document = client.get("/openapi.json").json()["paths"]["/predict"]["post"]
        asked = document["requestBody"]["content"]["application/json"]["examples"]["known"]["value"]
        shown = document["responses"]["200"]["content"]["application/json"]["examples"]["known"]["value"]
        assert client.post("/predict", json=asked).json() == shown


def test_the_page_of_the_document_needs_nobody_else(client: httpx.Client) -> None:
    """Where it is served there may be no way to the internet: scripts and styles come from the service itself."""
    page = client.get("/docs").text
    assets = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(assets) == 3
    for asset in assets:
        assert client.get(asset).status_code == 200
    assert "//" not in "".join(assets)


def test_a_browser_shows_the_document(client: httpx.Client) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("NOT RUN: no Chromium here, so nobody has looked at /docs (apt-get install chromium)")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000", "--dump-dom"]
    shown = subprocess.run([chromium, *options, f"{client.base_url}/docs"], capture_output=True, text=True, timeout=60)
    assert "SGFormer serving" in shown.stdout, shown.stderr[-2000:]
    for path in client.get("/openapi.json").json()["paths"]:
        assert f'data-path="{path}"' in shown.stdout


def test_every_route_is_documented_with_its_errors(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert {tag["name"] for tag in document["tags"]} == {
        tag for path in document["paths"].values() for operation in path.values() for tag in operation["tags"]
    }
    assert all(
        operation.get("security") == [{"key": []}]
        for name, path in document["paths"].items()
        if name.startswith("/admin")
        for operation in path.values()
    )
    assert set(document["paths"]) == {path for _, path in (*ROUTES, *GRAPH_ROUTES, *ADMIN_ROUTES)}
    for path in document["paths"].values():
        for operation in path.values():
            assert {"200", "202"} & set(operation["responses"])
            assert {"500", "503"} <= set(operation["responses"])
            assert "ErrorAnswer" in str(operation["responses"]["500"])
    assert set(document["paths"]["/health/live"]["get"]["responses"]) == {"200", "500", "503"}
    assert {"404", "413", "422", "429"} <= set(document["paths"]["/predict"]["post"]["responses"])
    schemas = set(document["components"]["schemas"])
    assert {"Question", "NewNode", "PredictAnswer", "Prediction", "ErrorAnswer"} <= schemas


def test_pages_can_be_asked_for_their_head_alone(client: httpx.Client) -> None:
    """As watchers of health do."""
    for path in ("/health/live", "/health/ready", "/models", "/openapi.json"):
        head, whole = client.head(path), client.get(path)
        assert head.status_code == 200
        assert all(head.headers[name] == whole.headers[name] for name in ("content-type", "content-length"))
    assert [client.head(path).status_code for path in ("/models/99", "/predict", "/admin/jobs")] == [404, 405, 404]
    with connect(client) as caller:
        target = b" /health/live HTTP/1.1\r\nhost: x\r\n\r\n"
        caller.sendall(b"".join(method + target for method in (b"HEAD", b"HEAD", b"GET")))
        received = b""
        while not received.endswith(b"}"):
            received += caller.recv(65_536)
    assert (received.count(b"HTTP/1.1 200"), received.count(b'"live"')) == (3, 1)


def test_a_head_is_counted_under_its_route(store: Path) -> None:
    with in_thread(store) as client:
        client.head("/health/ready")
        assert 'sgf_requests_total{code="200",route="/health/ready"} 1.0' in client.get("/metrics").text


def test_a_version_shows_its_manifest_and_its_report(tmp_path: Path) -> None:
    contents = small_contents(report="<h1>how it went</h1>", scores={"test_accuracy": 0.9})
    Store(tmp_path).publish("demo", contents, onnx=False, activate=True)
    with in_thread(tmp_path) as client:
        assert client.get("/models/1").json()["scores"] == {"test_accuracy": 0.9}
        response = client.get("/models/1/report")
        assert response.text == "<h1>how it went</h1>"
        assert response.headers["content-security-policy"].startswith("default-src 'none'")


def test_a_report_is_read_alone_and_verified(tmp_path: Path) -> None:
    """Other files of the version, damaged or missing, do not matter; a changed byte of the report does."""
    Store(tmp_path).publish("demo", small_contents(report="<h1>how it went</h1>"), onnx=False, activate=True)
    with in_thread(tmp_path) as client:
        (tmp_path / "demo" / "1" / "states" / "logits.npy").unlink()
        assert client.get("/models/1/report").text == "<h1>how it went</h1>"
        (tmp_path / "demo" / "1" / "report.html").write_text("<h1>how it want</h1>")
        assert "report.html: the sha256" in refused(client.get("/models/1/report"), 409, "conflict")
        publish(Store(tmp_path))
        refused(client.get("/models/2/report"), 404, "unknown_report")
        refused(client.get("/models/3/report"), 404, "unknown_version")


def test_locks_that_are_never_released_stop_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.rollout.rollout.LOCK_SECONDS", 0.1)
    publish(Store(tmp_path), activate=True)
    publish(Store(tmp_path), seed=2)
    admin = {"authorization": f"Bearer {'t' * 16}"}
    with (
        in_thread(tmp_path, admin_token="t" * 16) as client,
        locked_by_a_stopped_process(tmp_path / "demo" / ".lock"),
        locked_by_a_stopped_process(tmp_path / "demo" / "2" / "manifest.json"),
    ):
        assert [one["version"] for one in client.get("/models").json()["versions"]] == [1, 2]
        assert client.get("/models/2").json()["version"] == 2
        assert client.get("/admin/jobs", headers=admin).json() == {"jobs": []}
        for path, body, lock in (
            ("activate", {"version": 1}, "demo/.lock"),
            ("activate", {"version": 2}, "2/manifest.json"),
            ("rollback", None, "demo/.lock"),
        ):
            response = client.post(f"/admin/models/{path}", json=body, headers=admin)
            assert f"the lock {lock} was not free for" in refused(response, 503, "store_busy")
            assert response.headers["retry-after"] == "1"
        assert client.post("/predict", json={"nodes": [1]}).status_code == 200
