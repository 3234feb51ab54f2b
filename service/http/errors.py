"""How HTTP reports errors: the one table of status codes, the headers, and the codes for errors of other layers.

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
JOB_CODES: Mapping[type[JobError], Code] = {
    InvalidSubmission: "invalid",
    UnknownJob: "unknown_job",
    JobConflict: "conflict",
    JobsUnavailable: "jobs_unavailable",
}
RETRY_SECONDS = 1


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
