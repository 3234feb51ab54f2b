"""Names the packages of the extra `train` that are not installed: a user of the service alone may not have them."""

from __future__ import annotations

from importlib.util import find_spec

PACKAGES = ("torch", "sklearn", "tqdm")
"""Imported by every command; the other packages of the extra are imported where they are used."""


def missing_packages() -> str | None:
    """The sentence for the user; None if nothing is missing."""
    missing = [package for package in PACKAGES if find_spec(package) is None]
    how = "pip install 'sgformer-serving[train]', or make install in a clone"
    return f"training needs {', '.join(missing)}: {how}" if missing else None
