from __future__ import annotations

from tests.service.conftest import store

__all__ = ["store"]
