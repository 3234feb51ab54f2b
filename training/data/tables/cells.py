"""What the text of a cell means: a number, a boolean or a date."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf(inity)?", re.IGNORECASE)
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:.*)?")
OTHER_DATE = re.compile(r"\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d\d)|\d{4}[./]\d{1,2}[./]\d{1,2}")


def share_of(texts: Any, pattern: re.Pattern[str]) -> float:
    """The share of texts that match a pattern as a whole."""
    ignore_case = bool(pattern.flags & re.IGNORECASE)
    matches = pc.match_substring_regex(texts, f"^(?:{pattern.pattern})$", ignore_case=ignore_case)
    return float(pc.mean(matches.cast(pa.float64())).as_py())


def number(text: str) -> float | None:
    """The number that a text stands for; None if it is not a number."""
    return float(text) if NUMBER.fullmatch(text) else None


def natural_order(text: str) -> tuple[bool, float, str]:
    """A sort key: numbers by value, then text."""
    value = number(text)
    return value is None, value or 0.0, text
