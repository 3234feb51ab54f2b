"""Errors of the store.

StoreError
+-- InvalidName            a model name or version that the store does not take
+-- UnknownModel           no such model in the store
+-- UnknownVersion         no such version of the model, or none is live
+-- NothingToRollBackTo    no earlier live version is left
+-- LiveVersionChanged     another version went live than the one that was expected to be
+-- SnapshotError          content that is wrong and must not be served: `.file` and `.reason`
+-- ProbeError             an engine whose answers to the probes are wrong
+-- StoreUnavailable       the operating system refused to read or lock a file; the content may be right
|   +-- StoreBusy          another process held a lock of the store for longer than the limit
+-- DataError              what a user gave or left out: a graph, labels or weights that cannot be used, which model
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of every error that this package raises."""


class InvalidName(StoreError):  # noqa: N818  # these names say what is the case
    pass


class UnknownModel(StoreError):  # noqa: N818
    pass


class UnknownVersion(StoreError):  # noqa: N818
    pass


class NothingToRollBackTo(StoreError):  # noqa: N818
    pass


class LiveVersionChanged(StoreError):  # noqa: N818
    pass


class SnapshotError(StoreError):
    """The content of one file is wrong, on every machine that reads it."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason


class ProbeError(StoreError):
    pass


class StoreUnavailable(StoreError):  # noqa: N818
    """This process cannot use a file now (I/O error, permission, memory, lock); a later attempt may succeed."""


class StoreBusy(StoreUnavailable):
    pass


class DataError(StoreError):
    pass
