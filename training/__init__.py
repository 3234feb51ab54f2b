"""Turns data into a trained model, and a trained model into a snapshot in the store.

data/ reads graphs, fit/ trains, release/ publishes and activates, report/ and paper/ make pages, cli/ is `sgf-train`.
Importing this package loads no torch; its functions do.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.data.python_graph import save_graph
    from training.release.publishing import publish, refresh

_MODULES = {"publish": "release.publishing", "refresh": "release.publishing", "save_graph": "data.python_graph"}

__all__ = ["publish", "refresh", "save_graph"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"training.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
