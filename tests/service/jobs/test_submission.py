"""Valid and invalid requests to retrain."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from model_store.run_contract import Overrides
from model_store.run_settings import OVERRIDE_TYPES
from service.jobs.ledger import InvalidSubmission
from service.jobs.submission import Submission, find_data
from service.jobs.training_process import _environment
from service.settings import Settings
from tests.service.jobs.retraining import ADMIN, TOKEN, data_root
from tests.service.serving import in_thread, refused
from training.__main__ import SETTINGS, train_parser


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = data_root(tmp_path_factory.mktemp("submissions"))
    (root / "pipes").mkdir()
    for pipe in (root / "pipe.npz", root / "pipes" / "nodes.csv"):  # opening a pipe waits for a writer
        os.mkfifo(pipe)
    return root


@pytest.fixture(scope="module")
def admin(store: Path, root: Path) -> Iterator[httpx.Client]:
    with in_thread(store, admin_token=TOKEN, data_root=root) as client:
        client.headers.update(ADMIN)
        yield client


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "expected dataset, data or recipe"),
        ({"dataset": "digits", "data": "graph.npz"}, "expected either dataset or data, not both"),
        ({"dataset": "soup"}, "there is no data set 'soup', expected one of digits, cora"),
        ({"recipe": "soup"}, "there is no recipe 'soup', expected one of"),
        ({"recipe": "../recipes/digits"}, "there is no recipe '../recipes/digits'"),
        ({"recipe": "/etc/passwd.toml"}, "there is no recipe"),
        ({"data": "../secret.npz"}, "data must be a relative path below the data root, without '..'"),
        ({"data": "/etc/passwd"}, "data must be a relative path below the data root"),
        ({"data": ""}, "data must be a relative path below the data root"),
        ({"data": "a\0b"}, "data must be a relative path below the data root"),
        ({"data": "."}, "data must be a relative path below the data root"),
        ({"data": "way_out.npz"}, "'way_out.npz' leads out of the data root"),
        ({"data": "tables"}, "'tables' leads out of the data root"),
        ({"data": "circle"}, "there is no 'circle' below the data root"),
        ({"data": "pipe.npz"}, "'pipe.npz' is, or holds, something that is not a file or folder"),
        ({"data": "pipes"}, "'pipes' is, or holds, something that is not a file or folder"),
        ({"data": "nothing.npz"}, "there is no 'nothing.npz' below the data root"),
        ({"data": "x" * 300}, "below the data root"),
        ({"data": "graph.npz", "overrides": {"store": "elsewhere"}}, "body.overrides.store: Extra inputs are not permitted"),
        ({"data": "graph.npz", "overrides": {"hidden": 10**9}}, "body.overrides.hidden: Input should be less than"),
        ({"data": "graph.npz", "overrides": {"learning_rate": "1"}}, "body.overrides.learning_rate"),
        ({"data": "graph.npz", "activate": "perhaps"}, "body.activate: Input should be 'never', 'if_better' or 'always'"),
        ({"data": "graph.npz", "refresh": True, "warm_start": True}, "a refresh trains nothing"),
        ({"data": "graph.npz", "processes": 0}, "body.processes: Input should be greater than or equal to 1"),
        ({"data": "graph.npz", "processes": 65}, "body.processes: Input should be less than or equal to 64"),
        ({"data": "graph.npz", "processes": "2"}, "body.processes: Input should be a valid integer"),
        ({"data": "graph.npz", "processes": 2}, "several processes train in batches: expected overrides.batch_nodes"),
        ({"data": "graph.npz", "rescipe": "digits"}, "body.rescipe: Extra inputs are not permitted"),
    ],
)
def test_an_invalid_request_is_refused(admin: httpx.Client, root: Path, body: dict[str, Any], message: str) -> None:
    response = admin.post("/admin/retrain", json=body)
    assert message in refused(response, 422, "invalid")
    assert str(root) not in response.text
    assert admin.get("/admin/jobs").json() == {"jobs": []}


def test_an_unreadable_folder_is_refused() -> None:
    with as_other_user(), tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "closed").mkdir(mode=0)
        with pytest.raises(InvalidSubmission, match=r"'closed', or a file in it, cannot be read by the service"):
            find_data(root, "closed")
        (root / "closed").chmod(0o700)


@contextmanager
def as_other_user() -> Iterator[None]:
    """Drops the rights of root, which may read every folder."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_the_body_of_a_retrain_request_is_limited(admin: httpx.Client) -> None:
    refused(admin.post("/admin/retrain", content=b'{"data": "' + b"x" * 70_000 + b'"}'), 413, "body_too_large")
    refused(admin.post("/admin/retrain", content=b"{", headers={"content-type": "application/json"}), 400, "not_json")
    refused(admin.post("/admin/retrain", json={"recipe": "digits"}, headers={"idempotency-key": "x" * 201}), 422, "invalid")


def test_unknown_jobs(admin: httpx.Client) -> None:
    for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel")):
        refused(admin.request(method, f"/admin/jobs/{'0' * 16}{path}"), 404, "unknown_job")
        refused(admin.request(method, f"/admin/jobs/nonsense{path}"), 422, "invalid")


def test_admin_routes_need_the_token(admin: httpx.Client, client: httpx.Client) -> None:
    with httpx.Client(base_url=admin.base_url, timeout=30) as without_token:
        for method, path in (("POST", "retrain"), ("GET", "jobs"), ("POST", "models/rollback"), ("POST", "models/activate")):
            refused(without_token.request(method, f"/admin/{path}"), 401, "unauthorized")
            refused(client.request(method, f"/admin/{path}"), 404, "not_found")


def test_each_override_is_a_flag_of_training() -> None:
    assert set(OVERRIDE_TYPES) == {*SETTINGS, "gnn_input", "feature_transform"}


def test_a_submission_becomes_a_command_that_training_understands(root: Path) -> None:
    values = {name: get_args(kind)[1] if get_args(kind) else kind(0.25) or 3 for name, kind in OVERRIDE_TYPES.items()}
    values["value_map"] = False
    submission = Submission(data="graph.npz", overrides=Overrides(**values), warm_start=True, processes=2)
    options = train_parser().parse_args(submission.arguments(root))
    assert {name: getattr(options, name) for name in values} == values
    assert (options.data, options.warm_start, options.activate) == (root / "graph.npz", True, "if_better")
    assert options.processes == 2


@pytest.mark.parametrize("body", [{"data": "graph.npz", "refresh": True}, {"data": "live"}, {"recipe": "digits"}])
def test_several_processes_need_no_batch_size_of_the_request(root: Path, body: dict[str, Any]) -> None:
    """A refresh needs none, and otherwise the recipe or the live version may have it."""
    assert "--processes=3" in Submission(**body, processes=3).arguments(root)


def test_the_processes_of_a_training_share_its_threads() -> None:
    for processes, threads in ((1, "4"), (2, "2"), (3, "1"), (8, "1")):
        assert _environment(Settings(training_threads=4), processes)["OMP_NUM_THREADS"] == threads


def test_jobs_are_kept_in_redis_if_there_is_one() -> None:
    url = "redis://localhost"
    assert [
        Settings(jobs=jobs, redis_url=redis).jobs_in_redis
        for jobs, redis in (("auto", None), ("auto", url), ("local", url), ("redis", url))
    ] == [False, True, False, True]
