"""Something parsed, with one thing wrong: what a check must complain about."""

from __future__ import annotations

import copy
from typing import Any

GONE = object()
"""As a value: the thing is taken away."""


def changed(tree: Any, path: str, value: Any) -> Any:
    """A copy with another value at a path of keys and positions, by spaces; the last key of a dict may be new."""
    found = copy.deepcopy(tree)
    *way, last = path.split(" ")
    place = found
    for key in way:
        place = place[_key(place, key)]
    key = _key(place, last)
    if value is GONE:
        del place[key]
    else:
        assert not isinstance(place, dict) or place.get(key, GONE) != value, f"{path} is {value} already"
        place[key] = value
    return found


def _key(place: Any, key: str) -> Any:
    return int(key) if isinstance(place, list) else key
