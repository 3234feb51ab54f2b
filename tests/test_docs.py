"""Checks the documents against the code: links, commands, flags, folders, and the site."""

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
from itertools import pairwise
from pathlib import Path

import pytest

from tests.commands import blocks_of, commands_of
from tests.test_rooms import FOLDERS_MAY_IMPORT

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "SECURITY.md",
    "deploy/README.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]
PACKAGES = ("sgformer", "model_store", "training", "service", "sgformer_client")
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
COMMANDS = (
    *((script,) for script in SCRIPTS),
    ("sgf-train", "tune"),
    ("sgf-train", "table"),
    ("sgf-models", "prune"),
    ("sgf-graph", "apply"),
)
FLAGS_OF_OTHERS = ("--build-arg VARIANT=gpu",)
OTHER_HOSTS = ("https://fonts", "cdn", "https://unpkg")


@pytest.mark.parametrize("page", PAGES)
def test_linked_files_exist(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_mentioned_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"`make ([a-z-]+)`", (ROOT / page).read_text())) <= targets, page


def test_mentioned_commands_and_flags_exist() -> None:
    """Within sentences too, and in commands that `tests/test_commands.py` cannot run."""
    assert [(page, text, wrong) for page in PAGES for text in mentions(page) if (wrong := unknown_words(text))] == []


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
def test_unknown_words_are_found(text: str, wrong: list[str]) -> None:
    assert unknown_words(text) == wrong


def mentions(page: str) -> list[str]:
    """Every `sgf-...` and `--flag` in code spans, and every `sgf-...` inside the commands of a page."""
    spans = re.findall(r"`((?:sgf-[a-z]|--[a-z])[^`\n]*)`", (ROOT / page).read_text())
    matches = [re.search(r"\bsgf-[a-z]+[^#|;)]*", command.text) for command in commands_of(ROOT, page)]
    return [text for text in (*spans, *(match[0] for match in matches if match)) if text not in FLAGS_OF_OTHERS]


def unknown_words(text: str) -> list[str]:
    """The program, or the subcommands and flags in `text`, that do not exist."""
    program = text.split()[0]
    flags = re.findall(r"(?<!\S)--[a-z][a-z-]*", text)
    if program.startswith("--"):  # a flag alone: the sentence around it names the program
        return [flag for flag in flags if not any(has_flag(help_of(*command), flag) for command in COMMANDS)]
    if program not in SCRIPTS:
        return [program]
    subcommands = re.findall(r"(?:^sgf-[a-z]+|\|) ([a-z][a-z-]*)", text)
    wrong = [word for word in subcommands if f"usage: {program} {word} " not in help_of(program, word)]
    help_text = help_of(program, *subcommands[:1])
    return wrong or [flag for flag in flags if not has_flag(help_text, flag)]


def has_flag(help_text: str, flag: str) -> bool:
    return re.search(rf"{flag}(?![\w-])", help_text) is not None


@cache
def help_of(program: str, *words: str) -> str:
    module, _, name = SCRIPTS[program].partition(":")
    with redirect_stdout(StringIO()) as output, redirect_stderr(output), suppress(SystemExit):
        getattr(import_module(module), name)([*words, "--help"])
    return output.getvalue()


def test_the_site_builds_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    assert build_site(ROOT, tmp_path) == ""
    for name in ("index.html", "architecture.html"):
        page = (tmp_path / name).read_text()
        assert not [host for host in OTHER_HOSTS if host in page]
        assert 'src="assets/mermaid.js"' in page  # otherwise the theme fetches it from a CDN
    assert '<pre class="mermaid">' in page
    assert (tmp_path / "search" / "search_index.js").exists()  # search works from a folder, without a server


def test_the_site_does_not_build_with_a_broken_link(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    with (tmp_path / "docs" / "concepts.md").open("a") as page:
        page.write("[nowhere](nowhere.md)")
    assert "nowhere.md" in build_site(tmp_path, tmp_path / "site")


def build_site(root: Path, site: Path) -> str:
    """The errors of mkdocs; empty if the site was built."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    return "" if done.returncode == 0 else done.stderr


def test_the_messages_of_the_troubleshooting_page_are_real() -> None:
    """Each part of a message stands in the code, or whole in a test of the mistake; `…` stands for what varies."""
    sources = [path.read_text() for folder in (*PACKAGES, "tests") for path in (ROOT / folder).rglob("*.py")]
    text = re.sub(r'"\s*\n\s*f?"', "", "\n".join(sources))
    rows = re.findall(r"^\| (.*?) \| ", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    messages = [message for row in rows for message in re.findall(r"`([^`]+)`", row)]
    assert len(messages) > 30
    assert [part for message in messages for part in parts_of(message) if part not in text] == []


def parts_of(message: str) -> list[str]:
    return [part.strip() for part in message.replace("port 8000", "").split("…")]


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    for path in (ROOT / "docs").glob("*.md"):
        assert f": {path.name}\n" in menu, f"{path.name} is not in the nav of mkdocs.yml"


def test_the_architecture_page_names_every_folder() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    for package in PACKAGES:
        for folder in ("", *(f"{path.parent.name}/" for path in (ROOT / package).glob("*/__init__.py"))):
            assert f"`{package}/{folder}`" in page, f"{package}/{folder} is not described"


def test_folders_and_modules_of_the_architecture_page_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    paths = [path for path in re.findall(r"`([a-z_/]+(?:/|\.py))`", page) if "/" in path]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_first_diagram_shows_the_import_directions_that_are_enforced() -> None:
    diagram = next(block.text for block in blocks_of(ROOT, "docs/architecture.md") if block.language == "mermaid")
    drawn = set()
    for package, text in re.findall(r'subgraph (\w+)\["\w+/"\]\n(.*?)\n    end', diagram, re.DOTALL):
        folder_names = dict(re.findall(r'(\w+)\["(\w+)/"\]', text))
        arrows: dict[str, set[str]] = {name: set() for name in folder_names.values()}
        for line in text.splitlines():
            groups = [re.findall(r"\w+", part) for part in re.sub(r'\["\w+/"\]', "", line).split("-->")]
            for sources, targets in pairwise(groups):
                for source in sources:
                    arrows[folder_names[source]] |= {folder_names[target] for target in targets}
        imports = {name: set(FOLDERS_MAY_IMPORT[f"{package}/{name}"].split()) & set(arrows) for name in arrows}
        assert reachable(arrows) == reachable(imports), package
        drawn |= {f"{package}/{name}" for name in arrows}
    assert drawn == set(FOLDERS_MAY_IMPORT)


def reachable(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """Adds the targets of the targets. The arrows have no cycle."""

    def targets_of(name: str) -> set[str]:
        return arrows[name].union(*map(targets_of, arrows[name]))

    return {name: targets_of(name) for name in arrows}
