"""sgf-models: what is in the store, whether it can be trusted, and which version is live.

exit codes: 0 done · 1 refused or failed · 2 wrong usage · 3 no such model or version · 4 a snapshot is damaged
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from model_store.errors import DataError, InvalidName, ProbeError, SnapshotError, StoreError, UnknownModel, UnknownVersion
from model_store.manifest import Manifest
from model_store.store import ModelVersions, Store
from model_store.tables import describe, human_bytes, table
from sgformer import SgformerError

Outcome = tuple[Any, str]
"""What --json prints, and what a person reads."""
EXIT_CODES: tuple[tuple[tuple[type[Exception], ...], int], ...] = (
    ((UnknownModel, UnknownVersion), 3),
    ((SnapshotError, ProbeError), 4),
    ((InvalidName,), 2),
    ((StoreError, SgformerError, OSError), 1),
)


def main(arguments: Sequence[str] | None = None) -> int:
    defaults = argparse.Namespace(
        store=Path(os.environ.get("SGF_STORE") or "var/models"), model=os.environ.get("SGF_MODEL") or None, json=False
    )
    options = _parser().parse_args(arguments, defaults)
    command: Callable[[argparse.Namespace], Outcome] = options.command
    try:
        result, text = command(options)
    except tuple(kind for kinds, _ in EXIT_CODES for kind in kinds) as error:
        code = next(code for kinds, code in EXIT_CODES if isinstance(error, kinds))
        print(json.dumps({"error": str(error)}) if options.json else f"sgf-models: {error}", file=sys.stderr)
        return code
    print(json.dumps(result, ensure_ascii=False) if options.json else text)
    return 0


def _list(options: argparse.Namespace) -> Outcome:
    store = Store(options.store)
    found, rows = [], []
    for name in [options.model] if options.model else store.models():
        versions = store.model(name)
        live = versions.live()
        for version in versions.versions():
            entry = _entry(versions, version, live)
            found.append(entry)
            rows.append([name, str(version), "live" if entry["live"] else "", *_columns(entry)])
    if not rows:
        return [], f"No models in {options.store} yet. Train one (sgf-train), or import one (sgf-models import)."
    return found, table(["model", "version", "", "created", "nodes", "edges", "states", "size", "scores"], rows)


def _entry(versions: ModelVersions, version: int, live: int | None) -> dict[str, Any]:
    try:
        manifest = versions.manifest(version)
    except SnapshotError as error:
        return {"model": versions.name, "version": version, "live": version == live, "damaged": str(error)}
    size = sum(file.size for file in manifest.files.values())
    return {
        "model": versions.name,
        "version": version,
        "live": version == live,
        "snapshot": manifest.snapshot,
        "created": manifest.created,
        "nodes": manifest.sizes.nodes,
        "edges": manifest.sizes.adjacency_entries // 2,
        "states": manifest.sizes.states,
        "bytes": size,
        "scores": dict(manifest.scores),
    }


def _columns(entry: dict[str, Any]) -> list[str]:
    if "damaged" in entry:
        return [f"damaged: {entry['damaged']}", "", "", "", "", ""]
    scores = ", ".join(f"{name} {_number(score)}" for name, score in entry["scores"].items())
    sizes = [f"{entry['nodes']:,}", f"{entry['edges']:,}", entry["states"], human_bytes(entry["bytes"])]
    return [entry["created"], *sizes, scores]


def _show(options: argparse.Namespace) -> Outcome:
    versions = _model(options)
    version = options.version or _live(versions)
    manifest: Manifest = versions.manifest(version)
    content = json.loads(manifest.to_json())
    content |= {"version": int(version), "live": int(version) == versions.live()}
    return content, describe(content, versions.history().events)


def _verify(options: argparse.Namespace) -> Outcome:
    versions = _model(options)
    numbers = versions.versions() if options.all else [options.version or _live(versions)]
    results, lines = [], []
    for version in numbers:
        errors = versions.verify(version)
        results.append({"version": int(version), "probes": errors})
        listed = ", ".join(f"{name} {error:.0e}" for name, error in errors.items())
        lines.append(f"{versions.name} {version}: every file as published; probes off by {listed}")
    return results, "\n".join(lines)


def _activate(options: argparse.Namespace) -> Outcome:
    versions = _model(options)
    before = versions.live()
    versions.activate(options.version)
    return {
        "live": versions.live(),
        "before": before,
    }, f"{versions.name} {versions.live()} is live (before: {before or 'none'})"


def _rollback(options: argparse.Namespace) -> Outcome:
    versions = _model(options)
    before, now = versions.live(), versions.rollback()
    return {"live": now, "before": before}, f"{versions.name} is back at {now} (before: {before})"


def _prune(options: argparse.Namespace) -> Outcome:
    versions = _model(options)
    pruned = versions.prune(options.keep)
    text = f"removed {len(pruned.removed)} version(s)"
    text += f" ({', '.join(map(str, pruned.removed))})" if pruned.removed else ""
    text += f" and {pruned.leftovers} leftover(s) of processes that died" if pruned.leftovers else ""
    text += f"; being read, kept: {', '.join(map(str, pruned.in_use))}" if pruned.in_use else ""
    return {"removed": pruned.removed, "leftovers": pruned.leftovers, "in_use": pruned.in_use}, text


def _export_onnx(options: argparse.Namespace) -> Outcome:
    with _model(options).open(options.version) as snapshot:
        if snapshot.onnx_path is not None:
            shutil.copyfile(snapshot.onnx_path, options.output)
        else:
            from model_store.request_head import export_request_head

            export_request_head(snapshot.manifest.config, snapshot.weights, options.output)
    size = options.output.stat().st_size
    return {"output": str(options.output), "bytes": size}, f"wrote {options.output} ({human_bytes(size)})"


def _import(options: argparse.Namespace) -> Outcome:
    from model_store.importing import imported

    contents = imported(options.layout, options.weights, options.graph, dict(_switch(one) for one in options.set))
    name = options.model or "imported"
    store = Store(options.store)
    version = store.publish(name, contents, states=options.states, activate=options.activate)
    manifest = store.model(name).manifest(version)
    state = "live" if options.activate else f"not live yet: sgf-models --model {name} activate {version}"
    result = {"model": name, "version": version, "snapshot": manifest.snapshot, "live": options.activate}
    return result, f"published {name} {version}, {manifest.sizes.nodes:,} nodes, {state}"


def _switch(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise DataError(f"--set {text!r}: expected name=value")
    return name, value


def _model(options: argparse.Namespace) -> ModelVersions:
    """The model that was named, or the only one there is."""
    store = Store(options.store)
    if options.model:
        return store.model(options.model)
    names = store.models()
    if len(names) != 1:
        raise UnknownModel(f"say which model with --model: the store {options.store} has {', '.join(names) or 'none'}")
    return store.model(names[0])


def _live(versions: ModelVersions) -> int:
    live = versions.live()
    if live is None:
        raise UnknownVersion(f"no version of {versions.name} is live; say which one")
    return live


def _number(score: Any) -> str:
    return f"{score:.4g}" if isinstance(score, float) else str(score)


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    # Before or after the command; without a default of their own, or the flag of the command would undo the one before it.
    common: tuple[tuple[str, dict[str, Any]], ...] = (
        ("--store", {"type": Path, "help": "folder of the models (SGF_STORE, default var/models)"}),
        ("--model", {"help": "which model (SGF_MODEL; not needed where there is one)"}),
        ("--json", {"action": "store_true", "help": "print JSON"}),
    )
    for flag, details in common:
        shared.add_argument(flag, default=argparse.SUPPRESS, **details)
    parser = argparse.ArgumentParser(
        "sgf-models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[shared]
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], Outcome], about: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=about, description=about, parents=[shared])
        added.set_defaults(command=run)
        return added

    command("list", _list, "every version of every model")
    added = command("show", _show, "one version: what it is, how it was made, what was live when")
    added.add_argument("version", nargs="?", help="default: the live one")
    added = command("verify", _verify, "check every byte of a version and replay its probes")
    added.add_argument("version", nargs="?", help="default: the live one")
    added.add_argument("--all", action="store_true", help="every version")
    command("activate", _activate, "verify a version and make it live").add_argument("version")
    command("rollback", _rollback, "go back to the version that was live before")
    added = command("prune", _prune, "remove old versions and what killed processes left behind")
    added.add_argument("--keep", type=_at_least_one, default=3, help="how many of the newest stay (default 3)")
    added = command("export-onnx", _export_onnx, "write the request-time part for ONNX Runtime")
    added.add_argument("version", nargs="?", help="default: the live one")
    added.add_argument("--output", type=Path, default=Path("model.onnx"))
    added = command("import", _import, "publish a model that was trained elsewhere, with its graph")
    added.add_argument("--layout", choices=["pyg", "authors-large", "authors-medium"], required=True)
    added.add_argument("--weights", type=Path, required=True, help="its state dict, as safetensors")
    added.add_argument("--graph", type=Path, required=True, help="graph.npz: x, edge_index, optional node_ids, class_names")
    added.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="e.g. graph_weight=0.8")
    added.add_argument("--states", choices=["float32", "float16"], default="float32")
    added.add_argument("--activate", action="store_true", help="make it live")
    return parser


def _at_least_one(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
