"""Errors of the store.

StoreError
+-- InvalidName            a model name or version that the store does not take
+-- UnknownModel           no such model in the store
+-- UnknownVersion         no such version of the model, or none is live
+-- NothingToRollBackTo    no earlier live version is left
+-- LiveVersionChanged     another version went live than the one that was expected to be
+-- SnapshotError          a snapshot that must not be served: `.file` and `.reason`
+-- ProbeError             an engine that does not answer its probes
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
    """One file of a snapshot is wrong; whatever the cause, the snapshot is refused."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason


class ProbeError(StoreError):
    pass


class DataError(StoreError):
    pass
