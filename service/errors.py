"""Refusal: the error for a request that the service rejects or cannot answer.

`Refusal.code` names the reason; `service.http.errors` maps codes, and the errors of other layers, to HTTP.
"""

from __future__ import annotations

from typing import Any, Literal

Code = Literal[
    "not_json", "bad_encoding", "bad_http", "unauthorized", "forbidden", "not_found", "unknown_node", "unknown_version",
    "unknown_report", "unknown_job", "method_not_allowed", "slow_body", "conflict", "body_too_large", "batch_too_large",
    "neighborhood_too_large", "unsupported_media_type", "invalid", "no_answer", "overloaded", "head_too_large", "gone",
    "internal", "not_ready", "deadline", "too_many_connections", "jobs_unavailable", "store_busy", "store_unavailable",
    "behind", "no_embeddings",
]  # fmt: skip
MAX_MESSAGE_LENGTH, MAX_DETAIL_LENGTH = 400, 200
"""In characters. Messages and details may quote the request, which may be megabytes."""


class Refusal(Exception):  # noqa: N818  # most are caused by the request or by load
    """`message` is one sentence that says what was wrong and what was expected."""

    def __init__(self, code: Code, message: str, **details: Any) -> None:
        super().__init__(_shorten(message, MAX_MESSAGE_LENGTH))
        self.code = code
        self.details = {name: _shorten(value, MAX_DETAIL_LENGTH) for name, value in details.items()}

    def body(self) -> dict[str, Any]:
        return {"error": str(self), "code": self.code, "details": self.details}


def _shorten(value: Any, length: int) -> Any:
    return f"{value[:length]}..." if isinstance(value, str) and len(value) > length else value
