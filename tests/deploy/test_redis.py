"""Redis as the deployment runs it: the rights of its user, and the keys that it evicts when its memory is full."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from redis.exceptions import AuthenticationError, NoPermissionError

from service.jobs.redis_ledger import KEPT_SECONDS
from tests.deploy import manifests
from tests.deploy.deployment_files import REDIS_HEALTH, compose
from tests.deploy.tools import ROOT, run
from tests.service.redis_server import redis_binary
from tests.service.serving import free_port, until

SHELL, OPTIONS, SCRIPT = (part.replace("$$", "$") for part in compose()["services"]["redis"]["command"])
AUTH_FOLDER = "/run/redis-auth"
JOBS, ANSWERS, ANSWER_SECONDS = 50, 10_000, 3600
FORBIDDEN = """
CONFIG GET *, EVAL return(1) 0, FUNCTION LIST, FLUSHALL, FLUSHDB, DEBUG SLEEP 0, MODULE LIST, KEYS *, ACL LIST, SHUTDOWN,
MONITOR, REPLICAOF 127.0.0.1 1, SWAPDB 0 1, CLIENT KILL TYPE normal, SAVE, PUBLISH sgf:a 1, SCAN 0, SELECT 1, CLIENT LIST,
INFO
"""


@pytest.fixture
def password(tmp_path: Path) -> str:
    return make_password(tmp_path / "auth")


def make_password(folder: Path) -> str:
    """Runs the command of compose's `redis-password` in a folder, which is made."""
    folder.mkdir(exist_ok=True)
    service = compose()["services"]["redis-password"]
    run(*service["entrypoint"], service["command"][0].replace("$$", "$").replace("/data", str(folder)))
    return (folder / "password").read_text()


@contextmanager
def running(folder: Path, password: str, **replaced: str) -> Iterator[redis.Redis]:
    """Runs the command of compose with other paths, another port, and words replaced. Yields a client of its user."""
    port, script = free_port(), SCRIPT
    program = f"{redis_binary()} --port {port} --dir {folder} --bind 127.0.0.1"
    places = {"/tmp/users.acl": f"{folder}/users.acl", AUTH_FOLDER: f"{folder}/auth"}  # noqa: S108  # in a container
    for old, new in (places | {"exec redis-server": f"exec {program}"} | replaced).items():
        assert old in script
        script = script.replace(old, new)
    with subprocess.Popen([SHELL, OPTIONS, script], stdout=subprocess.DEVNULL) as process:
        try:
            with redis.Redis(port=port, username="sgf", password=password) as client:
                until(lambda: process.poll() is not None or answers(client))
                assert process.poll() is None
                yield client
        finally:
            process.kill()


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def port_of(client: redis.Redis) -> int:
    return int(client.connection_pool.connection_kwargs["port"])


def test_compose_and_kubernetes_run_the_same_redis() -> None:
    (stateful,) = manifests.of_kind(manifests.written(), "StatefulSet")
    (container,) = manifests.containers(stateful)
    assert container["args"] == [SHELL, OPTIONS, SCRIPT]
    assert container["readinessProbe"]["exec"]["command"] == ["sh", "-c", REDIS_HEALTH]


def test_the_user_has_the_rights_that_the_guide_lists(tmp_path: Path, password: str) -> None:
    (line,) = re.findall(r"^user sgf on >PASSWORD (.*)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    with running(tmp_path, password):
        default, user = (tmp_path / "users.acl").read_text().splitlines()
    assert default.startswith("user default off ")
    assert set(re.sub(r"#\w{64}", "", user).split()) == {"user", "sgf", "on", *line.split()}


def test_the_password_is_random_and_is_made_once(tmp_path: Path, password: str) -> None:
    assert len(password) == 64
    assert make_password(tmp_path / "auth") == password
    assert make_password(tmp_path / "other") != password
    assert [path.name for path in (tmp_path / "auth").iterdir()] == ["password"]


def test_redis_refuses_a_client_without_the_password(tmp_path: Path, password: str) -> None:
    with running(tmp_path, password) as client:
        with pytest.raises(AuthenticationError, match=r"authenticated|required"):
            redis.Redis(port=port_of(client)).ping()
        for username in ("sgf", "default"):
            with pytest.raises(AuthenticationError, match=r"invalid|WRONGPASS"):
                redis.Redis(port=port_of(client), username=username, password="0" * 64).ping()
    assert (tmp_path / "users.acl").stat().st_mode & 0o077 == 0
    assert password not in (tmp_path / "users.acl").read_text()


def test_redis_does_not_start_with_an_empty_password(tmp_path: Path) -> None:
    (tmp_path / "password").touch()
    script = SCRIPT.replace(AUTH_FOLDER, str(tmp_path)).replace("exec redis-server", "exec echo")
    done = run(SHELL, OPTIONS, script, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_the_user_may_use_the_keys_of_the_service_only(tmp_path: Path, password: str) -> None:
    with running(tmp_path, password) as client:
        with client.pipeline(transaction=True) as pipe:
            pipe.watch("sgf:a")
            pipe.multi()
            pipe.set("sgf:a", b"1", ex=60).zadd("sgf:b", {"x": 1.0}).rpush("sgf:c", "1").execute()
        assert client.get("sgf:a") == b"1"
        for key in ("rq:queues", "other", "sgf"):
            with pytest.raises(NoPermissionError, match="key"):
                client.get(key)


def test_the_user_may_not_administer_redis(tmp_path: Path, password: str) -> None:
    with running(tmp_path, password) as client:
        for command in FORBIDDEN.split(","):
            with pytest.raises(redis.ResponseError, match=r"no permissions|not allowed"):
                client.execute_command(*command.split())


def test_the_health_check_uses_the_password(tmp_path: Path, password: str) -> None:
    with running(tmp_path, password) as client:
        check = REDIS_HEALTH.replace(AUTH_FOLDER, f"{tmp_path}/auth").replace("redis-cli", f"redis-cli -p {port_of(client)}")
        assert run("sh", "-c", check, check=False).returncode == 0
        (tmp_path / "auth" / "password").write_text("0" * 64)
        assert run("sh", "-c", check, check=False).returncode != 0


def test_transactions_survive_a_restart(tmp_path: Path, password: str) -> None:
    """Redis replays its log as the user `default`, and drops commands that this user may not use."""
    with running(tmp_path, password) as client, client.pipeline(transaction=True) as pipe:
        pipe.set("sgf:jobs:record:1", b"1").zadd("sgf:jobs:order", {"1": 1.0}).execute()
    with running(tmp_path, password) as client:
        assert client.exists("sgf:jobs:record:1", "sgf:jobs:order") == 2


def count_survivors(folder: Path, password: str, policy: str) -> tuple[int, int]:
    """Writes more answers than there is memory for; counts the answers and the records of ended jobs that are left."""
    with running(folder, password, **{"256mb": "8mb", "volatile-ttl": policy}) as client:
        for job in range(JOBS):
            client.set(f"sgf:jobs:record:{job}", b"x" * 1000, ex=KEPT_SECONDS)
        with client.pipeline(transaction=False) as pipe:
            for answer in range(ANSWERS):
                pipe.set(f"sgf:{answer}", b"x" * 1000, ex=ANSWER_SECONDS)
            pipe.execute()
        kept = client.exists(*(f"sgf:{answer}" for answer in range(ANSWERS)))
        return int(kept), int(client.exists(*(f"sgf:jobs:record:{job}" for job in range(JOBS))))


def test_answers_are_evicted_and_jobs_are_not(tmp_path: Path, password: str) -> None:
    answers_left, jobs_left = count_survivors(tmp_path, password, "volatile-ttl")
    assert answers_left < ANSWERS
    assert jobs_left == JOBS


@pytest.mark.parametrize("policy", ["volatile-lru", "allkeys-lru"])
def test_another_policy_would_lose_jobs(tmp_path: Path, password: str, policy: str) -> None:
    assert count_survivors(tmp_path, password, policy)[1] < JOBS
