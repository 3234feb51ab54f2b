"""sgf-serve: the HTTP service.

    sgf-serve --store var/models --port 8000 --workers 2
    sgf-serve --demo                                         serves the model that ships with the package
    sgf-serve --check                                        prints every setting as it would be used, and exits

Every flag is also an environment variable SGF_*; a flag wins. exit codes: 0 done · 1 failed · 2 wrong usage or setting
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from service.settings import THREAD_LIMITS, Settings, SettingsError, table, variable

if TYPE_CHECKING:
    from service.telemetry.logs import LogWriter

DEMO_MODEL = "digits"
SILENCE_SECONDS = 30
"""uvicorn kills a worker that gives no sign of life for this time. On a busy machine, a worker may need more than the
default of 5 s for its first sign."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    given = {field.name: getattr(options, field.name) for field in fields(Settings)}
    if options.table:
        return _shown(table().rstrip())
    if options.demo:
        if options.model not in (None, DEMO_MODEL):
            return _wrong_usage(f"--demo serves the model {DEMO_MODEL}; leave out --model {options.model}")
        given["model"] = DEMO_MODEL
    try:
        settings = Settings.from_env(**given)
    except SettingsError as error:
        return _wrong_usage(str(error))
    if options.check:
        return _shown("\n".join(f"{name}={value}" for name, value in settings.resolved().items()))
    os.environ |= {variable(name): value for name, value in given.items() if value}  # for the workers
    return serve(settings, options.demo)


def _wrong_usage(message: str) -> int:
    print(f"sgf-serve: {message}", file=sys.stderr)
    return 2


def _shown(text: str) -> int:
    from model_store.cli.terminal import print_output  # here: it loads numpy, whose threads `serve` limits first

    print_output(text)
    return 0


def serve(settings: Settings, with_demo: bool = False) -> int:
    for name in THREAD_LIMITS:
        os.environ[name] = os.environ.get(name) or "1"  # rows are few, and workers share the cores; before numpy is imported
    if with_demo and not _install_demo(settings):
        return 1
    import uvicorn

    from service.telemetry import logs
    from service.telemetry.process_info import metrics_folder

    writer = logs.set_up()
    _allow_files(settings.max_connections)
    with metrics_folder() as folder:
        signal.signal(signal.SIGTERM, lambda *_: _end(folder, writer))
        # Read when prometheus_client is imported: nothing here may have done that before.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
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
            proxy_headers=False,  # nothing here looks at a client's address
            timeout_worker_healthcheck=SILENCE_SECONDS,
            timeout_graceful_shutdown=max(5, round(settings.deadline_seconds) + 1),
        )
    return 0


def _install_demo(settings: Settings) -> bool:
    from model_store import StoreError  # here: it loads numpy, whose threads `serve` limits first
    from model_store.demo import install_demo
    from service.announcement import announce_when_ready

    try:
        install_demo(settings.store)
    except (StoreError, OSError) as error:
        print(f"sgf-serve: the demo cannot be installed into the store: {error}", file=sys.stderr)
        return False
    announce_when_ready(settings.host, settings.port)
    return True


def _allow_files(connections: int) -> None:
    """Every connection is an open file; without this the system's default of 1,024 would come first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _end(folder: Path, writer: LogWriter) -> NoReturn:
    """Handles the SIGTERM that uvicorn raises again after the last answer: removes the folder and exits at once. A normal
    exit would wait for threads, one of which may be verifying a large snapshot.
    """
    shutil.rmtree(folder, ignore_errors=True)
    writer.close()
    os._exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("sgf-serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", action="store_true", help="install the demo model if the store lacks it, and serve it")
    parser.add_argument("--check", action="store_true", help="print the settings, secrets hidden, and exit")
    parser.add_argument("--table", action="store_true", help="print the table of docs/configuration.md and exit")
    for field in fields(Settings):
        if not field.metadata["secret"]:  # every user of the machine can see a command line
            parser.add_argument(f"--{field.name.replace('_', '-')}", dest=field.name, help=field.metadata["about"])
        else:
            parser.set_defaults(**{field.name: None})
    return parser


if __name__ == "__main__":
    sys.exit(main())
