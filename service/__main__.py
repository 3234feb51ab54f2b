"""sgf-serve: the HTTP service.

    sgf-serve --store var/models --port 8000 --workers 2
    sgf-serve --demo                                         serves the model that ships with the package
    sgf-serve --check                                        prints every setting as it would be used, and exits

Settings are environment variables SGF_* or flags; a flag wins. exit codes: 0 done · 1 failed · 2 wrong usage or setting
"""

from __future__ import annotations

import logging
import os
import resource
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from service.settings import THREAD_LIMITS, Settings, SettingsError, default, table, variable

if TYPE_CHECKING:
    from uvicorn.supervisors.multiprocess import Process

    from model_store.cli.parser import CommandParser
    from service.telemetry.logs import LogWriter

LOG = logging.getLogger("service")
DEMO_MODEL = "digits"
SILENCE_SECONDS = 30
"""uvicorn kills a worker that does not answer its health check for this time. On a busy machine the first answer may take
longer than the default of 5 s."""


def main(arguments: Sequence[str] | None = None) -> int:
    for name in THREAD_LIMITS:
        os.environ[name] = os.environ.get(name) or "1"  # before numpy is imported; rows are few, and workers share the cores
    from model_store.cli.terminal import interruptible  # imported late: it loads numpy

    return interruptible("sgf-serve")(_run)(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    from model_store.cli.terminal import print_error, print_output
    from service.preflight import NotStartable, prepare

    options = _parser().parse_args(arguments)
    flags = {field.name: getattr(options, field.name) for field in fields(Settings)}
    if options.table:
        print_output(table().rstrip())
        return 0
    if options.demo:
        if options.model not in (None, DEMO_MODEL):
            print_error("sgf-serve", f"--demo serves the model {DEMO_MODEL}; leave out --model {options.model}")
            return 2
        flags["model"] = DEMO_MODEL
    try:
        settings = Settings.from_env(**flags)
        if options.check:
            print_output("\n".join(f"{name}={value}" for name, value in settings.resolved().items()))
            return 0
        settings = prepare(settings, options.demo)
    except (SettingsError, NotStartable) as error:
        print_error("sgf-serve", error)
        return error.exit_code if isinstance(error, NotStartable) else 2
    flags["port"] = str(settings.port)
    os.environ |= {variable(name): value for name, value in flags.items() if value}  # for the workers
    return serve(settings)


def serve(settings: Settings) -> int:
    import uvicorn
    from uvicorn.supervisors.multiprocess import Process

    from service.telemetry import logs
    from service.telemetry.process_info import FOLDER_VARIABLE, metrics_folder

    Process.start = _start_worker  # type: ignore[method-assign, assignment]
    writer = logs.set_up(settings.log_format)
    _allow_files(settings.max_connections)
    with metrics_folder() as folder:
        signal.signal(signal.SIGTERM, lambda *_: _end(folder, writer))
        # prometheus_client reads this variable when it is imported, so no module may have imported it yet.
        os.environ[FOLDER_VARIABLE] = str(folder)
        uvicorn.run(
            "service.app:app_from_env",
            factory=True,
            host=settings.host,
            port=settings.port,
            workers=settings.workers,
            http="service.http.protocol:Protocol",  # by name: it is imported where it runs
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            headers=[("x-content-type-options", "nosniff")],
            proxy_headers=False,  # the access log has the peer of the connection: clients can forge the headers of a proxy
            timeout_worker_healthcheck=SILENCE_SECONDS,
            timeout_graceful_shutdown=max(5, round(settings.deadline_seconds) + 1),
        )
    LOG.info("stopped")
    return 0


def _start_worker(worker: Process) -> None:
    """Replaces a method of uvicorn, which keeps the worker's end of their pipe open: then it does not notice that a worker
    dies before its first health check, and waits for SILENCE_SECONDS, in which it restarts no other worker.
    """
    worker.process.start()
    worker.child_conn.close()


def _allow_files(connections: int) -> None:
    """Raises the limit of open files above the limit of connections: many systems allow 1,024 files by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _end(folder: Path, writer: LogWriter) -> NoReturn:
    """Handles the SIGTERM that uvicorn raises again after the last answer: removes the folder of metrics and exits at once.
    A normal exit would wait for threads, one of which may be verifying a large snapshot.
    """
    shutil.rmtree(folder, ignore_errors=True)
    LOG.info("stopped")
    writer.close()
    os._exit(0)


def _parser() -> CommandParser:
    from model_store.cli.parser import CommandParser

    parser = CommandParser("sgf-serve", usage="sgf-serve [options]", description=__doc__)
    parser.add_argument("--demo", action="store_true", help="install the demo model if the store lacks it, and serve it")
    parser.add_argument("--check", action="store_true", help="print the settings, secrets hidden, and exit")
    parser.add_argument("--table", action="store_true", help="print the table of docs/configuration.md and exit")
    for field in fields(Settings):
        if not field.metadata["secret"]:  # every user of the machine can see a command line
            is_switch = isinstance(field.default, bool)
            arguments: dict[str, Any] = {"nargs": "?", "const": "true", "metavar": "true|false"} if is_switch else {}
            about = f"{field.metadata['about']} ({variable(field.name)}, default {default(field)})"
            parser.add_argument(f"--{field.name.replace('_', '-')}", dest=field.name, help=about, **arguments)
        else:
            parser.set_defaults(**{field.name: None})
    return parser


if __name__ == "__main__":
    sys.exit(main())
