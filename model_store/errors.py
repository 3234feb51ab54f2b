"""Errors of the store.

StoreError
+-- InvalidName            not a valid model name or version
+-- UnknownModel           no such model in the store
+-- UnknownVersion         no such version of the model, or none is live
+-- NothingToRollBackTo    no earlier live version is left
+-- LiveVersionChanged     the live version is not the one that the caller expected
+-- SnapshotError          wrong content, which must not be served: `.file` and `.reason`
+-- ProbeError             the answers of an engine to the probes are wrong
+-- StoreUnavailable       the operating system refused to read or lock a file; the content may be valid
|   +-- StoreBusy          another process held a lock of the store for longer than the time limit
+-- DataError              wrong or missing input of a user: a graph, labels, weights, the name of a model
"""

from __future__ import annotations


class StoreError(Exception):
    """The base of all errors of this package."""


class InvalidName(StoreError): ...  # noqa: N818  # the names state a condition


class UnknownModel(StoreError): ...  # noqa: N818


class UnknownVersion(StoreError): ...  # noqa: N818


class NothingToRollBackTo(StoreError): ...  # noqa: N818


class LiveVersionChanged(StoreError): ...  # noqa: N818


class SnapshotError(StoreError):
    """The content of a file is wrong, for every machine that reads it."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason


class ProbeError(StoreError): ...


class StoreUnavailable(StoreError):  # noqa: N818
    """This process cannot use a file now (I/O error, permission, memory, lock). A later attempt may succeed."""


class StoreBusy(StoreUnavailable): ...


class DataError(StoreError): ...
