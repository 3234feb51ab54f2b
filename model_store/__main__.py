"""Lists, verifies, activates and prunes the versions of the models in a store."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from model_store.cli import commands
from model_store.cli.commands import DAMAGED, FAILED, CommandResult
from model_store.cli.parser import CommandParser
from model_store.cli.terminal import (
    at_least_one,
    default_log,
    default_model,
    default_store,
    interruptible,
    print_error,
    print_output,
)
from model_store.errors import InvalidName, ProbeError, SnapshotError, StoreError, UnknownModel, UnknownVersion
from model_store.store import Store
from sgformer import SgformerError

EXIT_CODES: tuple[tuple[tuple[type[Exception], ...], int], ...] = (
    ((UnknownModel, UnknownVersion), 3),
    ((SnapshotError, ProbeError), DAMAGED),
    ((InvalidName,), 2),
    ((StoreError, SgformerError, OSError, ModuleNotFoundError), FAILED),
)
EPILOG = """examples:
  sgf-models list                      every version of every model
  sgf-models show 2 --model digits     one version in detail
  sgf-models verify --all              check every file and replay the probes
  sgf-models activate 2                make version 2 live
  sgf-models rollback                  undo that

exit codes:
  0  success
  1  refused or failed
  2  wrong usage
  3  no such model or version
  4  a snapshot is damaged
"""


@interruptible("sgf-models")
def main(arguments: Sequence[str] | None = None) -> int:
    defaults = argparse.Namespace(store=default_store(), model=default_model(), json=False)
    options = vars(_parser().parse_args(arguments, defaults))
    run: Callable[..., CommandResult] = options.pop("run")
    as_json, root, model = options.pop("json"), options.pop("store"), options.pop("model")
    try:
        result = run(Store(root, redis=default_log()), model, **options)
        for warning in result.warnings:
            print_error("sgf-models", f"warning: {warning}")
        print_output(json.dumps(result.content) if as_json else result.text)
    except tuple(kind for kinds, _ in EXIT_CODES for kind in kinds) as error:
        if as_json:
            print(json.dumps({"error": _reason(error)}), file=sys.stderr)
        else:
            print_error("sgf-models", _reason(error))
        return next(code for kinds, code in EXIT_CODES if isinstance(error, kinds))
    return result.exit_code


def _reason(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"this needs {error.name}: pip install 'sgformer-serving[train]'"
    return str(error)


def _parser() -> argparse.ArgumentParser:
    # These options may stand before or after the command. They have no defaults here: the default of the command's
    # option would overwrite a value given before the command.
    shared: Any = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    shared.add_argument("--store", type=Path, metavar="FOLDER", help="folder of the models (SGF_STORE, default var/models)")
    shared.add_argument("--model", metavar="NAME", help="which model (SGF_MODEL); not needed if there is only one")
    shared.add_argument("--json", action="store_true", help="print JSON, also for errors")
    parser = CommandParser("sgf-models", description=__doc__, epilog=EPILOG, parents=[shared])
    subparsers = parser.add_subparsers(required=True, title="commands", metavar="COMMAND")

    def command(name: str, run: Callable[..., CommandResult], help_text: str) -> argparse.ArgumentParser:
        subparser = subparsers.add_parser(
            name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}.", parents=[shared]
        )
        subparser.set_defaults(run=run)
        return subparser

    def add_version(subparser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        subparser.add_argument("version", nargs="?", metavar="VERSION", help="a number; default: the live version")
        return subparser

    command("list", commands.list_versions, "list every version of every model, or of --model")
    add_version(command("show", commands.show_version, "show a version: graph, architecture, training, scores, history"))
    verify = add_version(command("verify", commands.verify_versions, "check every file of a version and replay its probes"))
    verify.add_argument("--all", action="store_true", dest="all_versions", help="verify every version of the model")
    activate = command("activate", commands.activate_version, "verify a version and make it live")
    activate.add_argument("version", metavar="VERSION", help="a number, see `sgf-models list`")
    rollback = command("rollback", commands.roll_back, "make the previous live version live again")
    for subparser in (activate, rollback):
        subparser.add_argument(
            "--discard-changes",
            action="store_true",
            help="activate a version over other data although the live graph has changes, which are then no longer served",
        )
    prune = command(
        "prune", commands.prune_versions, "remove old versions, and what killed processes left, of every model or of --model"
    )
    prune.add_argument("--keep", type=at_least_one, default=3, metavar="N", help="newest versions to keep")
    remove = command(
        "remove", commands.remove_versions, "remove versions that are not live, the roll-back target or the newest"
    )
    remove.add_argument("versions", nargs="+", metavar="VERSION", help="a number, see `sgf-models list`")
    export = add_version(command("export-onnx", commands.export_onnx, "write the request-time model for ONNX Runtime"))
    export.add_argument("--output", type=Path, default=Path("model.onnx"), metavar="FILE", help="the file to write")
    demo = command("demo", commands.install_demo, "install the demo that ships with the package into a store without models")
    demo.add_argument("--pack", type=Path, metavar="FOLDER", help="pack this version folder as the demo instead")
    _add_import_options(command("import", commands.import_model, "publish a model that another program has trained"))
    return parser


def _add_import_options(parser: argparse.ArgumentParser) -> None:
    layouts, states = ["pyg", "authors-large", "authors-medium"], ["float32", "float16"]
    parser.add_argument("--layout", choices=layouts, required=True, help="the program that the weights come from")
    parser.add_argument("--weights", type=Path, required=True, metavar="FILE", help="state dict as safetensors")
    parser.add_argument(
        "--graph", type=Path, required=True, metavar="FILE", help="npz file: x, edge_index; optional node_ids, class_names"
    )
    undirected_help = "accept a graph with one-way or repeated edges, and serve it as undirected"
    parser.add_argument("--undirected", action="store_true", help=undirected_help)
    setting_help = "a setting that the weights do not show, e.g. graph_weight=0.8; may be repeated"
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="NAME=VALUE", help=setting_help)
    parser.add_argument("--states", choices=states, default="float32", help="float16 halves the size on disk")
    parser.add_argument("--no-onnx", action="store_false", dest="onnx", help="do not write model.onnx")
    parser.add_argument("--activate", action="store_true", help="make the new version live")


if __name__ == "__main__":
    sys.exit(main())
