"""Errors of the store.

StoreError
+-- InvalidName            not a valid model name or version
+-- UnknownModel           no such model in the store
+-- UnknownVersion         no such version of the model, or none is live
+-- NothingToRollBackTo    no earlier live version is left
+-- LiveVersionChanged     the live version is not the one that the caller expected
+-- ChangesMissing         the version is over another graph and does not have the changes of the live graph
+-- SnapshotError          wrong content, which must not be served: `.file` and `.reason`
+-- ProbeError             the answers of an engine to the probes are wrong
+-- StoreUnavailable       the operating system refused to read or lock a file; the content may be valid
|   +-- StoreBusy          another process held a lock of the store for longer than the time limit
+-- LocalCopyError         a version cannot be copied to the local disk, or read there
+-- OperationError         a change of the graph that is not possible: `.code`, `.index` of the operation, `.node`
+-- LogError               a record of a graph log is damaged or lost: `.place` and `.reason`
+-- RecordsPruned          the records were removed from the graph log; a newer version contains them
+-- Behind                 the graph log has records that the writer has not read
+-- Fenced                 another writer has taken over the graph log; nothing was appended
+-- KeyReused              an idempotency key came with another payload: `.key`
+-- DataError              wrong or missing input of a user: a graph, labels, weights, the name of a model
    +-- FeatureValueError  a feature by name is unknown, missing or invalid: `.column`
"""

from __future__ import annotations


class StoreError(Exception):
    """The base of all errors of this package."""


class InvalidName(StoreError): ...  # noqa: N818  # the names state a condition


class UnknownModel(StoreError): ...  # noqa: N818


class UnknownVersion(StoreError): ...  # noqa: N818


class NothingToRollBackTo(StoreError): ...  # noqa: N818


class LiveVersionChanged(StoreError): ...  # noqa: N818


class ChangesMissing(StoreError): ...  # noqa: N818


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


class LocalCopyError(StoreError): ...


class DataError(StoreError): ...


class OperationError(StoreError):
    """An operation cannot be applied. `code` is conflict, unknown_node or invalid; `index` counts operations from 0."""

    def __init__(self, code: str, message: str, index: int | None = None, node: int | str | None = None) -> None:
        super().__init__(message if index is None else f"operation {index}: {message}")
        self.code, self.message, self.index, self.node = code, message, index, node


class FeatureValueError(DataError):
    """A feature that is given by name is unknown, missing, or has a value that its column does not take."""

    def __init__(self, column: str, message: str) -> None:
        super().__init__(f"feature {column!r} {message}")
        self.column = column


class LogError(StoreError):
    """The content of a graph log is wrong, for every process that reads it."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.place = place
        self.reason = reason


class RecordsPruned(StoreError): ...  # noqa: N818


class Behind(StoreError): ...  # noqa: N818


class Fenced(StoreError): ...  # noqa: N818


class KeyReused(StoreError):  # noqa: N818
    def __init__(self, key: str) -> None:
        super().__init__(f"the idempotency key {key!r} belongs to another change: use a new key for a new change")
        self.key = key
