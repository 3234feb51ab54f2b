"""CONTRIBUTING.md, the release number and the changelog agree with the repository."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
NOT_FILES = (".venv", "build/", "__init__.py")
"""Generated, or the name of many files."""


def test_every_make_target_of_the_page_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", re.sub(r"^#.*", "", PAGE, flags=re.MULTILINE)))
    assert len(named) > 8
    assert named - targets <= {"from"}, "a target that the Makefile lacks"


def test_every_file_and_folder_of_the_page_exists() -> None:
    paths = re.findall(r"`([\w.]+/[\w./]*|[\w]+\.(?:py|md|toml|txt|yml|zip))`", PAGE)
    paths += re.findall(r"\btests/[\w./]+", PAGE)
    assert len(paths) > 25
    missing = [path for path in paths if not path.startswith(NOT_FILES) and not (ROOT / path.rstrip(".")).exists()]
    assert missing == []


def test_the_page_names_every_folder_of_the_repository() -> None:
    packages = [path.parent.name for path in ROOT.glob("*/__init__.py")]
    assert len(packages) >= 7
    assert [name for name in packages if f"`{name}/`" not in PAGE] == []


@pytest.mark.parametrize(
    "path", ["Dockerfile", "docs/deployment.md", "deploy/kubernetes/overlays/production/kustomization.yaml"]
)
def test_the_release_number_is_the_same_everywhere(path: str) -> None:
    assert re.search(rf"(VERSION=|:|newTag: ){re.escape(VERSION)}\b", (ROOT / path).read_text())


def test_the_changelog_has_the_present_release_below_unreleased() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:2] == ["Unreleased", VERSION]


def test_the_changelog_uses_the_headings_of_keep_a_changelog() -> None:
    headings = re.findall(r"^### (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert set(headings) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_workflow_runs_the_gate() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert [step["run"] for step in workflow["jobs"]["gate"]["steps"] if "run" in step] == ["bash .ci/run"]


def test_hooks_run_programs_of_the_environment() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {hook["entry"].split()[0] for hook in hooks} == {".venv/bin/ruff", ".venv/bin/mypy"}
