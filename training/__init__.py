"""Turns data into a trained model, and a trained model into a snapshot in the store.

data/ reads graphs, fit/ trains, release/ publishes and activates, report/ and paper/ make pages, cli/ is `sgf-train`.
Importing this package loads no torch; its functions do.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.release.publishing import publish, refresh

__all__ = ["publish", "refresh"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("training.release.publishing"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
