"""The one table of HTTP status codes, and the code of every error.

    Refusal                     an answer to the client that is not the one it asked for; `.code` is a key of STATUS
    everything else             our own fault: the client learns no more than that, the log has the rest

The mathematics and the store raise their own errors; `refusal_for` is where those become codes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from model_store import InvalidName, StoreBusy, StoreError, StoreUnavailable, UnknownModel, UnknownVersion
from service.jobs.ledger import InvalidSubmission, JobConflict, JobError, JobsUnavailable, UnknownJob
from sgformer import NeighborhoodTooLarge, NewNodeError, SgformerError, UnknownNodeError

STATUS: Mapping[str, int] = {
    "not_json": 400,
    "bad_encoding": 400,
    "bad_http": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "unknown_node": 404,
    "unknown_version": 404,
    "unknown_report": 404,
    "unknown_job": 404,
    "method_not_allowed": 405,
    "slow_body": 408,
    "conflict": 409,
    "body_too_large": 413,
    "batch_too_large": 413,
    "neighborhood_too_large": 413,
    "unsupported_media_type": 415,
    "invalid": 422,
    "no_answer": 422,
    "overloaded": 429,
    "head_too_large": 431,
    "gone": 499,
    "internal": 500,
    "not_ready": 503,
    "deadline": 503,
    "too_many_connections": 503,
    "jobs_unavailable": 503,
    "store_busy": 503,
    "store_unavailable": 503,
}
JOB_CODES: Mapping[type[JobError], str] = {
    InvalidSubmission: "invalid",
    UnknownJob: "unknown_job",
    JobConflict: "conflict",
    JobsUnavailable: "jobs_unavailable",
}
RETRY_SECONDS = 1
LONGEST_MESSAGE, LONGEST_DETAIL = 400, 200
"""Messages and details may quote the request, which may be megabytes."""


class Refusal(Exception):  # noqa: N818  # not an error of ours
    """Says in one sentence what was wrong and what was expected."""

    reply: Any = None
    """Its encoded form, once there is one."""

    def __init__(
        self, code: str, message: str, *, headers: Mapping[str, str] | None = None, closes: bool = False, **details: Any
    ) -> None:
        """`closes`: the connection cannot be used after this answer."""
        super().__init__(_shortened(message, LONGEST_MESSAGE))
        self.code = code
        self.status, self.closes = STATUS[code], closes
        self.details = {name: _shortened(value, LONGEST_DETAIL) for name, value in details.items()}
        self.headers = dict(headers or {})
        if self.status in (429, 503):
            self.headers.setdefault("retry-after", str(RETRY_SECONDS))

    def body(self) -> dict[str, Any]:
        return {"error": str(self), "code": self.code, "details": self.details}


def _shortened(value: Any, length: int) -> Any:
    return f"{value[:length]}..." if isinstance(value, str) and len(value) > length else value


def refusal_for(error: BaseException) -> Refusal:
    """The refusal that the client gets for an error of another layer."""
    if isinstance(error, Refusal | JobError):
        return error if isinstance(error, Refusal) else Refusal(JOB_CODES[type(error)], str(error), **error.details)
    if isinstance(error, asyncio.CancelledError):  # only a shutdown cancels requests
        return Refusal("not_ready", "the service is shutting down")
    if isinstance(error, UnknownNodeError):
        return Refusal("unknown_node", str(error), node=error.node)
    if isinstance(error, NeighborhoodTooLarge):
        return Refusal("neighborhood_too_large", str(error), item=error.item, size=error.size, limit=error.limit)
    if isinstance(error, NewNodeError):
        return Refusal("invalid", str(error), item=error.item)
    if isinstance(error, SgformerError):
        return Refusal("invalid", str(error))
    if isinstance(error, UnknownVersion | UnknownModel | InvalidName):
        return Refusal("unknown_version", str(error))
    if isinstance(error, StoreUnavailable):
        return Refusal("store_busy" if isinstance(error, StoreBusy) else "store_unavailable", str(error))
    if isinstance(error, StoreError):
        return Refusal("conflict", str(error))
    return Refusal("internal", "something went wrong here, not with your request; the log has the details")
