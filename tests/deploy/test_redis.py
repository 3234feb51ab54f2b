"""Redis as the deployment runs it: the rights of its user, and the keys that it evicts when its memory is full."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from redis.exceptions import AuthenticationError, NoPermissionError

from model_store import Store
from model_store.graph_log.redis_log import RedisLog
from service.jobs.redis_ledger import KEPT_SECONDS
from tests.deploy import manifests
from tests.deploy.deployment_files import REDIS_HEALTH, compose
from tests.deploy.tools import ROOT, run
from tests.service.live.rebuilt import KEY, add_node, commit, predict
from tests.service.redis_server import redis_binary
from tests.service.serving import CONTENTS, free_port, in_thread, until


def server_version() -> tuple[int, ...]:
    (version,) = re.findall(r"v=(\d+\.\d+)", run(redis_binary(), "--version").stdout)
    return tuple(map(int, version.split(".")))


SHELL, OPTIONS, SCRIPT = (part.replace("$$", "$") for part in compose()["services"]["redis"]["command"])
AUTH_FOLDER = "/run/redis-auth"
JOBS, ANSWERS, ANSWER_SECONDS = 50, 10_000, 3600
VERSION = server_version()
"""This machine may have an older Redis than the image."""
HAS_WAITAOF = VERSION >= (7, 2)
HAS_FUNCTIONS = VERSION >= (7, 0)
FORBIDDEN = """
CONFIG GET *, SCRIPT FLUSH, EVALSHA abc 0, FLUSHALL, FLUSHDB, DEBUG SLEEP 0, MODULE LIST, KEYS *, ACL LIST,
SHUTDOWN, MONITOR, REPLICAOF 127.0.0.1 1, SWAPDB 0 1, CLIENT KILL TYPE normal, SAVE, PUBLISH sgf:a 1, SCAN 0, SELECT 1,
CLIENT LIST, INFO
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
    port, script = free_port(), SCRIPT if HAS_WAITAOF else SCRIPT.replace(" +waitaof", "")
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
    written = {"user", "sgf", "on", *line.split()} - (set() if HAS_WAITAOF else {"+waitaof"})
    assert set(re.sub(r"#\w{64}", "", user).split()) == written


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
        for command in [*FORBIDDEN.split(","), *(["FUNCTION LIST"] if HAS_FUNCTIONS else [])]:
            with pytest.raises(redis.ResponseError, match=r"no permissions|not allowed"):
                client.execute_command(*command.split())


def test_the_health_check_uses_the_password(tmp_path: Path, password: str) -> None:
    with running(tmp_path, password) as client:
        program = f"{Path(redis_binary()).with_name('redis-cli')} -p {port_of(client)}"
        check = REDIS_HEALTH.replace(AUTH_FOLDER, f"{tmp_path}/auth").replace("redis-cli", program)
        assert run("sh", "-c", check, check=False).returncode == 0
        (tmp_path / "auth" / "password").write_text("0" * 64)
        assert run("sh", "-c", check, check=False).returncode != 0


def test_transactions_survive_a_restart(tmp_path: Path, password: str) -> None:
    """Redis replays its log as the user `default`, and drops commands that this user may not use."""
    with running(tmp_path, password) as client, client.pipeline(transaction=True) as pipe:
        pipe.set("sgf:jobs:record:1", b"1").zadd("sgf:jobs:order", {"1": 1.0}).execute()
    with running(tmp_path, password) as client:
        assert client.exists("sgf:jobs:record:1", "sgf:jobs:order") == 2


def test_the_log_of_the_live_graph_is_written_and_survives_a_kill(tmp_path: Path, password: str) -> None:
    with running(tmp_path, password) as client:
        log = RedisLog(client, "demo:g")
        with log.writer(timeout=5) as writer:
            writer.append([("a", b"1"), ("b", b"2")], expected=0)
        assert log.durability == ("aof" if HAS_WAITAOF else "memory"), "the user cannot read the configuration"
        assert log.wait(after=1, seconds=1)
        assert log.size_bytes > 0
        assert log.prune(through=1) == 2
    with running(tmp_path, password) as client:
        assert [(record.key, record.payload) for record in RedisLog(client, "demo:g").read(after=1)] == [("b", b"2")]


def test_a_service_commits_and_starts_again_with_this_user(tmp_path: Path, password: str) -> None:
    Store(tmp_path / "store").publish("demo", CONTENTS, onnx=False, activate=True)
    with running(tmp_path, password) as client:
        settings = {
            "graph_log": "redis",
            "redis_url": f"redis://sgf@127.0.0.1:{port_of(client)}/0",
            "redis_password_file": tmp_path / "auth" / "password",
            "write_keys": (KEY,),
        }
        with in_thread(tmp_path / "store", **settings) as http:
            assert commit(http, add_node(100, 1, 0), key="a") == 1
            assert commit(http, add_node(100, 1, 0), key="a") == 1
            assert http.get("/graph").json()["log"]["bytes"] > 0
            answers_before = predict(http, nodes=[0, 100])
        with in_thread(tmp_path / "store", **settings) as http:
            assert predict(http, nodes=[0, 100]) == answers_before
    assert not (tmp_path / "store" / "demo" / "graph_log").exists(), "a read-only store is enough"


def test_a_script_has_no_more_rights_than_its_user(tmp_path: Path, password: str) -> None:
    with running(tmp_path, password) as client:
        for script in ("return redis.call('get', 'other')", "return redis.call('flushall')"):
            with pytest.raises(redis.ResponseError, match=r"can't (access|run)"):
                client.eval(script, 0)


def test_when_redis_flushes_is_a_setting(tmp_path: Path, password: str) -> None:
    replaced = {"${SGF_REDIS_FSYNC:-everysec}": "always"}
    with running(tmp_path, password, **replaced) as client:
        log = RedisLog(client, "demo:g")
        seconds = []
        with log.writer(timeout=5) as writer:
            for number in range(5):
                start = time.monotonic()
                writer.append([("", b"x")], expected=number)
                seconds.append(time.monotonic() - start)
        assert min(seconds) < 0.5, "it does not wait for the next second"


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
