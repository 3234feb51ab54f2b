"""What constraints.txt pins can be installed on every Python that we support, not only on the one that wrote it."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from packaging.specifiers import SpecifierSet

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
OLDEST = "3.11.2"
"""Of Debian 12, which the images and a fresh machine have."""


def refusing(wanted: dict[str, str]) -> list[str]:
    """Packages that want a newer Python, by what they ask for (Requires-Python)."""
    return [name for name, python in wanted.items() if not SpecifierSet(python).contains(OLDEST)]


def test_everything_pinned_runs_on_the_oldest_python() -> None:
    pinned = {line.partition("==")[0] for line in CONSTRAINTS.read_text().splitlines() if "==" in line}
    here = [one for one in metadata.distributions() if one.name in pinned]
    assert len(here) > 100
    assert refusing({one.name: one.metadata["Requires-Python"] or "" for one in here}) == []


def test_what_wants_a_newer_python_is_found() -> None:
    assert refusing({"old": ">=3.9", "new": ">=3.11.5", "any": ""}) == ["new"]
