"""sgf-graph: change, compact and export the live graph of a model.

    sgf-graph apply changes.jsonl                  send operations to a running service; a second run continues
    sgf-graph status                               the graph and its log, from the store, or from a service (--url)
    sgf-graph compact                              make a version of the graph as it is now (needs the admin token)
    sgf-graph export graph.npz                     write the graph as it is now, for sgf-train --data

exit codes: 0 done · 1 refused or failed · 2 wrong usage · 130 interrupted
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from model_store.cli.parser import CommandParser
from model_store.cli.terminal import (
    at_least_one,
    default_model,
    default_store,
    interruptible,
    print_error,
    print_output,
)

URL = "http://127.0.0.1:8000"
KEY_HELP = "key of the service; other users of this machine can see flags: prefer the variable {}"


class CommandResult(NamedTuple):
    content: dict[str, Any]
    """What --json prints."""
    text: str


@interruptible("sgf-graph")
def main(arguments: Sequence[str] | None = None) -> int:
    options = vars(_parser().parse_args(arguments))
    run: Callable[..., CommandResult] = options.pop("run")
    as_json = options.pop("json")
    # Imported late: --help must not wait for httpx and numpy.
    import httpx

    from model_store import StoreError
    from sgformer_client import ServiceError

    try:
        result = run(**options)
    except (StoreError, ServiceError, httpx.HTTPError, OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, httpx.TransportError):
            reason = f"no answer from {options.get('url')}: {reason}"
        if as_json:
            sys.stderr.write(json.dumps({"error": reason}) + "\n")
        else:
            print_error("sgf-graph", reason)
        return 1
    print_output(json.dumps(result.content) if as_json else result.text)
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("sgf-graph", description=__doc__)
    subparsers = parser.add_subparsers(required=True, title="commands", metavar="COMMAND")

    def command(name: str, run: Callable[..., CommandResult], about: str) -> argparse.ArgumentParser:
        subparser = subparsers.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        subparser.add_argument("--json", action="store_true", help="print JSON, also for errors")
        subparser.set_defaults(run=run)
        return subparser

    apply = command("apply", _apply, "send the operations of a file to a running service, each exactly once")
    apply.add_argument("file", type=Path, metavar="FILE.jsonl", help='a line is an operation, or {"operations": [...]}')
    _add_service(apply, "SGF_WRITE_KEYS", URL)
    apply.add_argument("--batch", type=at_least_one, default=500, metavar="N", help="operations in a request")
    apply.add_argument(
        "--upsert", action="store_true", help="adding what exists is an update; removing what does not exist has no effect"
    )
    apply.add_argument("--quiet", action="store_true", help="no progress")
    status = command("status", _status, "show the state of the live graph")
    _add_service(status, "SGF_API_KEYS", None)
    _add_store(status)
    compact = command("compact", _compact, "make a version of the graph as it is now, and wait until it is live")
    _add_service(compact, "SGF_ADMIN_TOKEN", URL)
    compact.add_argument("--no-wait", action="store_false", dest="wait", help="only submit the job")
    export = command("export", _export, "write the graph as it is now to a file, from the store")
    export.add_argument("file", type=Path, metavar="OUT.npz", help="the file to write, as sgf-train --data reads it")
    _add_store(export)
    return parser


def _add_service(parser: argparse.ArgumentParser, variable: str, url: str | None) -> None:
    parser.add_argument("--url", default=url, help="address of the service")
    key = os.environ.get(variable, "").split(",")[0].strip() or None
    parser.set_defaults(key=key)
    parser.add_argument("--key", default=argparse.SUPPRESS, metavar="KEY", help=KEY_HELP.format(variable))


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store", type=Path, default=default_store(), metavar="FOLDER", help="folder of the models (SGF_STORE)"
    )
    parser.add_argument(
        "--model", default=default_model(), metavar="NAME", help="which model (SGF_MODEL), if there are several"
    )


def _apply(file: Path, url: str, key: str | None, batch: int, upsert: bool, quiet: bool) -> CommandResult:
    from service.graph_cli.applying import apply_file
    from sgformer_client import Client

    with Client(url, key=key, timeout=60.0, retries=10, longest_wait=30.0) as client:
        applied = apply_file(client, file, batch, upsert, show=not quiet and sys.stderr.isatty())
    earlier = f" ({applied.earlier_lines:,} lines were applied before)" if applied.earlier_lines else ""
    text = f"{file.name}: {applied.operations:,} operations applied, {applied.skipped:,} skipped{earlier}"
    return CommandResult(
        applied._asdict(), text + (f"; the graph is at change {applied.sequence:,}" if applied.sequence else "")
    )


def _status(url: str | None, key: str | None, store: Path, model: str | None) -> CommandResult:
    from service.graph_cli.state import describe_state, stored_state

    if url is None:
        state = stored_state(store, model)
    else:
        from sgformer_client import Client

        with Client(url, key=key) as client:
            state = client.graph().model_dump(exclude_none=True)
    return CommandResult(state, describe_state(state))


def _compact(url: str, key: str | None, wait: bool) -> CommandResult:
    from service.graph_cli.compacting import AdminClient

    client = AdminClient(url, key=key, timeout=30.0)
    with client:
        job = client.compact(wait)
    if not wait:
        return CommandResult(job, f"job {job['id']} was submitted: see /admin/jobs/{job['id']}")
    return CommandResult(
        job, f"{job['model']} version {job['version']} contains the changes; it is {'' if job['live'] else 'not '}live"
    )


def _export(file: Path, store: Path, model: str | None) -> CommandResult:
    from service.graph_cli.state import export_graph

    facts = export_graph(file, store, model)
    return CommandResult(facts, "{file}: {nodes:,} nodes, {edges:,} edges, at change {sequence:,}".format(**facts))


if __name__ == "__main__":
    sys.exit(main())
