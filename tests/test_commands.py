"""Runs every command of the README and of the pages, as a new user does in a fresh clone.

`make test` runs the pages in ALWAYS; `make verify-pages`, which the gate also calls, runs every page. Each page has a clone
and a shell of its own. The commands and the Python of the page run there in their order, unchanged. If a page sends requests
but starts no service, the first commands of operations.md run before it. NOT_RUN lists the commands that cannot run in this
test, with the reasons. Three things differ from what a reader does: the service listens on a free port, to which the curl of
the shell connects; a search has two trials (CHANGED); commands that serve run in the background, not in a second terminal.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

from model_store.demo import install_demo
from tests.commands import Command, Shell, blocks_of, commands_of, split, trailing_prose
from tests.deploy.tools import run
from tests.service.serving import free_port, until
from tests.training.samples import write_folder

ROOT = Path(__file__).parent.parent
FIRST = ("README.md", "docs/index.md", "deploy/README.md")
ALWAYS = ("README.md", "docs/tutorial.md")
PAGES = (*FIRST, *sorted({f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} - set(FIRST)))
START_PAGE = "docs/operations.md"
"""Its first commands start the service, for pages that send requests but start none."""
NOT_RUN = {
    r"(SGF_\w+=\S+ )?docker ": "no Docker engine here; `make verify-deploy` builds the images and runs them",
    r"(?s)kubectl |kind |helm |.*\| kubectl ": "no cluster here; tests/deploy builds every overlay and checks it",
    r"sgf-train (--recipe cora|--dataset cora|table)": "needs raw data sets; tests/training runs it on samples",
    r"export SGF_WRITE_KEYS=\.\.\. |sgf-graph |sgf-train (refresh )?--data live": (
        "needs a service whose graph has changed; tests/service/graph_cli and tests/training/data run it"
    ),
    r"sgf-train tune .*--trials 50": "50 trials take minutes; the same command runs above with fewer",
}
SERVES = re.compile(r"(make run|sgf-serve(?! --(check|table|help)))(?!.*&$)")
"""Commands that run until they are stopped."""
CHANGED = {r" --port 8080\b": "", r"^sgf-train tune": "sgf-train tune --trials 2 --epochs 3"}
ANSWERS = {
    r"curl .*/events": r'event: epoch(.|\n)*event: end\n.*"state":"succeeded"',
    r"curl .*/cancel": r'"state":"(running|cancelled)"',
    r"curl .*/models/activate": r'"live":2',
    r"curl .*/models/rollback": r'"live":1,"before":2',
    r"curl .*/admin/jobs -H": r'"state":"(queued|running|succeeded)"',
}
"""Patterns for the answers of commands whose answers a page describes in words. JSON below a command is compared instead."""
TOLERANCE, RANDOM_KEYS = 0.05, ("snapshot", "job")
"""Training gives other weights on another processor: the allowed difference of a number, and keys with other values."""
FAILURE = r'\{"error"|training would be refused'
"""The beginning of the shown output of a command that must fail."""
VARYING = r"\d+\.\d+ s\b|epoch \d+ of \d+"

SLOW_MACHINE = {"OMP_NUM_THREADS": "1", "SGF_DEADLINE_SECONDS": "20"}
"""For two test workers on two cores: threads that wait for each other take minutes, and answers of the service are late."""


class Step(NamedTuple):
    language: str
    text: str
    shown: str = ""
    """The JSON or the output that the page shows below it."""


def every_command() -> list[Command]:
    return [command for page in PAGES for command in commands_of(ROOT, page)]


def matching(text: str, table: dict[str, str]) -> str | None:
    return next((value for pattern, value in table.items() if re.match(pattern, text)), None)


def reason_not_to_run(text: str) -> str | None:
    return matching(text, NOT_RUN)


def steps_of(page: str) -> list[Step]:
    """The steps of a page. All Python blocks of a page are one program, which runs at the place of the last block."""
    blocks = blocks_of(ROOT, page)
    python = [number for number, block in enumerate(blocks) if block.language == "python"]
    steps: list[Step] = []
    for number, block in enumerate(blocks):
        if block.language == "sh":
            steps += [Step("sh", text) for text in split(block.text)]
        elif block.language in ("json", "output"):
            steps[-1] = steps[-1]._replace(shown=block.text)
        elif python and number == python[-1]:
            steps.append(Step("python", "\n".join(blocks[place].text for place in python)))
    steps = [step for step in steps if reason_not_to_run(step.text) is None]
    page_text = "\n".join(step.text for step in steps)
    if ":8000" in page_text and "make run" not in page_text and not any(SERVES.match(step.text) for step in steps):
        start = next(block for block in blocks_of(ROOT, START_PAGE) if block.language == "sh")
        return [*(Step("sh", text) for text in split(start.text)), *steps]
    return steps


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store after `make run`, for all pages except the README, whose commands create it."""
    folder = tmp_path_factory.mktemp("demo")
    assert install_demo(folder / "models")
    return folder


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell in a clone that shares the environment of this test."""
    clone = tmp_path / "clone"
    for name in run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout.splitlines():
        if (ROOT / name).exists():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    (clone / ".venv").symlink_to(Path(sys.prefix))
    for name in ("pyproject.toml", "constraints.txt"):
        os.utime(clone / name, (0, 0))  # older than the environment: make does not build it again
    write_folder(clone / "my_graph", "csv")
    with closing(Shell(clone, free_port(), **SLOW_MACHINE)) as shell:
        yield shell


@pytest.mark.parametrize("page", [page for page in PAGES if steps_of(page)])
def test_every_command_of_a_page_does_what_it_says(page: str, shell: Shell, demo: Path) -> None:
    if page not in ALWAYS and os.environ.get("VERIFY_PAGES") != "1":
        pytest.skip("NOT RUN: the commands of all pages take minutes; `make verify-pages` runs them")
    if page != "README.md":
        shutil.copytree(demo, shell.folder / "var")
    for step in steps_of(page):
        run_step(step, shell)


@pytest.mark.parametrize(
    "reason", sorted({reason for command in every_command() if (reason := reason_not_to_run(command.text))})
)
def test_commands_that_cannot_run_are_reported(reason: str) -> None:
    commands = [command for command in every_command() if reason_not_to_run(command.text) == reason]
    pages = [f"{command.page}: {command.text}" for command in commands]
    pytest.skip(f"NOT RUN: {reason}: {'; '.join(pages)}")


def run_step(step: Step, shell: Shell) -> None:
    """Raises AssertionError with the whole output of the command."""
    command = step.text
    for pattern, replacement in CHANGED.items():
        command = re.sub(pattern, replacement, command)
    if step.language == "python":
        run_python(step.text, shell)
    elif SERVES.match(command):
        shell.serve(command)
        until(lambda: is_ready(shell.port) or not shell.serves(), seconds=120)
        assert shell.serves(), f"{command}\nended: {shell.log()}"
    else:
        if command.startswith("make run"):
            shell.stop_serving()  # as the page says
        answer = shell.run(command, fails=re.match(FAILURE, step.shown) is not None)
        assert re.search(matching(command, ANSWERS) or "", answer), f"{command}\n{answer}"
        if step.shown.startswith("{"):
            assert alike(json.loads(step.shown), json.loads(answer)), f"{command}\n{answer}\nshown is\n{step.shown}"
        else:
            assert lines_not_in(answer, step.shown) == [], f"{command}\n{answer}"


def run_python(code: str, shell: Shell) -> None:
    """A comment behind a `print` must be the line that it prints."""
    (shell.folder / "example.py").write_text(code.replace("127.0.0.1:8000", f"127.0.0.1:{shell.port}"))
    expected = re.findall(r"^\s*print\(.*  # (.*)$", code, re.MULTILINE)
    assert len(expected) in (0, code.count("print("))
    answer = shell.run("python -W error example.py")
    assert not expected or answer.splitlines() == expected, answer


def alike(shown: Any, got: Any, name: str = "") -> bool:
    if isinstance(shown, dict) and isinstance(got, dict):
        return list(shown) == list(got) and all(alike(shown[key], got[key], key) for key in shown)
    if isinstance(shown, list) and isinstance(got, list):
        return len(shown) == len(got) and all(map(alike, shown, got))
    if isinstance(shown, float):
        return isinstance(got, float) and abs(shown - got) <= TOLERANCE
    return bool(type(shown) is type(got) and (shown == got or (name in RANDOM_KEYS and len(shown) == len(got))))


def lines_not_in(answer: str, shown: str) -> list[str]:
    """The first shown line that does not follow in the answer. Times vary, and fractions are compared roughly."""
    rest = iter(answer.splitlines())
    return [line for line in shown.splitlines() if line != "..." and not any(alike_lines(line, other) for other in rest)][:1]


def alike_lines(shown: str, got: str) -> bool:
    parts = [re.split(r"(\d+\.\d+)", re.sub(VARYING, "", line)) for line in (shown, got)]
    texts, numbers = ([part[begin::2] for part in parts] for begin in (0, 1))
    return texts[0] == texts[1] and all(abs(float(a) - float(b)) <= TOLERANCE for a, b in zip(*numbers, strict=True))


def is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health/ready").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("page", PAGES)
def test_no_command_of_a_page_is_overlooked(page: str) -> None:
    """Every block has a language, and no command is in an indented block or behind a prompt."""
    text = (ROOT / page).read_text()
    assert {block.language for block in blocks_of(ROOT, page)} <= {"sh", "python", "json", "text", "output", "mermaid"}
    assert len(re.findall(r"^\s*```", text, re.MULTILINE)) == 2 * len(blocks_of(ROOT, page))
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    programs = r"(\$ |(make|curl|docker|kubectl|git|cp|du|sed|sgf-[a-z]+|pip|python3?|export|\.) )"
    assert not re.findall(rf"^(?:    |\t){programs}.*", rest, re.MULTILINE)


@pytest.mark.parametrize("command", every_command(), ids=lambda command: f"{command.page}: {command.text[:40]}")
def test_no_command_has_prose_behind_it(command: Command) -> None:
    assert trailing_prose(command.text) is None


@pytest.mark.parametrize(
    ("command", "prose"),
    [
        ("sgf-train --data my_graph/ --activate      trains, scores, publishes", "trains, scores, publishes"),
        ('curl localhost:8000 -H "$auth"   server-sent events  # behind', "server-sent events"),
        ("sgf-train --data my_graph/ --activate      # trains,  scores", None),
        ("curl localhost:8000 \\\n  --json '{\"nodes\":  [0]}'", None),
    ],
)
def test_prose_behind_a_command_is_found(command: str, prose: str | None) -> None:
    assert trailing_prose(command) == prose


def test_every_reason_not_to_run_is_needed() -> None:
    for pattern in NOT_RUN:
        assert any(re.match(pattern, command.text) for command in every_command()), f"no command matches {pattern}"


def test_compose_commands_name_existing_services_and_profiles() -> None:
    """These commands do not run here. Compose would take an extra word, such as prose, for a service."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    profiles = {profile for service in services.values() for profile in service.get("profiles", [])}
    texts = [re.sub(r"\s# .*", "", command.text) for command in every_command()]
    texts += [text for page in PAGES for text in re.findall(r"`(docker compose [^`\n]+)`", (ROOT / page).read_text())]
    for text in (text for text in texts if "docker compose " in text):
        _, _, arguments = text.partition("docker compose ")
        assert set(re.findall(r"--profile (\S+)", arguments)) <= profiles, text
        assert set(re.findall(r"--scale (\w+)=\d+", arguments)) <= set(services), text
        words = [word for word in re.sub(r"--(profile|scale) \S+", "", arguments).split() if not word.startswith("-")]
        named = {"up": words[1:], "exec": words[1:2], "cp": [word.partition(":")[0] for word in words if ":" in word]}
        assert set(named.get(words[0], [])) <= set(services), text


def test_commands_are_not_on_the_path_unless_the_page_says_how(shell: Shell) -> None:
    with pytest.raises(AssertionError, match="not found"):
        shell.run("sgf-models list")
    shell.run(". .venv/bin/activate  # as the page says")
    shell.run("sgf-models list")


def test_a_command_that_fails_is_found(shell: Shell) -> None:
    shell.run(". .venv/bin/activate")
    for text in ("sgf-trian --recipe digits", "curl localhost:8000/metrics", "sgf-models list   what there is"):
        with pytest.raises(AssertionError, match=f"{text}\nfailed with"):
            shell.run(text)
    with pytest.raises(AssertionError, match="took more than 1 s"):
        shell.run('echo "not closed', seconds=1)


def test_output_that_is_not_the_shown_one_is_found() -> None:
    answer = "data  pets\ntrained in 3.1 s\naccuracy 0.81 of 20\n"
    assert lines_not_in(answer, "data  pets\n...\naccuracy 0.84 of 20") == []
    assert lines_not_in(answer, "trained in 70.25 s\naccuracy 0.81 of 20") == []
    for wrong in ("data  pet", "accuracy 0.91 of 20", "accuracy 0.81 of 21", "accuracy 0.81 of 20\ndata  pets"):
        assert lines_not_in(answer, wrong) == wrong.splitlines()[-1:]


def test_an_answer_that_is_not_the_shown_one_is_found() -> None:
    shown = {"snapshot": "ab", "predictions": [{"label": 1, "probability": 0.99}]}
    assert alike(shown, {"snapshot": "cd", "predictions": [{"label": 1, "probability": 0.95}]})
    for wrong in (
        {"label": 2, "probability": 0.99},
        {"label": 1, "probability": 0.9},
        {"label": 1},
        {"label": True, "probability": 1},
    ):
        assert not alike(shown, {"snapshot": "cd", "predictions": [wrong]})
