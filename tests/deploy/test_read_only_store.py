"""The exposed service runs on a store that it cannot write to, by a read-only mount."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from model_store import Store
from tests.deploy.compose_file import environment
from tests.service.serving import CONTENTS, PATIENT, free_port, is_up, until

MOUNTED = 'mount --bind "$SGF_STORE" "$SGF_STORE" && mount -o remount,ro,bind "$SGF_STORE" && exec "$@"'
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
NEW = {"id": "a", "features": [1, 2, 3, 4, 5], "neighbors": [0, 3]}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "models")
    found.publish("demo", CONTENTS, activate=True)
    return found


@contextmanager
def serving(store: Store, *before: str) -> Iterator[httpx.Client]:
    """sgf-serve with the settings of the exposed service of compose, without Redis, run by a command."""
    if subprocess.run([*before, "true"], env={"SGF_STORE": str(store.root)}, check=False).returncode != 0:
        pytest.skip(f"NOT RUN: this machine does not allow {before[0]}")
    port = free_port()
    given = environment("service", SGF_REDIS_URL="", SGF_REDIS_PASSWORD_FILE="", SGF_WORKERS="2")
    given |= {f"SGF_{name.upper()}": str(value) for name, value in PATIENT.items()}
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SGF_")} | given
    command = [*before, sys.executable, "-m", "service", "--port", str(port), "--host", "127.0.0.1"]
    with subprocess.Popen(command, env=environ | {"SGF_STORE": str(store.root)}) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                until(lambda: process.poll() is not None or is_up(client))
                assert process.poll() is None
                yield client
        finally:
            process.terminate()
            process.wait(timeout=60)


def check_serves_and_follows(store: Store, client: httpx.Client) -> None:
    """Answers, has no /admin, takes a version that another process publishes, and leaves nothing in the store."""
    versions = store.model("demo")
    before = files(store.root)
    until(lambda: client.get("/health/ready").status_code == 200)
    assert client.post("/predict", json={"nodes": [1], "new_nodes": [NEW]}).raise_for_status().json()["version"] == 1
    assert client.post("/admin/retrain", json={}, headers={"authorization": f"Bearer {'t' * 20}"}).status_code == 404
    assert client.get("/models").status_code == 200
    assert files(store.root) == before
    versions.activate(versions.publish(CONTENTS))
    until(lambda: client.post("/predict", json={"nodes": [1]}).json()["version"] == 2)
    versions.rollback()
    until(lambda: client.post("/predict", json={"nodes": [1]}).json()["version"] == 1)


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_on_a_read_only_mount(store: Store) -> None:
    with serving(store, *NAMESPACE, "sh", "-c", MOUNTED, "sh") as client:
        check_serves_and_follows(store, client)
