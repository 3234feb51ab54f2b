"""How HTTP reports errors: the one table of codes, the headers, and the codes for errors of other layers.

`refusal_for` maps errors of sgformer, model_store and jobs to refusals. Any other error is a fault of the service: the
client gets the code `internal` without details, and the log has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from model_store import InvalidName, StoreBusy, StoreError, StoreUnavailable, UnknownModel, UnknownVersion
from model_store.errors import LogError, OperationError, RecordsPruned
from service.errors import Code, Refusal
from service.jobs.ledger import InvalidSubmission, JobConflict, JobError, JobsUnavailable, UnknownJob
from sgformer import NeighborhoodTooLarge, NewNodeError, SgformerError, UnknownNodeError

CODES: Mapping[str, tuple[int, str]] = {
    "not_json": (400, "answers admin graph"),
    "bad_encoding": (400, "answers admin graph"),
    "bad_http": (400, "answers admin graph"),
    "unauthorized": (401, "answers models admin data graph"),
    "forbidden": (403, "answers models admin data graph"),
    "not_found": (404, "models admin graph"),
    "unknown_node": (404, "answers data graph"),
    "no_embeddings": (404, "answers data"),
    "unknown_version": (404, "models admin"),
    "unknown_report": (404, "models"),
    "unknown_job": (404, "admin"),
    "method_not_allowed": (405, ""),
    "slow_body": (408, "answers admin graph"),
    "conflict": (409, "models admin graph"),
    "body_too_large": (413, "answers admin graph"),
    "batch_too_large": (413, "answers graph"),
    "neighborhood_too_large": (413, "answers"),
    "unsupported_media_type": (415, "answers admin graph"),
    "invalid": (422, "answers models admin data graph"),
    "no_answer": (422, "answers"),
    "overloaded": (429, "answers models admin data graph"),
    "head_too_large": (431, ""),
    "gone": (499, ""),
    "internal": (500, "answers models admin operations data graph"),
    "not_ready": (503, "answers models admin operations data graph"),
    "deadline": (503, "answers graph"),
    "too_many_connections": (503, "answers models admin operations data graph"),
    "jobs_unavailable": (503, "admin"),
    "behind": (503, "answers"),
    "store_busy": (503, "answers models admin operations graph"),
    "store_unavailable": (503, "answers models admin operations graph"),
}
"""The status of each code, and the groups of routes whose documentation names the code."""
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
    LogError: "store_unavailable",
    RecordsPruned: "store_unavailable",
    StoreUnavailable: "store_unavailable",
    StoreError: "conflict",
}
"""The code for errors of other layers. A class comes before its base class: the first entry that fits counts."""
RETRY_SECONDS = 1
ERROR_CONTENT = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}}
"""The content of all error responses, for the OpenAPI document."""


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
    if isinstance(error, OperationError):
        code: Any = error.code  # conflict, unknown_node or invalid
        return Refusal(code, str(error), operation=error.index, node=error.node)
    for kind, code in CODES_OF_ERRORS.items():
        if isinstance(error, kind):
            return Refusal(code, str(error), **_details(error))
    return Refusal("internal", "the service failed to answer a valid request; its log has the details")


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
