"""Both images as the compose file runs them: one trains the demo and retrains it, the other answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.commands import commands_of
from tests.deploy.compose_file import compose, environment
from tests.deploy.image import SERVING, WORKER, Container, Service, done_inside, owned
from tests.deploy.test_redis import make_password, port_of, running
from tests.deploy.tools import ROOT, thorough
from tests.service.serving import until
from tests.training.samples import write_folder

pytestmark = thorough
TOKEN = "t" * 20


@pytest.fixture(scope="module")
def volumes(worker_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After the first start: the store was empty, and `demo` has trained into it."""
    found = tmp_path_factory.mktemp("volumes")
    train = [one.replace("$$", "$") for one in compose()["services"]["demo"]["entrypoint"]]
    code, output = done_inside(worker_root, WORKER, found, train, seconds=300)
    assert code == 0, output
    return found


@pytest.fixture
def redis_url(tmp_path: Path, volumes: Path) -> Iterator[str]:
    """Redis as compose runs it, with a password in the volume that the containers mount."""
    (volumes / "redis-auth").mkdir(exist_ok=True)
    (tmp_path / "auth").symlink_to(volumes / "redis-auth")
    with running(tmp_path, make_password(volumes / "redis-auth")) as client:
        yield f"redis://sgf@127.0.0.1:{port_of(client)}/0"


def test_a_retraining_goes_through_redis_to_the_worker_and_live(
    serving_root: Path, worker_root: Path, volumes: Path, redis_url: str
) -> None:
    given = environment("admin", SGF_REDIS_URL=redis_url, SGF_ADMIN_TOKEN=TOKEN)
    with (
        closing(Service(serving_root, SERVING, volumes, **given)) as service,
        closing(Container(worker_root, WORKER, volumes, **environment("worker", SGF_REDIS_URL=redis_url))) as worker,
    ):
        service.wait()
        service.client.headers["authorization"] = f"Bearer {TOKEN}"
        assert answering(service) == ("digits", 1)
        submitted = service.client.post("/admin/retrain", json={"recipe": "digits", "activate": "always"})
        assert submitted.status_code == 202, submitted.text

        def job() -> dict[str, Any]:
            found: dict[str, Any] = service.client.get(f"/admin/jobs/{submitted.json()['job']}").json()
            return found

        until(lambda: worker.process.poll() is not None or job()["state"] not in ("queued", "running"), seconds=300)
        assert worker.process.poll() is None, worker.output()
        assert (job()["state"], job()["version"], job()["live"]) == ("succeeded", 2, True), job()
        until(lambda: answering(service) == ("digits", 2))
        until(lambda: 'sgf_retrain_jobs_total{state="succeeded"} 1.0' in service.client.get("/metrics").text)
        service.check_confined()
        worker.check_confined()
        assert worker.terminate() == 0


def answering(service: Service) -> tuple[str, int]:
    answer = service.client.post("/predict", json={"nodes": [0]}).raise_for_status().json()
    return answer["model"], answer["version"]


def test_the_first_model_of_production_is_trained_as_the_page_says(worker_root: Path, tmp_path: Path) -> None:
    """By the commands that it gives to the worker's container, on a store that is empty."""
    told = [
        one.text for one in commands_of(ROOT, "docs/deployment.md") if "exec" in one.text and "sgformer-worker" in one.text
    ]
    unpack, train = (one.partition(" -- ")[2].split() for one in told)
    (tmp_path / "data").mkdir()
    write_folder(tmp_path / "data" / "my_graph", "csv")
    owned(tmp_path / "data", WORKER)
    packed = ["sh", "-c", f"cd /var/lib/sgformer/data && tar -c my_graph | {' '.join(unpack)}"]
    for command in (packed, [*train, "--epochs", "3"]):
        code, output = done_inside(worker_root, WORKER, tmp_path, command, seconds=120)
        assert code == 0, output
    assert (tmp_path / "store" / "models" / "my-graph" / "CURRENT").exists()
