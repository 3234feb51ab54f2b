"""Every version that constraints.txt pins can be installed on every supported Python, not only on this one."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.11.2", "3.12.0", "3.13.0")
"""The oldest release of each supported minor version; 3.11.2 is Debian 12's, which the images use."""


def refusing(requirements: dict[str, str], python: str) -> list[str]:
    """The packages whose Requires-Python excludes this Python."""
    return [name for name, specifier in requirements.items() if not SpecifierSet(specifier).contains(python)]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_pinned_package_accepts_the_python(python: str) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line}
    installed = [distribution for distribution in metadata.distributions() if distribution.name in pinned]
    assert len(installed) > 100
    requirements = {package.name: package.metadata["Requires-Python"] or "" for package in installed}
    assert refusing(requirements, python) == []


def test_the_project_accepts_exactly_these_pythons() -> None:
    accepted = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    assert [python for python in ("3.10.99", *PYTHONS, "3.14.0") if python in accepted] == list(PYTHONS)


def test_a_package_that_needs_a_newer_python_is_found() -> None:
    assert refusing({"old": ">=3.9", "new": ">=3.11.5", "any": ""}, "3.11.2") == ["new"]
