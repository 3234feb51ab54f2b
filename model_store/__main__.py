"""sgf-models: what is in the store, whether it can be trusted, and which version is live.

exit codes: 0 done · 1 refused or failed · 2 wrong usage · 3 no such model or version · 4 a snapshot is damaged
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from model_store.cli import commands
from model_store.cli.commands import DAMAGED, Outcome
from model_store.cli.flags import at_least_one, default_model, default_store
from model_store.cli.output import put_out
from model_store.errors import InvalidName, ProbeError, SnapshotError, StoreError, UnknownModel, UnknownVersion
from sgformer import SgformerError

EXIT_CODES: tuple[tuple[tuple[type[Exception], ...], int], ...] = (
    ((UnknownModel, UnknownVersion), 3),
    ((SnapshotError, ProbeError), DAMAGED),
    ((InvalidName,), 2),
    ((StoreError, SgformerError, OSError, ModuleNotFoundError), 1),
)


def main(arguments: Sequence[str] | None = None) -> int:
    defaults = argparse.Namespace(store=default_store(), model=default_model(), json=False)
    options = _parser().parse_args(arguments, defaults)
    command: Callable[[argparse.Namespace], Outcome] = options.command
    try:
        outcome = command(options)
        for warning in outcome.warnings:
            print(f"sgf-models: warning: {warning}", file=sys.stderr)
        put_out(json.dumps(outcome.result) if options.json else outcome.text)
    except tuple(kind for kinds, _ in EXIT_CODES for kind in kinds) as error:
        print(json.dumps({"error": _reason(error)}) if options.json else f"sgf-models: {_reason(error)}", file=sys.stderr)
        return next(code for kinds, code in EXIT_CODES if isinstance(error, kinds))
    return outcome.exit_code


def _reason(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"this needs {error.name}: pip install 'sgformer-serving[train]'"
    return str(error)


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
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], Outcome], about: str) -> argparse.ArgumentParser:
        added = subparsers.add_parser(name, help=about, description=about, parents=[shared])
        added.set_defaults(command=run)
        return added

    command("list", commands.list_versions, "every version of every model")
    added = command("show", commands.show, "one version: what it is, how it was made, what was live when")
    added.add_argument("version", nargs="?", help="default: the live one")
    added = command("verify", commands.verify, "check every byte of a version and replay its probes")
    added.add_argument("version", nargs="?", help="default: the live one")
    added.add_argument("--all", action="store_true", help="every version")
    command("activate", commands.activate, "verify a version and make it live").add_argument("version")
    command("rollback", commands.rollback, "go back to the version that was live before")
    added = command("prune", commands.prune, "remove old versions (--model: of one model), and what killed processes left")
    added.add_argument("--keep", type=at_least_one, default=3, help="how many of the newest stay (default 3)")
    added = command("export-onnx", commands.export_onnx, "write the request-time part for ONNX Runtime")
    added.add_argument("version", nargs="?", help="default: the live one")
    added.add_argument("--output", type=Path, default=Path("model.onnx"))
    _add_import(command("import", commands.import_model, "publish a model that was trained elsewhere, with its graph"))
    return parser


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layout", choices=["pyg", "authors-large", "authors-medium"], required=True)
    parser.add_argument("--weights", type=Path, required=True, help="its state dict, as safetensors")
    parser.add_argument("--graph", type=Path, required=True, help="graph.npz: x, edge_index, optional node_ids, class_names")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="e.g. graph_weight=0.8")
    parser.add_argument("--states", choices=["float32", "float16"], default="float32", help="float16 halves the disk space")
    parser.add_argument("--no-onnx", action="store_true", help="leave out model.onnx")
    parser.add_argument("--activate", action="store_true", help="make it live")


if __name__ == "__main__":
    sys.exit(main())
