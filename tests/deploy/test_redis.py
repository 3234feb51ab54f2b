"""Redis with the options of the deployment, when its memory is full: answers go, jobs stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.jobs.redis_ledger import KEPT_SECONDS
from tests.deploy import manifests
from tests.deploy.compose_file import compose
from tests.service.redis_server import RedisServer

OPTIONS: list[str] = compose()["services"]["redis"]["command"][1:]
JOBS, ANSWERS, ANSWER_SECONDS = 50, 10_000, 3600


def test_compose_and_kubernetes_run_the_same_redis() -> None:
    (stateful,) = (one for one in manifests.written() if one["kind"] == "StatefulSet")
    assert manifests.containers(stateful)[0]["args"][1:] == OPTIONS


def test_answers_are_pushed_out_and_jobs_are_not(tmp_path: Path) -> None:
    kept, ended = survivors(tmp_path, OPTIONS)
    assert kept < ANSWERS
    assert ended == JOBS


@pytest.mark.parametrize("policy", ["volatile-lru", "allkeys-lru"])
def test_another_policy_would_lose_jobs(tmp_path: Path, policy: str) -> None:
    options = [policy if one == "volatile-ttl" else one for one in OPTIONS]
    assert options != OPTIONS
    assert survivors(tmp_path, options)[1] < JOBS


def survivors(folder: Path, options: list[str]) -> tuple[int, int]:
    """How many answers, and how many records of ended jobs, are left of more answers than there is room for."""
    small = ["8mb" if one == "256mb" else one for one in options]
    redis = RedisServer(folder, *small)
    try:
        for job in range(JOBS):
            redis.client.set(f"sgf:jobs:record:{job}", b"x" * 1000, ex=KEPT_SECONDS)
        with redis.client.pipeline(transaction=False) as pipe:
            for answer in range(ANSWERS):
                pipe.set(f"sgf:{answer}", b"x" * 1000, ex=ANSWER_SECONDS)
            pipe.execute()
        return len(redis.client.keys("sgf:[0-9]*")), len(redis.client.keys("sgf:jobs:record:*"))
    finally:
        redis.kill()
