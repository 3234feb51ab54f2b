"""What `sgf-models` does: every command takes its options and returns what to print."""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import asdict, dataclass
from typing import Any

from model_store.cli.terminal_tables import describe, human_bytes, published, table
from model_store.errors import (
    DataError,
    InvalidName,
    ProbeError,
    SnapshotError,
    StoreError,
    StoreUnavailable,
    UnknownModel,
    UnknownVersion,
)
from model_store.format.names import checked_version
from model_store.store import Store
from model_store.versions.model_versions import ModelVersions, Pruned

FAILED, DAMAGED = 1, 4


@dataclass(frozen=True)
class Outcome:
    result: Any
    """What --json prints."""
    text: str
    """What a person reads."""
    exit_code: int = 0
    warnings: tuple[str, ...] = ()
    """For the standard error stream: the command succeeded, and something in the store needs attention."""


def list_versions(options: argparse.Namespace) -> Outcome:
    store = Store(options.store)
    models = [store.model(name) for name in ([options.model] if options.model else store.models())]
    found = [entry for versions in models for entry in _entries(versions)]
    if not found:
        return Outcome([], f"No models in {options.store} yet. Train one (sgf-train), or import one (sgf-models import).")
    rows = [[entry["model"], str(entry["version"]), "live" if entry["live"] else "", *_columns(entry)] for entry in found]
    text = table(["model", "version", "", "created", "nodes", "edges", "states", "size", "scores"], rows)
    return Outcome(found, text, warnings=_warnings(models))


def show(options: argparse.Namespace) -> Outcome:
    versions = _model(options)
    version = _version(options, versions)
    content = json.loads(versions.manifest(version).to_json())
    content |= {"version": version, "live": version == versions.live()}
    return Outcome(content, describe(content, versions.history().events))


def verify(options: argparse.Namespace) -> Outcome:
    versions = _model(options)
    if options.all and options.version is not None:
        raise InvalidName("say either a version or --all")
    results: list[dict[str, Any]] = []
    lines, exit_code = [], 0
    for version in versions.versions() if options.all else [_version(options, versions)]:
        try:
            errors = versions.verify(version)
        except (SnapshotError, ProbeError) as error:
            results.append({"version": version, "error": str(error)})
            lines.append(f"{versions.name} {version}: NOT FIT TO SERVE: {error}")
            exit_code = DAMAGED
        except StoreUnavailable as error:
            results.append({"version": version, "error": str(error)})
            lines.append(f"{versions.name} {version}: NOT VERIFIED: {error}")
            exit_code = exit_code or FAILED
        else:
            results.append({"version": version, "probes": errors})
            listed = ", ".join(f"{name} {error:.0e}" for name, error in errors.items())
            lines.append(f"{versions.name} {version}: every file as published; probes off by {listed}")
    return Outcome(results, "\n".join(lines), exit_code, _warnings([versions]))


def activate(options: argparse.Namespace) -> Outcome:
    versions = _model(options)
    try:
        before = versions.live()
    except SnapshotError:
        before = None  # activating mends it
    versions.activate(options.version)
    live = versions.live()
    return Outcome({"live": live, "before": before}, f"{versions.name} {live} is live (before: {before or 'none'})")


def rollback(options: argparse.Namespace) -> Outcome:
    versions = _model(options)
    before, now = versions.live(), versions.rollback()
    return Outcome({"live": now, "before": before}, f"{versions.name} is back at {now} (before: {before})")


def prune(options: argparse.Namespace) -> Outcome:
    """Of one model, or of every model: one that fails is reported, and the others are still pruned."""
    models = [_model(options)] if options.model else Store(options.store).folders()
    results: list[dict[str, Any]] = []
    lines = []
    for versions in models:
        try:
            pruned = versions.prune(options.keep)
        except (StoreError, OSError) as error:
            results.append({"model": versions.name, "error": str(error)})
            lines.append(f"{versions.name}: NOT PRUNED: {error}")
        else:
            results.append({"model": versions.name} | asdict(pruned))
            lines.append(f"{versions.name}: {_pruned(pruned)}")
    exit_code = FAILED if any("error" in result for result in results) else 0
    return Outcome(results, "\n".join(lines) or f"No models in {options.store}.", exit_code, _warnings(models))


def _pruned(pruned: Pruned) -> str:
    text = f"removed {len(pruned.removed)} version(s)"
    text += f" ({', '.join(map(str, pruned.removed))})" if pruned.removed else ""
    text += f" and {pruned.leftovers} leftover(s) of processes that died" if pruned.leftovers else ""
    return text + (f"; being read, kept: {', '.join(map(str, pruned.in_use))}" if pruned.in_use else "")


def export_onnx(options: argparse.Namespace) -> Outcome:
    versions = _model(options)
    with versions.open(_version(options, versions)) as snapshot:
        if snapshot.onnx_path is not None:
            shutil.copyfile(snapshot.onnx_path, options.output)
        else:
            from model_store.publish.onnx_head import export_request_head

            export_request_head(snapshot.manifest.config, snapshot.weights, options.output)
    size = options.output.stat().st_size
    return Outcome({"output": str(options.output), "bytes": size}, f"wrote {options.output} ({human_bytes(size)})")


def import_model(options: argparse.Namespace) -> Outcome:
    from model_store.publish.foreign_model import imported

    contents = imported(options.layout, options.weights, options.graph, dict(_switch(one) for one in options.set))
    name, store = options.model or "imported", Store(options.store)
    version = store.publish(name, contents, states=options.states, onnx=not options.no_onnx, activate=options.activate)
    manifest = store.model(name).manifest(version)
    result = {"model": name, "version": version, "snapshot": manifest.snapshot, "live": options.activate}
    return Outcome(result, published(name, version, manifest.sizes.nodes, options.activate))


def _entries(versions: ModelVersions) -> list[dict[str, Any]]:
    live, entries = versions.state().live, []
    for version in versions.versions():
        try:
            entries.append(_entry(versions, version) | {"live": version == live})
        except UnknownVersion:
            continue  # pruned during the listing
    return entries


def _warnings(models: list[ModelVersions]) -> tuple[str, ...]:
    problems = [(versions.name, versions.state().problem) for versions in models]
    return tuple(f"{name}: {problem}" for name, problem in problems if problem is not None)


def _entry(versions: ModelVersions, version: int) -> dict[str, Any]:
    entry: dict[str, Any] = {"model": versions.name, "version": version}
    try:
        manifest = versions.manifest(version)
    except (SnapshotError, StoreUnavailable) as error:
        return entry | {"damaged": str(error)}
    return entry | {
        "snapshot": manifest.snapshot,
        "created": manifest.created,
        "nodes": manifest.sizes.nodes,
        "edges": manifest.sizes.adjacency_entries // 2,
        "states": manifest.sizes.states,
        "bytes": sum(file.size for file in manifest.files.values()),
        "scores": dict(manifest.scores),
    }


def _columns(entry: dict[str, Any]) -> list[str]:
    if "damaged" in entry:
        return [f"damaged: {entry['damaged']}", "", "", "", "", ""]
    scores = ", ".join(f"{name} {_number(score)}" for name, score in entry["scores"].items())
    sizes = [f"{entry['nodes']:,}", f"{entry['edges']:,}", entry["states"], human_bytes(entry["bytes"])]
    return [entry["created"], *sizes, scores]


def _model(options: argparse.Namespace) -> ModelVersions:
    """The model that was named, or the only one there is."""
    store = Store(options.store)
    try:
        name = options.model or store.only_model()
    except DataError as error:
        # As this kind, it keeps the exit code that tells scripts: no such model.
        raise UnknownModel(f"{error} ({options.store})") from error
    return store.model(name)


def _version(options: argparse.Namespace, versions: ModelVersions) -> int:
    """The version that was named, or the live one."""
    if options.version is not None:
        return checked_version(options.version)
    live = versions.live()
    if live is None:
        raise UnknownVersion(f"no version of {versions.name} is live; say which one")
    return live


def _switch(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise DataError(f"--set {text!r}: expected name=value")
    return name, value


def _number(score: Any) -> str:
    return f"{score:.4g}" if isinstance(score, float) else str(score)
