"""Snapshots on disk: their format, and how to publish, verify, open, activate, roll back and prune them.

Imports only `sgformer`. Publishing loads torch; importing this package and opening a snapshot do not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model_store.errors import (
        Behind,
        ChangesMissing,
        DataError,
        FeatureValueError,
        Fenced,
        InvalidName,
        KeyReused,
        LiveVersionChanged,
        LogError,
        NothingToRollBackTo,
        ProbeError,
        RecordsPruned,
        SnapshotError,
        StoreBusy,
        StoreError,
        StoreUnavailable,
        UnknownModel,
        UnknownVersion,
    )
    from model_store.feature_schema import FeatureColumn, FeatureSchema
    from model_store.format.manifest import FileEntry, Manifest
    from model_store.format.node_ids import NodeIds
    from model_store.format.probes import Probe, ProbedEngine, Probes
    from model_store.publish.writer import Contents, write_snapshot
    from model_store.snapshot import Snapshot
    from model_store.store import Store
    from model_store.versions.activation_log import History, HistoryEntry
    from model_store.versions.model_versions import ModelVersions, PruneResult

_MODULES = {
    "Contents": "publish.writer",
    "FeatureColumn": "feature_schema",
    "FeatureSchema": "feature_schema",
    "FileEntry": "format.manifest",
    "History": "versions.activation_log",
    "HistoryEntry": "versions.activation_log",
    "Manifest": "format.manifest",
    "ModelVersions": "versions.model_versions",
    "NodeIds": "format.node_ids",
    "Probe": "format.probes",
    "ProbedEngine": "format.probes",
    "Probes": "format.probes",
    "PruneResult": "versions.model_versions",
    "Snapshot": "snapshot",
    "Store": "store",
    "write_snapshot": "publish.writer",
}
"""The module of each name; the names that are not listed are in `errors`."""

__all__ = [
    "Behind",
    "ChangesMissing",
    "Contents",
    "DataError",
    "FeatureColumn",
    "FeatureSchema",
    "FeatureValueError",
    "Fenced",
    "FileEntry",
    "History",
    "HistoryEntry",
    "InvalidName",
    "KeyReused",
    "LiveVersionChanged",
    "LogError",
    "Manifest",
    "ModelVersions",
    "NodeIds",
    "NothingToRollBackTo",
    "Probe",
    "ProbeError",
    "ProbedEngine",
    "Probes",
    "PruneResult",
    "RecordsPruned",
    "Snapshot",
    "SnapshotError",
    "Store",
    "StoreBusy",
    "StoreError",
    "StoreUnavailable",
    "UnknownModel",
    "UnknownVersion",
    "write_snapshot",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
    return value
