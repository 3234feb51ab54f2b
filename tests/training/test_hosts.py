"""Two and three hosts (network namespaces) train as the processes of one host do.

A host that is cut off, or a process that is killed, ends the run with a message within a bounded time, or the run continues
after torchrun's restart. A version is published completely, or not at all.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from model_store import Store
from sgformer.sums import SUM_NAMES
from tests.service.serving import until
from tests.training import hosts as network
from tests.training.hosts import Host, finish, torchrun
from training.__main__ import main
from training.data.datasets.synthetic import generate

VERIFYING = os.environ.get("VERIFY_HOSTS") == "1"
pytestmark = pytest.mark.skipif(
    not VERIFYING, reason="NOT RUN: needs root, network namespaces and minutes; `make verify-hosts` runs it"
)
WORDS = ["--batch-nodes=3000", "--hidden=8", "--layers=2", "--epochs=3", "--checkpoint-every=0", "--quiet"]
BOUND = 180
"""Seconds within which every run ends, on a busy machine; a lost process is found after LOST seconds."""
LOST = "8"


@pytest.fixture(scope="module")
def network_of_three() -> Iterator[list[Host]]:
    if reason := network.problem():
        pytest.fail(reason)
    with network.hosts(3) as three:
        yield three


@pytest.fixture
def machines(network_of_three: list[Host]) -> Iterator[list[Host]]:
    yield network_of_three
    for host in network_of_three:
        host.stop()
        host.connect(True)


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    data = generate(20_000, 60_000, features=6)  # three chunks of rows
    arrays = {"x": data.graph.features, "edge_index": data.graph.adjacency.edge_index(), "y": data.labels}
    np.savez(tmp_path / "graph.npz", **arrays)
    return ["--data", str(tmp_path / "graph.npz"), "--store", str(tmp_path / "hosts"), "--model", "demo", *WORDS]


@pytest.mark.parametrize("count", [2, 3])
def test_hosts_publish_what_the_processes_of_one_host_publish(
    machines: list[Host], words: list[str], tmp_path: Path, count: int
) -> None:
    codes, output = finish(torchrun(machines[:count], ["-m", "training", *words]), BOUND)
    assert codes == [0] * count, output
    alone = [*words, "--store", str(tmp_path / "alone")]
    assert main([*alone, "--processes", str(count)]) == 0
    compare(tmp_path / "hosts", tmp_path / "alone", 1)
    refreshed = ["refresh", "--model", "demo", "--from", "1", *words[:4]]
    codes, output = finish(torchrun(machines[:count], ["-m", "training", *refreshed]), BOUND)
    assert codes == [0] * count, output
    assert main([*refreshed, "--store", str(tmp_path / "alone")]) == 0  # one process
    compare(tmp_path / "hosts", tmp_path / "alone", 2)


def compare(left: Path, right: Path, version: int) -> None:
    with Store(left).model("demo").open(version) as one, Store(right).model("demo").open(version) as two:
        one.replay()
        for name in SUM_NAMES:
            np.testing.assert_allclose(getattr(one.sums, name), getattr(two.sums, name), rtol=1e-12)
        for array, other in zip(
            (one.states.inputs, *one.states.layers), (two.states.inputs, *two.states.layers), strict=True
        ):
            np.testing.assert_allclose(array, other, rtol=1e-6, atol=1e-6)


class Stopped:
    """A run on two hosts of which the process of one rank waits at a stage."""

    def __init__(self, machines: list[Host], words: list[str], folder: Path, stage: str, rank: int, restarts: int) -> None:
        self.file = folder / "stopped"
        stop = {"STOP_AT": stage, "STOP_RANK": str(rank), "STOP_FILE": str(self.file), "LOST_SECONDS": LOST}
        self.runs = torchrun(machines[:2], ["-m", "tests.training.stopping", *words], restarts=restarts, **stop)
        until(lambda: self.file.exists() or self._ended(), BOUND)
        assert self.file.exists(), finish(self.runs, 10)
        self.process = int(self.file.read_text())
        (self.host,) = (host for host in machines if self.process in host.processes())

    def _ended(self) -> bool:
        return any(run.poll() is not None for run in self.runs)

    def kill(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        self.file.unlink()

    def cut(self) -> None:
        self.host.connect(False)
        self.file.unlink()


def ranks_on(host: Host) -> list[int]:
    """The processes that train there, without torchrun."""
    found = []
    for process in host.processes():
        with suppress(psutil.Error):
            found += [process] if "RANK" in psutil.Process(process).environ() else []
    return found


def check_nothing_published_and_the_next_run_works(machines: list[Host], words: list[str], folder: Path) -> None:
    assert Store(folder / "hosts").models() == []
    codes, output = finish(torchrun(machines[:2], ["-m", "training", *words, "--resume"]), BOUND)
    assert codes == [0, 0], output
    versions = Store(folder / "hosts").model("demo")
    assert versions.versions() == [1]
    versions.verify(1)
    assert not list((folder / "hosts" / "demo").glob(".publishing*")), "the next run removes what was left"


@pytest.mark.parametrize(("stage", "rank"), [("epoch", 1), ("epoch", 0), ("summary", 1), ("publishing", 0)])
def test_a_killed_process_ends_the_run(
    machines: list[Host], words: list[str], tmp_path: Path, stage: str, rank: int
) -> None:
    stopped = Stopped(machines, words, tmp_path, stage, rank, restarts=0)
    stopped.kill()
    codes, output = finish(stopped.runs, BOUND)
    assert any(codes), output
    if stage != "publishing":  # there the other process has done its part
        assert all(codes), output
        assert "sgf-train: rank" in output or "sgf-train: the connection to another process" in output, output
    check_nothing_published_and_the_next_run_works(machines, words, tmp_path)


@pytest.mark.parametrize(("stage", "rank"), [("epoch", 1), ("summary", 1)])
def test_torchrun_starts_all_processes_again_after_a_killed_one(
    machines: list[Host], words: list[str], tmp_path: Path, stage: str, rank: int
) -> None:
    stopped = Stopped(machines, [*words, "--resume"], tmp_path, stage, rank, restarts=2)
    stopped.kill()
    codes, output = finish(stopped.runs, BOUND)
    assert codes == [0, 0], output
    main([*words, "--store", str(tmp_path / "alone"), "--processes", "2"])
    compare(tmp_path / "hosts", tmp_path / "alone", 1)


@pytest.mark.parametrize(("stage", "rank"), [("epoch", 1), ("epoch", 0), ("summary", 1), ("summary", 0)])
def test_a_host_that_is_cut_off_ends_the_run(
    machines: list[Host], words: list[str], tmp_path: Path, stage: str, rank: int
) -> None:
    stopped = Stopped(machines, words, tmp_path, stage, rank, restarts=0)
    stopped.cut()
    until(lambda: not any(ranks_on(host) for host in machines), BOUND)
    stopped.host.connect(True)  # torchrun itself waits for its rendezvous, until the kernel gives the connection up
    codes, output = finish(stopped.runs, BOUND)
    assert all(codes), output
    assert output.count("the connection to another process of the run was lost") == 2, output
    check_nothing_published_and_the_next_run_works(machines, words, tmp_path)


def test_a_host_that_is_cut_off_after_its_part_does_not_stop_publishing(
    machines: list[Host], words: list[str], tmp_path: Path
) -> None:
    stopped = Stopped(machines, words, tmp_path, "publishing", 0, restarts=0)
    stopped.cut()
    until(lambda: not any(ranks_on(host) for host in machines), BOUND)
    stopped.host.connect(True)
    finish(stopped.runs, BOUND)  # torchrun may fail, because its rendezvous was gone
    assert Store(tmp_path / "hosts").model("demo").versions() == [1]
    Store(tmp_path / "hosts").model("demo").verify(1)
