"""A stranger's path: a clone, and then every command of the README and of the pages.

`make test` runs the pages that a new user reads first; `make verify-pages`, which the gate also calls, runs every page. Each
page has a clone and a shell of its own, in which its commands run in their order, as they stand there; its Python runs there
too. A page that asks a service and starts none begins as operations.md does. What cannot run here stands in NOT_RUN,
with the reason. Three things are not as at a reader's: the service has a port of its own (the shell's curl knows it), a
search has two trials (CHANGED), and what serves goes to the background, as into a second terminal.
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
BEGINNING = "docs/operations.md"
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
"""Goes on until it is stopped."""
CHANGED = {r" --port 8080\b": "", r"^sgf-train tune": "sgf-train tune --trials 2 --epochs 3"}
ANSWERS = {
    r"curl .*/events": r'event: epoch(.|\n)*event: end\n.*"state":"succeeded"',
    r"curl .*/cancel": r'"state":"(running|cancelled)"',
    r"curl .*/models/activate": r'"live":2',
    r"curl .*/models/rollback": r'"live":1,"before":2',
    r"curl .*/admin/jobs -H": r'"state":"(queued|running|succeeded)"',
}
"""Of commands whose answers the pages tell in words; where JSON follows a command, that is compared."""
ROUGHLY, ANY_ID = 0.05, ("snapshot", "job")
"""Training ends elsewhere on another processor: how far a shown probability may be off, and what is different each time."""
FAILURE = r'\{"error"|training would be refused'
"""How what a command says begins, where the page shows a mistake."""
VARYING = r"\d+\.\d+ s\b|epoch \d+ of \d+"

LEISURELY = {"OMP_NUM_THREADS": "1", "SGF_MAX_LAG_SECONDS": "30", "SGF_DEADLINE_SECONDS": "20"}
"""Two test workers on two cores: threads that wait for each other take minutes, and a worker of the service may run late."""


class Step(NamedTuple):
    language: str
    text: str
    shown: str = ""
    """The JSON or the output that stands below it."""


def every_command() -> list[Command]:
    return [one for page in PAGES for one in commands_of(ROOT, page)]


def matching(text: str, table: dict[str, str]) -> str | None:
    return next((value for pattern, value in table.items() if re.match(pattern, text)), None)


def why_not(text: str) -> str | None:
    return matching(text, NOT_RUN)


def steps_of(page: str) -> list[Step]:
    """What a reader of this page does. Its Python is one program, which runs where the last piece of it stands."""
    blocks = blocks_of(ROOT, page)
    python = [number for number, block in enumerate(blocks) if block.language == "python"]
    steps: list[Step] = []
    for number, block in enumerate(blocks):
        if block.language == "sh":
            steps += [Step("sh", text) for text in split(block.text)]
        elif block.language in ("json", "output"):
            steps[-1] = steps[-1]._replace(shown=block.text)
        elif python and number == python[-1]:
            steps.append(Step("python", "\n".join(blocks[one].text for one in python)))
    steps = [one for one in steps if why_not(one.text) is None]
    told = "\n".join(one.text for one in steps)
    if ":8000" in told and "make run" not in told and not any(SERVES.match(one.text) for one in steps):
        beginning = next(block for block in blocks_of(ROOT, BEGINNING) if block.language == "sh")
        return [*(Step("sh", text) for text in split(beginning.text)), *steps]
    return steps


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store after `make run`, for all pages but the README, which makes it."""
    folder = tmp_path_factory.mktemp("demo")
    assert install_demo(folder / "models")
    return folder


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """In a clone, beside the one environment."""
    clone = tmp_path / "clone"
    for name in run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout.splitlines():
        if (ROOT / name).exists():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    (clone / ".venv").symlink_to(Path(sys.prefix))
    for name in ("pyproject.toml", "constraints.txt"):
        os.utime(clone / name, (0, 0))  # older than the environment, which is the one that runs this test
    write_folder(clone / "my_graph", "csv")
    with closing(Shell(clone, free_port(), **LEISURELY)) as shell:
        yield shell


@pytest.mark.parametrize("page", [page for page in PAGES if steps_of(page)])
def test_every_command_of_a_page_does_what_it_says(page: str, shell: Shell, demo: Path) -> None:
    if page not in ALWAYS and os.environ.get("VERIFY_PAGES") != "1":
        pytest.skip("NOT RUN: the commands of all pages take minutes; `make verify-pages` runs them")
    if page != "README.md":
        shutil.copytree(demo, shell.folder / "var")
    for step in steps_of(page):
        carried_out(step, shell)


@pytest.mark.parametrize("reason", sorted({why for one in every_command() if (why := why_not(one.text))}))
def test_what_cannot_run_here_is_told(reason: str) -> None:
    pages = [f"{one.page}: {one.text}" for one in every_command() if why_not(one.text) == reason]
    pytest.skip(f"NOT RUN: {reason}: {'; '.join(pages)}")


def carried_out(step: Step, shell: Shell) -> None:
    """Raises AssertionError with everything it said."""
    command = step.text
    for pattern, instead in CHANGED.items():
        command = re.sub(pattern, instead, command)
    if step.language == "python":
        printed(step.text, shell)
    elif SERVES.match(command):
        shell.serve(command)
        until(lambda: is_ready(shell.port) or not shell.serves(), seconds=120)
        assert shell.serves(), f"{command}\nended: {shell.log()}"
    else:
        if command.startswith("make run"):
            shell.stop_serving()  # the page says so
        answer = shell.run(command, fails=re.match(FAILURE, step.shown) is not None)
        assert re.search(matching(command, ANSWERS) or "", answer), f"{command}\n{answer}"
        if step.shown.startswith("{"):
            assert alike(json.loads(step.shown), json.loads(answer)), f"{command}\n{answer}\nshown is\n{step.shown}"
        else:
            assert lines_not_in(answer, step.shown) == [], f"{command}\n{answer}"


def printed(code: str, shell: Shell) -> None:
    """What stands behind a line that prints is what it prints."""
    (shell.folder / "example.py").write_text(code.replace("127.0.0.1:8000", f"127.0.0.1:{shell.port}"))
    promised = re.findall(r"^\s*print\(.*  # (.*)$", code, re.MULTILINE)
    assert len(promised) in (0, code.count("print("))
    answer = shell.run("python -W error example.py")
    assert not promised or answer.splitlines() == promised, answer


def alike(shown: Any, got: Any, name: str = "") -> bool:
    if isinstance(shown, dict) and isinstance(got, dict):
        return list(shown) == list(got) and all(alike(shown[key], got[key], key) for key in shown)
    if isinstance(shown, list) and isinstance(got, list):
        return len(shown) == len(got) and all(map(alike, shown, got))
    if isinstance(shown, float):
        return isinstance(got, float) and abs(shown - got) <= ROUGHLY
    return bool(type(shown) is type(got) and (shown == got or (name in ANY_ID and len(shown) == len(got))))


def lines_not_in(answer: str, shown: str) -> list[str]:
    """The first shown line that does not follow in the answer. Times vary, and fractions are compared roughly."""
    rest = iter(answer.splitlines())
    return [line for line in shown.splitlines() if line != "..." and not any(alike_lines(line, other) for other in rest)][:1]


def alike_lines(shown: str, got: str) -> bool:
    parts = [re.split(r"(\d+\.\d+)", re.sub(VARYING, "", line)) for line in (shown, got)]
    texts, numbers = ([part[begin::2] for part in parts] for begin in (0, 1))
    return texts[0] == texts[1] and all(abs(float(a) - float(b)) <= ROUGHLY for a, b in zip(*numbers, strict=True))


def is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health/ready").status_code == 200
    except httpx.TransportError:
        return False


# That the above would notice.


@pytest.mark.parametrize("page", PAGES)
def test_no_command_of_a_page_is_overlooked(page: str) -> None:
    """Every block says what it is, and no command stands in an indented one or behind a prompt."""
    text = (ROOT / page).read_text()
    assert {block.language for block in blocks_of(ROOT, page)} <= {"sh", "python", "json", "text", "output", "mermaid"}
    assert len(re.findall(r"^\s*```", text, re.MULTILINE)) == 2 * len(blocks_of(ROOT, page))
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    programs = r"(\$ |(make|curl|docker|kubectl|git|cp|du|sed|sgf-[a-z]+|pip|python3?|export|\.) )"
    assert not re.findall(rf"^(?:    |\t){programs}.*", rest, re.MULTILINE)


@pytest.mark.parametrize("command", every_command(), ids=lambda one: f"{one.page}: {one.text[:40]}")
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
        assert any(re.match(pattern, one.text) for one in every_command()), f"nothing begins with {pattern}"


def test_compose_commands_name_services_and_profiles_that_there_are() -> None:
    """They do not run here; a word too many, such as prose, would be taken for a service."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    profiles = {profile for one in services.values() for profile in one.get("profiles", [])}
    texts = [re.sub(r"\s# .*", "", one.text) for one in every_command()]
    texts += [text for page in PAGES for text in re.findall(r"`(docker compose [^`\n]+)`", (ROOT / page).read_text())]
    for text in (one for one in texts if "docker compose " in one):
        _, _, said = text.partition("docker compose ")
        assert set(re.findall(r"--profile (\S+)", said)) <= profiles, text
        assert set(re.findall(r"--scale (\w+)=\d+", said)) <= set(services), text
        words = [word for word in re.sub(r"--(profile|scale) \S+", "", said).split() if not word.startswith("-")]
        named = {"up": words[1:], "exec": words[1:2], "cp": [one.partition(":")[0] for one in words if ":" in one]}
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
