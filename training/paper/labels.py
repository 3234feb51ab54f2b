"""The labels of table entries that are variants of a recipe."""

from __future__ import annotations

FUNCTIONS = ("linear", "softmax", "gat", "nodeformer")
"""Of attention (`attention_variants`)."""
DEPTHS = (1, 2, 3)
NO_ATTENTION = "alpha 1: no attention"


def share_label(share: float) -> str:
    return f"{share:.0%}"


def alpha_label(alpha: float) -> str:
    return f"alpha {alpha:g}"


def depth_label(depth: int) -> str:
    return f"{depth} attention layer{'s' if depth > 1 else ''}"
