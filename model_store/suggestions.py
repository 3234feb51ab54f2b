"""The name that a mistyped word may stand for, as part of an error message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches


def did_you_mean(word: str, names: Iterable[str], quote: Callable[[str], str] = str) -> str:
    """`; did you mean NAME?` with the name that is most similar to the word, ignoring case; empty if none is similar.

    `quote` formats the name, e.g. `repr` for names that users chose.
    """
    by_lower = {name.lower(): name for name in names}
    similar = get_close_matches(word.lower(), by_lower, n=1)
    return f"; did you mean {quote(by_lower[similar[0]])}?" if similar else ""
