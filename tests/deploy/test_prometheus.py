"""A real Prometheus with our configuration scrapes a real service: targets up, rules loaded, every query answered."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy import queries
from tests.deploy.tools import ROOT, need, thorough
from tests.service.redis_server import RedisServer
from tests.service.serving import free_port, in_processes, until

pytestmark = thorough
CONFIGURED = '"service:8000", "admin:8000"'
"""Where compose has the services."""


@contextmanager
def prometheus(folder: Path, service_port: int, patience: str = "1m") -> Iterator[httpx.Client]:
    """Our configuration, but for the address of the service, a quicker pace and patience; a client of its API."""
    for path in (ROOT / "deploy" / "prometheus").glob("*.yml"):
        text = path.read_text().replace(CONFIGURED, f'"127.0.0.1:{service_port}"')
        (folder / path.name).write_text(
            re.sub(r"_interval: \d+s", "_interval: 1s", text).replace("for: 1m", f"for: {patience}")
        )
    port = free_port()
    options = [
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen([need("prometheus"), *options], stderr=log) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
                until(lambda: process.poll() is not None or _ready(client))
                assert process.poll() is None, (folder / "log").read_text()
                yield client
        finally:
            process.terminate()
            process.wait(timeout=20)


def _ready(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def asked(client: httpx.Client, path: str, **parameters: str) -> Any:
    answer = client.get(f"/api/v1/{path}", params=parameters).json()
    assert answer["status"] == "success", answer
    return answer["data"]


def health(client: httpx.Client) -> list[str]:
    return [one["health"] for one in asked(client, "targets")["activeTargets"]]


def test_targets_are_up_rules_loaded_and_every_query_has_an_answer(store: Path, tmp_path: Path) -> None:
    redis = RedisServer(tmp_path)
    new = {"id": "a", "features": [1, 2, 3, 4, 5], "neighbors": [0, 3]}
    try:
        with (
            in_processes(store, workers=2, redis_url=redis.url) as (service, _process, _lines),
            prometheus(tmp_path, service.base_url.port or 0) as client,
        ):
            until(lambda: health(client) == ["up"])

            def everything_answered() -> bool:
                service.post("/predict", json={"nodes": [1], "new_nodes": [new]}).raise_for_status()
                return not unanswered(client)

            until(everything_answered)
            (group,) = asked(client, "rules")["groups"]
            assert len(group["rules"]) == len(list(queries.of_alerts()))
            until(lambda: {one["health"] for one in asked(client, "rules")["groups"][0]["rules"]} == {"ok"})
            assert {one["state"] for one in asked(client, "rules")["groups"][0]["rules"]} == {"inactive"}
    finally:
        redis.kill()


def unanswered(client: httpx.Client) -> list[str]:
    """Queries of the dashboard without a result. Annotations are silent unless a version has gone live, and alerts."""
    panels = [target for panel in queries.read_dashboard()["panels"] for target in panel.get("targets", ())]
    found = queries.of_dashboard({"panels": [{"targets": panels}], "annotations": {"list": []}})
    return [one for one in found if "ALERTS" not in one and not asked(client, "query", query=one)["result"]]


def test_a_service_that_is_not_there_is_seen(tmp_path: Path) -> None:
    """By its alert too, and the dashboard shows that one."""
    (alerts,) = (one for one in queries.of_dashboard(queries.read_dashboard()) if "ALERTS" in one)
    with prometheus(tmp_path, free_port(), patience="1s") as client:
        until(lambda: health(client) == ["down"])
        assert unanswered(client)
        until(lambda: asked(client, "query", query=alerts)["result"])
        (fires,) = asked(client, "query", query=alerts)["result"]
        assert fires["metric"]["alertname"] == "ServiceDown"


def test_a_broken_configuration_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys.modules[__name__], "CONFIGURED", 'targets: ["service:8000", "admin:8000"]'
    )  # leaves a number where a list belongs
    with pytest.raises(AssertionError, match=r"err="), prometheus(tmp_path, free_port()):
        pass
