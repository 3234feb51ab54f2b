"""The commands of `sgf-models`. Each takes the store, the name of a model or None, and its own options."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_store import demo
from model_store.cli.listing import format_entries, format_time, format_values, list_entries, terminal_width
from model_store.cli.terminal import describe_publication, format_bytes
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
from model_store.format import layout
from model_store.format.layout import checked_version
from model_store.store import Store
from model_store.versions.model_versions import ModelVersions, PruneResult

if TYPE_CHECKING:
    from model_store.publish.writer import StatesType

FAILED, DAMAGED = 1, 4
MAX_NAMES_SHOWN = 12


@dataclass(frozen=True)
class CommandResult:
    content: Any
    """What --json prints."""
    text: str
    """What is printed without --json."""
    exit_code: int = 0
    warnings: tuple[str, ...] = ()
    """For standard error: the command succeeded, but something in the store needs attention."""


def install_demo(store: Store, _model: str | None, pack: Path | None) -> CommandResult:
    if pack is not None:
        demo.pack_demo(pack)
        text = f"packed {pack} ({demo.ARCHIVE.stat().st_size:,} bytes)"
    elif models := store.models():
        text = f"the store has {', '.join(models)}: the demo is not installed"
    else:
        demo.install_demo(store.root)
        text = f"installed the demo as version 1 of {demo.MODEL}"
    return CommandResult({"result": text}, text)


def list_versions(store: Store, model: str | None) -> CommandResult:
    models = [store.model(name) for name in ([model] if model else store.models())]
    entries = [entry for versions in models for entry in list_entries(versions)]
    if not entries:
        return CommandResult([], f"No models in {store.root} yet. Train one (sgf-train), or import one (sgf-models import).")
    return CommandResult(entries, format_entries(entries, terminal_width()), warnings=_warnings(models))


def show_version(store: Store, model: str | None, version: str | None) -> CommandResult:
    versions = _select_model(store, model)
    number = _select_version(versions, version)
    content = json.loads(versions.manifest(number).to_json())
    content |= {"version": number, "live_graph": content.get("live"), "live": number == versions.live()}
    history = [f"{format_time(entry.at)}  {entry.action} {entry.version}" for entry in versions.history().entries]
    return CommandResult(content, _describe_manifest(content, history))


def verify_versions(store: Store, model: str | None, version: str | None, all_versions: bool) -> CommandResult:
    versions = _select_model(store, model)
    if all_versions and version is not None:
        raise InvalidName("name a version or use --all, not both")
    results: list[dict[str, Any]] = []
    lines, exit_code = [], 0
    for number in versions.versions() if all_versions else [_select_version(versions, version)]:
        try:
            errors = versions.verify(number)
        except (SnapshotError, ProbeError, StoreUnavailable) as error:
            damaged = not isinstance(error, StoreUnavailable)
            results.append({"version": number, "error": str(error)})
            lines.append(f"{versions.name} {number}: {'NOT FIT TO SERVE' if damaged else 'NOT VERIFIED'}: {error}")
            exit_code = DAMAGED if damaged else exit_code or FAILED
        else:
            results.append({"version": number, "probes": errors})
            listed = ", ".join(f"{name} {error:.0e}" for name, error in errors.items())
            lines.append(f"{versions.name} {number}: every file is as published; probe errors: {listed}")
    return CommandResult(results, "\n".join(lines), exit_code, _warnings([versions]))


def activate_version(store: Store, model: str | None, version: str, discard_changes: bool) -> CommandResult:
    versions = _select_model(store, model)
    try:
        before = versions.live()
    except SnapshotError:
        before = None  # CURRENT is damaged, and the activation repairs it
    versions.activate(version, discard_changes=discard_changes)
    live = versions.live()
    previous = "it was already" if live == before else f"before: {before or 'none'}"
    return CommandResult({"live": live, "before": before}, f"{versions.name} {live} is live ({previous})")


def roll_back(store: Store, model: str | None, discard_changes: bool) -> CommandResult:
    versions = _select_model(store, model)
    before, live = versions.live(), versions.rollback(discard_changes=discard_changes)
    return CommandResult({"live": live, "before": before}, f"{versions.name} {live} is live again (before: {before})")


def prune_versions(store: Store, model: str | None, keep: int) -> CommandResult:
    """Prunes one model or all models. A model that fails is reported, and the other models are still pruned."""
    models = [_select_model(store, model)] if model else store.folders()
    results: list[dict[str, Any]] = []
    lines = []
    for versions in models:
        try:
            pruned = versions.prune(keep)
        except (StoreError, OSError) as error:
            results.append({"model": versions.name, "error": str(error)})
            lines.append(f"{versions.name}: NOT PRUNED: {error}")
        else:
            results.append({"model": versions.name} | asdict(pruned))
            lines.append(f"{versions.name}: {_describe_pruned(pruned)}")
    exit_code = FAILED if any("error" in result for result in results) else 0
    return CommandResult(results, "\n".join(lines) or f"No models in {store.root}.", exit_code, _warnings(models))


def remove_versions(store: Store, model: str | None, versions: Sequence[str]) -> CommandResult:
    folder = _select_model(store, model)
    pruned = folder.remove([checked_version(version) for version in versions])
    return CommandResult(asdict(pruned), f"{folder.name}: {_describe_pruned(pruned)}", FAILED if pruned.in_use else 0)


def export_onnx(store: Store, model: str | None, version: str | None, output: Path) -> CommandResult:
    versions = _select_model(store, model)
    with versions.open(_select_version(versions, version)) as snapshot:
        if snapshot.onnx_path is not None:
            shutil.copyfile(snapshot.onnx_path, output)
        else:
            from model_store.publish.onnx_head import export_request_head

            export_request_head(snapshot.manifest.config, snapshot.weights, output)
    size = output.stat().st_size
    return CommandResult({"output": str(output), "bytes": size}, f"wrote {output} ({format_bytes(size)})")


def import_model(
    store: Store,
    model: str | None,
    *,
    layout: str,
    weights: Path,
    graph: Path,
    settings: Sequence[str],
    states: StatesType,
    onnx: bool,
    activate: bool,
    undirected: bool,
) -> CommandResult:
    from model_store.publish.foreign_model import import_contents

    contents = import_contents(layout, weights, graph, dict(map(_parse_setting, settings)), undirected=undirected)
    name = model or "imported"
    version = store.publish(name, contents, states=states, onnx=onnx, activate=activate)
    manifest = store.model(name).manifest(version)
    content = {"model": name, "version": version, "snapshot": manifest.snapshot, "live": activate}
    return CommandResult(content, describe_publication(name, version, manifest.sizes.nodes, activate))


def _select_model(store: Store, model: str | None) -> ModelVersions:
    """Returns the named model, or the only model of the store."""
    try:
        name = model or store.only_model()
    except DataError as error:
        # The exit code of UnknownModel lets scripts detect that there is no such model.
        raise UnknownModel(f"{error} ({store.root})") from error
    return store.model(name)


def _select_version(versions: ModelVersions, version: str | None) -> int:
    """Returns the named version, or the live one."""
    if version is not None:
        return checked_version(version)
    live = versions.live()
    if live is None:
        raise UnknownVersion(f"no version of {versions.name} is live; name a version")
    return live


def _parse_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise DataError(f"--set {text!r}: expected name=value")
    return name, value


def _warnings(models: list[ModelVersions]) -> tuple[str, ...]:
    problems = [(versions.name, versions.state().problem) for versions in models]
    return tuple(f"{name}: {problem}" for name, problem in problems if problem is not None)


def _describe_pruned(pruned: PruneResult) -> str:
    text = f"removed {len(pruned.removed)} version(s)"
    text += f" ({', '.join(map(str, pruned.removed))})" if pruned.removed else ""
    text += f" and {pruned.leftovers} leftover(s) of killed processes" if pruned.leftovers else ""
    return text + (f"; kept because in use: {', '.join(map(str, pruned.in_use))}" if pruned.in_use else "")


def _describe_manifest(manifest: dict[str, Any], history: Sequence[str]) -> str:
    config, states, classes = manifest["config"], manifest["states"], manifest["classes"] or []
    rounding = max(states["error"].values())
    rows = {
        "model": f"{manifest['model']} {manifest['version']}{' (live)' if manifest['live'] else ''}",
        "snapshot": manifest["snapshot"],
        "created": format_time(manifest["created"]),
        "graph": f"{manifest['nodes']:,} nodes, {manifest['edges']:,} edges, {config['in_features']:,} features",
        "task": f"{config['task']}, {config['out_features']} output(s)",
        "classes": _first_names(classes),
        "architecture": f"{config['layers']} GCN layers, {config['heads']} head(s), hidden size {config['hidden']}, "
        f"{config['normalization']} normalisation, GCN input {config['gnn_input']}",
        "states": states["dtype"] + (f", largest measured error of an answer {rounding:.1e}" if rounding else ""),
        "features": _first_names([column["name"] for column in manifest.get("features") or []]),
        "raw data": _describe_raw_data(manifest),
        "live graph": "{graph} at change {sequence:,}".format(**manifest["live_graph"]) if manifest["live_graph"] else "",
        "size": format_bytes(sum(entry["size"] for entry in manifest["files"].values())),
        **{key: format_values(manifest[key]) for key in ("scores", "dataset", "training", "libraries")},
        "history": "\n".join(history),
    }
    width = max(40, shutil.get_terminal_size().columns - 14)
    lines = []
    for name, value in rows.items():
        parts = value.replace(" ", "\xa0").replace(",\xa0", ", ").splitlines()  # wraps after commas only
        wrapped = [line.replace("\xa0", " ") for part in parts for line in textwrap.wrap(part, width)]
        lines += [f"{name if not number else '':<14}{line}" for number, line in enumerate(wrapped)]
    return "\n".join(lines)


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMES_SHOWN]) + (" ..." if len(names) > MAX_NAMES_SHOWN else "")


def _describe_raw_data(manifest: dict[str, Any]) -> str:
    """Names the parts of the raw data that the snapshot has; a training without one of them needs the original data."""
    files = {layout.FEATURES: "features", layout.FEATURES_VALUES: "sparse features", layout.LABELS: "labels"}
    files[layout.SPLIT] = "split"
    return ", ".join(name for file, name in files.items() if file in manifest["files"]) or "none"
