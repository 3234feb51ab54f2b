"""How HTTP reports errors: the one table of codes, the headers, and the codes for errors of other layers.

`refusal_for` maps errors of sgformer, model_store and jobs to refusals. All other errors are faults of the service: the
client learns nothing about them, and the log has the details.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from model_store import InvalidName, StoreBusy, StoreError, StoreUnavailable, UnknownModel, UnknownVersion
from service.errors import Code, Refusal
from service.jobs.ledger import InvalidSubmission, JobConflict, JobError, JobsUnavailable, UnknownJob
from sgformer import NeighborhoodTooLarge, NewNodeError, SgformerError, UnknownNodeError

CODES: Mapping[str, tuple[int, str]] = {
    "not_json": (400, "answers admin"),
    "bad_encoding": (400, "answers admin"),
    "bad_http": (400, "answers admin"),
    "unauthorized": (401, "answers models admin"),
    "forbidden": (403, "answers models admin"),
    "not_found": (404, "models admin"),
    "unknown_node": (404, "answers"),
    "unknown_version": (404, "models admin"),
    "unknown_report": (404, "models"),
    "unknown_job": (404, "admin"),
    "method_not_allowed": (405, ""),
    "slow_body": (408, "answers admin"),
    "conflict": (409, "models admin"),
    "body_too_large": (413, "answers admin"),
    "batch_too_large": (413, "answers"),
    "neighborhood_too_large": (413, "answers"),
    "unsupported_media_type": (415, "answers admin"),
    "invalid": (422, "answers models admin"),
    "no_answer": (422, "answers"),
    "overloaded": (429, "answers models admin"),
    "head_too_large": (431, ""),
    "gone": (499, ""),
    "internal": (500, "answers models admin operations"),
    "not_ready": (503, "answers models admin operations"),
    "deadline": (503, "answers"),
    "too_many_connections": (503, "answers models admin operations"),
    "jobs_unavailable": (503, "admin"),
    "store_busy": (503, "answers models admin operations"),
    "store_unavailable": (503, "answers models admin operations"),
}
"""The status of each code, and the groups of routes whose documentation names it."""
STATUS: Mapping[str, int] = {code: status for code, (status, _) in CODES.items()}
CODES_OF_ERRORS: Mapping[type[Exception], Code] = {
    InvalidSubmission: "invalid",
    UnknownJob: "unknown_job",
    JobConflict: "conflict",
    JobsUnavailable: "jobs_unavailable",
    UnknownNodeError: "unknown_node",
    NeighborhoodTooLarge: "neighborhood_too_large",
    SgformerError: "invalid",
    UnknownVersion: "unknown_version",
    UnknownModel: "unknown_version",
    InvalidName: "unknown_version",
    StoreBusy: "store_busy",
    StoreUnavailable: "store_unavailable",
    StoreError: "conflict",
}
"""The code for errors of other layers. A class comes before its base class: the first entry that fits counts."""
RETRY_SECONDS = 1
ERROR_CONTENT = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}}
"""Of all error responses, in the OpenAPI document."""


class HttpRefusal(Refusal):
    """A refusal with extra headers, or after which the connection cannot be used (`closes`)."""

    def __init__(
        self, code: Code, message: str, *, headers: Mapping[str, str] | None = None, closes: bool = False, **details: Any
    ) -> None:
        super().__init__(code, message, **details)
        self.headers, self.closes = dict(headers or {}), closes


def headers_for(refusal: Refusal) -> dict[str, str]:
    headers = refusal.headers if isinstance(refusal, HttpRefusal) else {}
    retry = {"retry-after": str(RETRY_SECONDS)} if STATUS[refusal.code] in (429, 503) else {}
    return retry | headers


def refusal_for(error: BaseException) -> Refusal:
    """The refusal that the client gets for an error of another layer."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, asyncio.CancelledError):  # only a shutdown cancels requests
        return Refusal("not_ready", "the service is shutting down")
    for kind, code in CODES_OF_ERRORS.items():
        if isinstance(error, kind):
            return Refusal(code, str(error), **_details(error))
    return Refusal("internal", "something went wrong here, not with your request; the log has the details")


def _details(error: BaseException) -> dict[str, Any]:
    if isinstance(error, JobError):
        return error.details
    if isinstance(error, UnknownNodeError):
        return {"node": error.node}
    if isinstance(error, NeighborhoodTooLarge):
        return {"item": error.item, "size": error.size, "limit": error.limit}
    return {"item": error.item} if isinstance(error, NewNodeError) else {}


def error_responses(group: str) -> dict[int | str, dict[str, Any]]:
    """The error responses of a group of routes, for FastAPI. The description of each status lists its codes."""
    codes: dict[int | str, list[str]] = {}
    for code, (status, groups) in sorted(CODES.items()):
        if group in groups.split():
            codes.setdefault(status, []).append(code)
    return {status: {"description": ", ".join(names), "content": ERROR_CONTENT} for status, names in codes.items()}
