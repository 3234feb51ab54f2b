"""A stranger's path: a clone, `make run`, and then every command of the README and the pages, in their order.

What cannot run here stands in NOT_RUN, with the reason. Three things are changed: the demo gets a port of its own, a job is
one that is there, and flags are added (APPENDED). A command that several pages have is run once, or where another one needs
it (FIRST_OF_ALL), each in a shell of its own: what a page exports is given to all of them by `place`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.commands import Command, commands_of
from tests.deploy.tools import run
from tests.service.serving import free_port, until
from tests.training.samples import write_folder

ROOT = Path(__file__).parent.parent
FIRST = ("README.md", "docs/index.md", "deploy/README.md")
PAGES = (*FIRST, *sorted({f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} - set(FIRST)))
TOKEN = "t" * 20
NOT_RUN = {
    r"docker ": "no Docker engine here; `make verify-deploy` checks the compose file, builds the same images and runs them",
    r"kubectl |kind |helm |.*\| kubectl ": "no cluster here; tests/deploy builds every overlay and checks it",
    r"sgf-train (--recipe cora|--dataset cora|table)": "needs raw data sets; tests/training runs it on samples",
    r"sgf-train tune .*--trials 50": "50 trials take minutes; the same command runs above with fewer",
}
SERVES = re.compile(r"make run|sgf-serve(?! --(check|table|help))")
"""Goes on until it is stopped."""
APPENDED = {
    r"curl": "--fail-with-body --silent --show-error",
    r"sgf-train --data": "--epochs 3 --quiet",
    r"sgf-train tune": "--trials 2 --epochs 3 --quiet",
    r"sgf-train refresh(?!.*--model)": "--model my-graph",
    r"(sgf-models (verify|prune)|sgf-serve)(?!.*--model)": "--model digits",
}
"""So that a refusal is a failure, training takes seconds, and one store with several models does for all pages."""
RETRAIN, ACTIVATE = r"curl .*/admin/retrain -H \"\$auth\"", r"curl .*/models/activate"
FIRST_OF_ALL = {r"curl .*/cancel": RETRAIN, r"curl .*/models/rollback": ACTIVATE}
"""What a command is about is made by another one of its page: a job in hand, a version that took over from one before."""
WHILE_IT_RUNS = r"curl .*/(events|cancel)"
"""About the job that was submitted before, at once; all others wait until it has ended."""
SHOWN = {
    r"curl .*/events": r'event: epoch(.|\n)*event: end\n.*"state":"succeeded"',
    r"curl .*/cancel": r'"state":"(running|cancelled)"',
    r"curl .*/models/activate": r'"live":3',
    r"curl .*/models/rollback": r'"live":\d+,"before":3',
}
"""What they answer."""


class Place(NamedTuple):
    clone: Path
    environ: dict[str, str]
    port: int


def every_command() -> list[Command]:
    return [one for page in PAGES for one in commands_of(ROOT, page)]


def matching(text: str, table: dict[str, str]) -> str | None:
    return next((value for pattern, value in table.items() if re.match(pattern, text)), None)


def why_not(command: Command) -> str | None:
    return matching(command.text, NOT_RUN)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A clone beside the one environment, the demo running in it."""
    clone = tmp_path / "clone"
    for name in run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout.splitlines():
        if (ROOT / name).exists():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    (clone / ".venv").symlink_to(Path(sys.prefix))
    for name in ("pyproject.toml", "constraints.txt"):
        os.utime(clone / name, (0, 0))  # older than the environment, which is the one that runs this test
    write_folder(clone / "my_graph", "csv")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SGF_")}
    environ |= {
        "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}",
        "SGF_ADMIN_TOKEN": TOKEN,
        "auth": f"authorization: Bearer {TOKEN}",  # as a page may have called it
        "SGF_MAX_LAG_SECONDS": "30",
        "OMP_NUM_THREADS": "1",  # two test workers on two cores: threads that wait for each other take minutes
    }
    place = Place(clone, environ, free_port())
    with serving("make run", place, place.port):
        yield place


def test_every_command_of_the_pages_does_what_it_says(place: Place) -> None:
    """In one test: a command may need what one before it has made."""
    for text in dict.fromkeys(one.text for one in every_command() if why_not(one) is None):
        if text == "make run":
            assert is_ready(place.port)  # the fixture ran it
        elif SERVES.match(text):
            with serving(f"{text} {appended(text)}", place, free_port()):
                pass
        else:
            carried_out(text, place)


@pytest.mark.parametrize("reason", sorted({why for one in every_command() if (why := why_not(one))}))
def test_what_cannot_run_here_is_told(reason: str) -> None:
    pages = [f"{one.page}: {one.text}" for one in every_command() if why_not(one) == reason]
    pytest.skip(f"NOT RUN: {reason}: {'; '.join(pages)}")


def appended(text: str) -> str:
    return matching(text, APPENDED) or ""


def carried_out(text: str, place: Place) -> None:
    """Raises AssertionError with everything it said."""
    command = f"{text.replace('localhost:8000', f'127.0.0.1:{place.port}')} {appended(text)}"
    environ = place.environ
    if "/admin/" in text:
        first = matching(text, FIRST_OF_ALL)
        if first is not None:
            carried_out(next(one.text for one in every_command() if re.match(first, one.text)), place)
        job = latest_job(place, finished=not re.match(WHILE_IT_RUNS, text))  # pages name one that some other machine had
        command, environ = re.sub(r"(?<=/jobs/)[0-9a-f]{16}", job, command), environ | {"job": job}
    done = run("bash", "-c", command, cwd=place.clone, env=environ, seconds=120, check=False)
    told = f"{text}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, told
    assert re.search(matching(text, SHOWN) or "", done.stdout), told


def latest_job(place: Place, finished: bool) -> str:
    """Its id, once no job is in hand if `finished`; empty where there was none."""
    jobs: list[dict[str, Any]] = []

    def found() -> bool:
        headers = {"authorization": f"Bearer {TOKEN}"}
        jobs[:] = httpx.get(f"http://127.0.0.1:{place.port}/admin/jobs", headers=headers).raise_for_status().json()["jobs"]
        return not finished or not any(one["state"] in ("queued", "running") for one in jobs)

    until(found, seconds=120)
    return str(jobs[0]["id"]) if jobs else ""


@contextmanager
def serving(command: str, place: Place, port: int) -> Iterator[None]:
    """A command that serves, until the block ends."""
    command, environ = re.sub(r"--port \d+", "", command), place.environ | {"SGF_PORT": str(port)}
    with (place.clone / f"serving-{port}.log").open("w+") as log:
        process = subprocess.Popen(
            ["/bin/bash", "-c", command], cwd=place.clone, env=environ, stdout=log, stderr=log, start_new_session=True
        )
        try:
            until(lambda: process.poll() is not None or is_ready(port), seconds=120)
            log.seek(0)
            assert process.poll() is None, log.read()
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=20)


def is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_no_command_of_a_page_is_overlooked() -> None:
    """Indented text is not always a command, but on this page it is."""
    page = "docs/operations.md"
    indented = re.findall(r"^    (\S+)", (ROOT / page).read_text(), re.MULTILINE)
    found = [one.text.split()[0] for one in commands_of(ROOT, page)]
    assert found == indented != []


def test_every_reason_not_to_run_is_needed() -> None:
    for pattern in NOT_RUN:
        assert any(re.match(pattern, one.text) for one in every_command()), f"nothing begins with {pattern}"


def test_a_command_that_fails_is_found(tmp_path: Path) -> None:
    for wrong in ("sgf-trian --recipe digits", f"curl localhost:{free_port()}/metrics"):
        with pytest.raises(AssertionError, match=wrong):
            carried_out(wrong, Place(tmp_path, dict(os.environ), free_port()))
