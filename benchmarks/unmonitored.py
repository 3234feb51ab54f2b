"""The HTTP protocol of the service; importing this module switches drift and verification off, for comparison."""

from __future__ import annotations

from typing import Any

from service.http.protocol import Protocol
from service.predict.batching import Batcher

_make = Batcher.__init__


def _make_unobserved(self: Batcher, settings: Any, metrics: Any, _observe: Any = None) -> None:
    _make(self, settings, metrics)


Batcher.__init__ = _make_unobserved  # type: ignore[method-assign]  # before uvicorn loads the application

__all__ = ["Protocol"]
