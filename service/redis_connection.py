"""Shared by all connections to Redis: credentials, the text of an error, and the backoff."""

from __future__ import annotations

from typing import Any

from service.settings import Settings


def connection_options(settings: Settings) -> dict[str, Any]:
    """Keyword arguments for `Redis.from_url`. Raises SettingsError if the password cannot be read."""
    return {"url": settings.redis_url or "redis://", "password": settings.redis_password()}


def graph_log_options(settings: Settings) -> dict[str, Any] | None:
    """As `connection_options`, if changes of the graph are logged in Redis; None if they are logged in the store."""
    return connection_options(settings) if settings.graph_log == "redis" else None


def cause_of(error: BaseException) -> str:
    """The error text of the server or the system, without the command's arguments: HELLO has the password among them."""
    text, _, _ = f"{getattr(error, 'status_code', None) or ''} {error}".strip().partition(", with args beginning with")
    return text or f"no answer in time: {type(error).__name__}"


class Backoff:
    """The seconds to wait before the next attempt: they double with every failure, from `first` to `longest`."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest, self.seconds = first, longest, 0.0

    def grow(self) -> float:
        self.seconds = min(max(2 * self.seconds, self._first), self._longest)
        return self.seconds

    def reset(self) -> None:
        self.seconds = 0.0
