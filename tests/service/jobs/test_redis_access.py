"""The Redis user of docs/operations.md: it suffices for the service and a worker, and may do nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from redis import Redis
from redis.exceptions import ResponseError

from service.jobs.redis_ledger import RedisLedger
from service.jobs.training_worker import Worker
from service.settings import Settings
from tests.service.jobs.retraining import (
    ADMIN,
    QUICK,
    TOKEN,
    data_root,
    events,
    job,
    retrain,
    submit,
    wait_for_end,
    weak_model,
)
from tests.service.redis_server import RedisServer
from tests.service.serving import in_thread, refused, until

PAGE = Path(__file__).parent.parent.parent.parent / "docs" / "operations.md"
PASSWORD = "a-secret-password"  # noqa: S105  # of a server of these tests
OF_A_CONNECTION = {"hello", "auth", "client", "client|setinfo"}
"""Permitted to every user, or not needed: redis-py continues where CLIENT is refused."""
OF_THE_TEST = {"acl", "acl|setuser", "acl|log", "info", "config", "config|resetstat"}
DENIED = (
    "CONFIG GET maxmemory",
    "EVAL return(1) 0",
    "SCRIPT FLUSH",
    "FLUSHALL",
    "FLUSHDB",
    "DEBUG SLEEP 0",
    "MODULE LIST",
    "KEYS *",
    "ACL WHOAMI",
    "REPLICAOF NO ONE",
    "SHUTDOWN NOSAVE",
    "SET other 1",
    "GET other",
)


def documented_rules() -> str:
    """Without the commands of the graph log, which `tests/model_store/graph_log` tests."""
    (rules,) = re.findall(r"^user sgf (.*) \+eval", PAGE.read_text(), re.MULTILINE)
    return str(rules)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """With the users of the page; the test itself keeps a connection that was authenticated before."""
    server, rules = RedisServer(tmp_path), documented_rules()
    server.client.execute_command("ACL", "SETUSER", "sgf", *rules.replace("PASSWORD", PASSWORD).split())
    server.client.execute_command("ACL", "SETUSER", "default", "off")
    yield server
    server.kill()


@pytest.fixture
def settings(server: RedisServer, tmp_path: Path) -> Settings:
    weak_model(tmp_path / "models", data_root(tmp_path))
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    return Settings.from_env(
        {
            "SGF_STORE": str(tmp_path / "models"),
            "SGF_DATA_ROOT": str(tmp_path / "data"),
            "SGF_REDIS_URL": f"redis://sgf@{server.address}/0",
            "SGF_REDIS_PASSWORD_FILE": str(tmp_path / "password"),
            "SGF_REDIS_TIMEOUT_SECONDS": "10",
            "SGF_ADMIN_TOKEN": TOKEN,
        }
    )


def use_everything(client: httpx.Client, settings: Settings) -> None:
    """The cache, and a job in every state; meanwhile the leader watches."""
    question = {"new_nodes": [{"id": "a", "features": [0.5] * features(client), "neighbors": [1]}]}
    until(lambda: client.post("/predict", json=question) and 'kind="redis",result="hit"' in client.get("/metrics").text)
    first = submit(client, "nightly", refresh=True)
    assert submit(client, "nightly", refresh=True) == first
    refused(retrain(client, refresh=True), 409, "conflict")
    Worker(settings).run(burst=True)
    record = wait_for_end(client, first)
    assert (record["state"], events(client, first)[-1][1]) == ("succeeded", "end"), record["error"]
    waiting = submit(client, overrides=QUICK)
    assert client.post(f"/admin/jobs/{waiting}/cancel", headers=ADMIN).json()["state"] == "cancelled"
    running = submit(client, overrides=QUICK)
    ledger = RedisLedger(settings)
    claimed = ledger.claim()
    assert claimed is not None
    client.post(f"/admin/jobs/{running}/cancel", headers=ADMIN)
    assert ledger.report(claimed, ["{}"], "tail") is True
    assert job(client, running)["cancel_requested"] is True


def features(client: httpx.Client) -> int:
    version = client.get("/health/ready").json()["version"]
    width: int = client.get(f"/models/{version}").json()["config"]["in_features"]
    return width


def test_the_documented_user_has_exactly_the_commands_that_are_used(
    server: RedisServer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.predict.cache.PULSE_SECONDS", 0.05)
    server.client.config_resetstat()
    chosen = ("redis_url", "redis_password_file", "redis_timeout_seconds", "admin_token", "data_root")
    with in_thread(settings.store, **{name: getattr(settings, name) for name in chosen}) as client:
        use_everything(client, settings)
        until(lambda: {"ping", "exists"} <= used(server))
    assert used(server) == set(re.findall(r" \+([a-z]+)", documented_rules()))
    assert {entry["object"] for entry in server.client.acl_log()} <= OF_A_CONNECTION


def used(server: RedisServer) -> set[str]:
    commands = {name.removeprefix("cmdstat_") for name in server.client.info("commandstats")}
    return commands - OF_A_CONNECTION - OF_THE_TEST


@pytest.mark.parametrize("command", DENIED)
def test_the_documented_user_may_do_nothing_else(server: RedisServer, command: str) -> None:
    denied = pytest.raises(ResponseError, match=r"this user has no permissions|DEBUG command not allowed")
    with Redis.from_url(f"redis://sgf:{PASSWORD}@{server.address}") as client, denied:
        client.execute_command(*command.split())
