"""The containers of the compose file, and what the checks do with them: `Stack`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.deploy.docker_engine import Compose
from tests.deploy.images import SERVING, WORKER
from tests.service.serving import free_port, until

TOKEN = "t" * 20
WRITE_KEY = "w" * 20
UP = ("up", "--detach", "--no-build")


class Stack(NamedTuple):
    compose: Compose
    client: httpx.Client
    """Of the exposed service."""
    admin: httpx.Client
    """Of the service with /admin; sends the token."""
    available: set[str]

    def version(self) -> int:
        """The version that the exposed service serves."""
        answer = self.client.post("/predict", json={"nodes": [0]}).raise_for_status().json()
        return int(answer["version"])

    def retrain(self) -> str:
        response = self.admin.post("/admin/retrain", json={"recipe": "digits", "activate": "always"})
        assert response.status_code == 202, response.text
        return str(response.json()["job"])

    def wait_for_job(self, job: str) -> dict[str, Any]:
        """The record of a job that has ended, and went live in the exposed service."""
        until(lambda: self.job(job)["state"] not in ("queued", "running"), seconds=300)
        record = self.job(job)
        assert (record["state"], record["live"]) == ("succeeded", True), record
        until(lambda: self.version() == record["version"])
        return record

    def job(self, job: str) -> dict[str, Any]:
        record: dict[str, Any] = self.admin.get(f"/admin/jobs/{job}").raise_for_status().json()
        return record

    def start(self, *services: str) -> None:
        """Starts services that were killed, and waits until both services are ready."""
        self.compose("start", *services)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        until(lambda: is_ready(self.client) and is_ready(self.admin))


@contextmanager
def running_stack(available: set[str], certificates: Path) -> Iterator[Stack]:
    """Runs `docker compose up` with the built images on free ports, and removes everything at the end."""
    ports = {
        name: free_port() for name in ("SGF_PORT", "SGF_ADMIN_PORT", "SGF_TLS_PORT", "SGF_TLS_HTTP_PORT", "GRAFANA_PORT")
    }
    compose = Compose(
        certificates / "env",
        SGF_IMAGE=SERVING,
        SGF_WORKER_IMAGE=WORKER,
        SGF_ADMIN_TOKEN=TOKEN,
        SGF_WRITE_KEYS=WRITE_KEY,
        SGF_CERTIFICATES=str(certificates),
        GRAFANA_ADMIN_PASSWORD=TOKEN,
        **{name: str(port) for name, port in ports.items()},
    )
    service, admin = (f"http://127.0.0.1:{ports[name]}" for name in ("SGF_PORT", "SGF_ADMIN_PORT"))
    head = {"authorization": f"Bearer {TOKEN}"}
    try:
        compose(*UP, seconds=600)
        with (
            httpx.Client(base_url=service, timeout=30) as client,
            httpx.Client(base_url=admin, timeout=30, headers=head) as other,
        ):
            stack = Stack(compose, client, other, available)
            try:
                stack.wait_until_ready()
            except AssertionError:
                pytest.fail(f"the services are not ready:\n{compose('logs', '--no-color', '--tail=20')}")
            yield stack
    finally:
        compose("--profile", "observability", "--profile", "tls", "down", "--volumes", "--timeout", "5")


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health/ready").status_code == 200
    except httpx.TransportError:
        return False
