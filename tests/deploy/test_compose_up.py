"""`docker compose up` with the compose file as it is: requests, retraining, failures, TLS and Prometheus."""

from __future__ import annotations

import json
import re
import shlex
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.commands import blocks_of
from tests.deploy import queries
from tests.deploy.docker_engine import docker
from tests.deploy.stack import TOKEN, UP, Stack, is_ready
from tests.deploy.tools import ROOT, thorough
from tests.service.serving import until

pytestmark = thorough
USERS = {"service": "10001", "admin": "10001", "worker": "10001", "redis": "999", "tls": "101", "prometheus": "65534"}
HEAD = b"POST /predict HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\ncontent-length: 14\r\n\r\n"


@contextmanager
def steady_requests(stack: Stack) -> Iterator[None]:
    """Sends requests for new nodes without a pause; each must be answered with 200."""
    failures, stopped, sent = list[str](), threading.Event(), 0

    def send() -> None:
        nonlocal sent
        with httpx.Client(base_url=stack.client.base_url, timeout=30) as client:
            while not stopped.is_set():
                new = {"id": "new", "features": [sent % 16] * 64, "neighbors": [sent % 900, 7]}
                try:
                    response = client.post("/predict", json={"nodes": [1], "new_nodes": [new]})
                    failures.extend([] if response.status_code == 200 else [response.text])
                except httpx.TransportError as error:
                    failures.append(repr(error))
                sent += 1
                time.sleep(0.01)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
    assert sent > 10
    assert failures == [], f"{len(failures)} of {sent} requests failed: {failures[:3]}"


def test_the_demo_answers_as_in_the_readme(stack: Stack) -> None:
    blocks = blocks_of(ROOT, "README.md")
    number = next(number for number, block in enumerate(blocks) if "/predict" in block.text)
    words = shlex.split(blocks[number].text)
    answer = stack.client.post("/predict", json=json.loads(words[words.index("--json") + 1])).raise_for_status().json()
    expected = json.loads(blocks[number + 1].text)
    (prediction,), (shown,) = answer["predictions"], expected["predictions"]
    for top, shown_top in zip(prediction["top_k"], shown["top_k"], strict=True):
        assert top.pop("probability") == pytest.approx(shown_top.pop("probability"), abs=0.01)  # depends on the processor
    assert (answer["model"], answer["version"], prediction) == (expected["model"], expected["version"], shown)


def test_the_image_has_the_console_and_the_page_of_the_api(stack: Stack) -> None:
    """With their scripts and styles, and without another host."""
    for path in ("/", "/docs"):
        page = stack.client.get(path).raise_for_status().text
        files = re.findall(r'(?:src|href)="([^"]+)"', page)
        assert {Path(file.partition("?")[0]).suffix for file in files} >= {".js", ".css"}, path
        for file in files:
            assert stack.client.get(file).raise_for_status().content, file


def test_containers_are_confined(stack: Stack) -> None:
    for service in ("service", "admin", "worker", "redis"):
        check_confined(stack, service)
    for path in ("/opt/sgformer/x", "/var/lib/sgformer/store/x", "/var/lib/sgformer/data/x"):
        written = stack.compose.inside("service", "python3", "-c", f"open({path!r}, 'w')", check=False)
        assert "Read-only file system" in written.stderr, path


def check_confined(stack: Stack, service: str) -> None:
    """No root, no capability, no way to gain one, and a read-only root file system."""
    status = dict(line.split(":\t", 1) for line in read(stack, service, "/proc/1/status").splitlines() if ":\t" in line)
    user = USERS[service]
    assert (status["Uid"].split(), status["CapEff"], status["NoNewPrivs"]) == ([user] * 4, "0" * 16, "1"), service
    mounts = {fields[4]: fields[5] for fields in map(str.split, read(stack, service, "/proc/1/mountinfo").splitlines())}
    assert "ro" in mounts["/"].split(","), service


def read(stack: Stack, service: str, path: str) -> str:
    return stack.compose.inside(service, "cat", path).stdout


def test_the_exposed_service_has_no_admin_and_docker_sees_that_it_is_healthy(stack: Stack) -> None:
    response = stack.client.post("/admin/retrain", json={}, headers={"authorization": f"Bearer {TOKEN}"})
    assert response.status_code == 404
    assert stack.client.get("/models").status_code == 200
    for service in ("service", "admin", "redis"):
        until(lambda name=service: health(stack, name) == "healthy")


def health(stack: Stack, service: str) -> str:
    return docker("inspect", "--format={{.State.Health.Status}}", stack.compose.container(service)).stdout.strip()


def test_a_retraining_by_the_worker_goes_live_and_back_without_a_failed_request(stack: Stack) -> None:
    before = stack.version()
    with steady_requests(stack):
        record = stack.wait_for_job(stack.retrain())
        assert record["version"] == before + 1
        until(lambda: 'sgf_retrain_jobs_total{state="succeeded"}' in stack.admin.get("/metrics").text)
        stack.admin.post("/admin/models/rollback").raise_for_status()
        until(lambda: stack.version() == before)
        stack.admin.post("/admin/models/activate", json={"version": record["version"]}).raise_for_status()
        until(lambda: stack.version() == record["version"])


def test_without_redis_requests_are_answered_and_jobs_come_back_with_it(stack: Stack) -> None:
    job = stack.wait_for_job(stack.retrain())
    with steady_requests(stack):
        until(lambda: "sgf_cache_up 1.0" in stack.client.get("/metrics").text)
        docker("kill", stack.compose.container("redis"))
        until(lambda: "sgf_cache_up 0.0" in stack.client.get("/metrics").text)
        stack.compose("start", "redis")
        until(lambda: "sgf_cache_up 1.0" in stack.client.get("/metrics").text)
    until(lambda: stack.admin.get("/admin/jobs").status_code == 200)
    assert stack.job(job["id"]) == job


def test_killed_services_lose_nothing(stack: Stack) -> None:
    """Neither the model nor a job that runs meanwhile."""
    before, job = stack.version(), stack.retrain()
    until(lambda: stack.job(job)["state"] == "running")
    for service in ("service", "admin"):
        docker("kill", stack.compose.container(service))
    assert not is_ready(stack.client)
    stack.start("service", "admin")
    assert stack.wait_for_job(job)["version"] == before + 1


@pytest.mark.parametrize("workers", ["2", "1"])
def test_sigterm_drains_the_service(stack: Stack, workers: str) -> None:
    """A request is answered of which half had arrived. The server has read its head: it has sent 100 Continue."""
    stack.compose(*UP, "service", SGF_WORKERS=workers)
    stack.wait_until_ready()
    container, port = stack.compose.container("service"), stack.client.base_url.port or 0
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(HEAD)
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b'{"nod')
        docker("kill", "--signal=TERM", container)
        time.sleep(0.5)  # a server that does not wait has ended by then
        connection.sendall(b'es": [1]}')
        response = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), response
    assert [prediction["exactness"] for prediction in json.loads(body)["predictions"]] == ["exact"]
    assert docker("wait", container).stdout.strip() == "0"
    stack.start("service")


def test_the_profile_tls_serves_over_tls(stack: Stack) -> None:
    variables = stack.compose.variables
    stack.compose("--profile", "tls", *UP, "tls")
    check_confined(stack, "tls")
    context = ssl.create_default_context(cafile=Path(variables["SGF_CERTIFICATES"]) / "fullchain.pem")
    with httpx.Client(base_url=f"https://localhost:{variables['SGF_TLS_PORT']}", verify=context, timeout=30) as client:
        until(lambda: is_ready(client))
        answer = client.post("/predict", json={"nodes": [1]}).raise_for_status()
        assert answer.headers["strict-transport-security"] == "max-age=31536000"
        assert [client.get(path).status_code for path in ("/metrics", "/admin/jobs")] == [404, 404]
    redirect = httpx.get(f"http://127.0.0.1:{variables['SGF_TLS_HTTP_PORT']}/predict")
    assert (redirect.status_code, redirect.headers["location"]) == (308, "https://127.0.0.1/predict")


def ask_prometheus(stack: Stack, path: str) -> Any:
    """The data of an answer of Prometheus' API, asked in its container: Prometheus is not published."""
    answer = stack.compose.inside("prometheus", "wget", "-qO-", f"http://127.0.0.1:9090/api/v1/{path}")
    return json.loads(answer.stdout)["data"]


def result_of(stack: Stack, query: str) -> list[Any]:
    return list(ask_prometheus(stack, f"query?query={quote(query)}")["result"])


def test_prometheus_scrapes_evaluates_the_rules_and_answers_the_dashboard(stack: Stack) -> None:
    stack.compose("--profile", "observability", *UP, "prometheus")
    until(lambda: health(stack, "prometheus") == "healthy")
    check_confined(stack, "prometheus")
    until(lambda: targets(stack) == {"service:8000": "up", "admin:8000": "up"})
    shown = [query for query in queries.of_panels(queries.read_dashboard()["panels"]) if "ALERTS" not in query]
    with steady_requests(stack):
        until(lambda: all(result_of(stack, query) for query in shown), seconds=120)
    rules = [rule for group in ask_prometheus(stack, "rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {rule["alert"] for rule in queries.alert_rules()}
    until(
        lambda: {rule["health"] for group in ask_prometheus(stack, "rules")["groups"] for rule in group["rules"]} == {"ok"}
    )
    assert result_of(stack, 'ALERTS{alertstate="firing"}') == []


def targets(stack: Stack) -> dict[str, str]:
    return {target["labels"]["instance"]: target["health"] for target in ask_prometheus(stack, "targets")["activeTargets"]}


def test_an_alert_fires_while_the_service_is_down(stack: Stack) -> None:
    """It takes a minute, as the rule says; the dashboard shows it."""
    (alerts,) = (query for query in queries.of_dashboard(queries.read_dashboard()) if "ALERTS" in query)
    stack.compose("--profile", "observability", *UP, "prometheus")
    docker("kill", stack.compose.container("service"))
    until(lambda: targets(stack).get("service:8000") == "down")
    until(lambda: result_of(stack, alerts), seconds=180)
    assert {alert["metric"]["alertname"] for alert in result_of(stack, alerts)} == {"ServiceDown"}
    stack.start("service")


def test_grafana_starts_with_the_dashboard(stack: Stack) -> None:
    if "grafana" not in stack.available:
        pytest.skip("NOT RUN: Grafana's image cannot be pulled here, and Debian has no package of it")
    stack.compose("--profile", "observability", *UP, "grafana")
    address = (
        f"http://127.0.0.1:{stack.compose.variables['GRAFANA_PORT']}/api/dashboards/uid/{queries.read_dashboard()['uid']}"
    )
    assert httpx.get(address, auth=("admin", TOKEN)).json()["dashboard"]["title"] == queries.read_dashboard()["title"]


def test_everything_is_there_after_down_and_up(stack: Stack) -> None:
    before, jobs = stack.version(), stack.admin.get("/admin/jobs").json()
    stack.compose("--profile", "observability", "--profile", "tls", "down", "--timeout", "20")
    stack.compose(*UP)
    stack.wait_until_ready()
    assert (stack.version(), stack.admin.get("/admin/jobs").json()) == (before, jobs)
