"""Documents that can drift from the code are run or compared."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest

from tests.commands import commands_of

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "deploy/README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
EVERY = (*((one,) for one in SCRIPTS), ("sgf-train", "tune"), ("sgf-train", "table"), ("sgf-models", "prune"))
NOT_OURS = ("--build-arg VARIANT=gpu",)


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_every_make_target_of_the_pages_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"`make ([a-z-]+)`", (ROOT / page).read_text())) <= targets, page


def test_every_command_and_flag_that_the_pages_mention_exists() -> None:
    """Within sentences too, and where a command cannot run here: `tests/test_commands.py` runs the others."""
    assert [(page, text, wrong) for page in PAGES for text in mentions(page) if (wrong := unknown(text))] == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("sgf-trian --recipe cora", ["sgf-trian"]),
        ("sgf-train refrehs --data graph.npz", ["refrehs"]),
        ("sgf-models show | activate | undo", ["undo"]),
        ("sgf-train tune --data graph.npz --keep 3", ["--keep"]),
        ("--kepe 3", ["--kepe"]),
        ("sgf-models prune --keep 3", []),
    ],
)
def test_a_command_or_flag_that_does_not_exist_is_found(text: str, wrong: list[str]) -> None:
    assert unknown(text) == wrong


def mentions(page: str) -> list[str]:
    """Every `sgf-...` and `--flag` in code spans, and every `sgf-...` inside a shown command."""
    spans = re.findall(r"`((?:sgf-[a-z]|--[a-z])[^`\n]*)`", (ROOT / page).read_text())
    shown = [re.search(r"\bsgf-[a-z]+[^#|;)]*", one.text) for one in commands_of(ROOT, page)]
    return [one for one in (*spans, *(found[0] for found in shown if found)) if one not in NOT_OURS]


def unknown(text: str) -> list[str]:
    """The program, subcommands and flags in it that there are not."""
    program = text.split()[0]
    flags = re.findall(r"(?<!\S)--[a-z][a-z-]*", text)
    if program.startswith("--"):  # of some program: the sentence says of which
        return [flag for flag in flags if not any(has(flag, help_of(*one)) for one in EVERY)]
    if program not in SCRIPTS:
        return [program]
    subcommands = re.findall(r"(?:^sgf-[a-z]+|\|) ([a-z][a-z-]*)", text)
    wrong = [one for one in subcommands if f"usage: {program} {one} " not in help_of(program, one)]
    known = help_of(program, *subcommands[:1])
    return wrong or [flag for flag in flags if not has(flag, known)]


def has(flag: str, told: str) -> bool:
    return re.search(rf"{flag}(?![\w-])", told) is not None


@cache
def help_of(program: str, *words: str) -> str:
    module, _, name = SCRIPTS[program].partition(":")
    with redirect_stdout(StringIO()) as told, redirect_stderr(told), suppress(SystemExit):
        getattr(import_module(module), name)([*words, "--help"])
    return told.getvalue()


def test_the_site_builds_without_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    assert built(ROOT, tmp_path / "site") == ""
    page = (tmp_path / "site" / "index.html").read_text()
    assert "https://fonts" not in page
    assert "cdn" not in page
    assert "https://unpkg" not in page
    assert (tmp_path / "site" / "search" / "search_index.js").exists()  # the search from a folder, without a server


def test_a_link_that_leads_nowhere_stops_the_site(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    with (tmp_path / "docs" / "concepts.md").open("a") as page:
        page.write("[nowhere](nowhere.md)")
    assert "nowhere.md" in built(tmp_path, tmp_path / "site")


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    for path in (ROOT / "docs").glob("*.md"):
        assert f": {path.name}\n" in menu, f"{path.name} is not in the nav of mkdocs.yml"


def built(root: Path, site: Path) -> str:
    """What mkdocs complains about; empty where it builds."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    return "" if done.returncode == 0 else done.stderr


@pytest.mark.parametrize("room", ["sgformer", "model_store", "training", "service", "service/jobs"])
def test_every_module_is_in_the_architecture_page(room: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    helpers = {"__init__", "errors", "weights", "arrays", "torch_arrays"}
    for path in (ROOT / room).glob("*.py"):
        assert path.stem in helpers or f"`{path.stem}`" in page, f"{path.stem} is not described"
