"""sgf-serve: the HTTP service.

    sgf-serve --store var/models --port 8000 --workers 2
    sgf-serve --check                                        prints every setting as it would be used, and exits

Every flag is also an environment variable SGF_*; a flag wins. exit codes: 0 done · 1 failed · 2 wrong usage or setting
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import fields

from service.settings import Settings, SettingsError, table, variable

SILENCE_SECONDS = 30
"""After so long without a sign of life uvicorn kills a worker. Its own 5 s are less than a worker may need for its first one
on a machine that is very busy, so that none ever came up."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    given = {one.name: getattr(options, one.name) for one in fields(Settings)}
    if options.table:
        print(table(), end="")
        return 0
    try:
        settings = Settings.from_env(**given)
    except SettingsError as error:
        print(f"sgf-serve: {error}", file=sys.stderr)
        return 2
    if options.check:
        for name, value in settings.resolved().items():
            print(f"{name}={value}")
        return 0
    os.environ |= {variable(name): value for name, value in given.items() if value}  # for the workers
    return serve(settings)


def serve(settings: Settings) -> int:
    import uvicorn

    from service import logs

    logs.set_up()
    with tempfile.TemporaryDirectory(prefix="sgf-metrics-") as folder:
        # Where all workers' metrics meet. Read when prometheus_client is imported: nothing here may have done that before.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        uvicorn.run(
            "service.app:app_from_env",
            factory=True,
            host=settings.host,
            port=settings.port,
            workers=settings.workers,
            http="service.protocol:Protocol",  # by name: it is imported where it runs
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,  # nothing here looks at a client's address
            timeout_worker_healthcheck=SILENCE_SECONDS,
            timeout_graceful_shutdown=max(5, round(settings.deadline_seconds) + 1),
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("sgf-serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="print the settings, secrets hidden, and exit")
    parser.add_argument("--table", action="store_true", help="print the table of docs/configuration.md and exit")
    for one in fields(Settings):
        if not one.metadata["secret"]:  # a command line is seen by everybody on the machine
            parser.add_argument(f"--{one.name.replace('_', '-')}", dest=one.name, help=one.metadata["about"])
        else:
            parser.set_defaults(**{one.name: None})
    return parser


if __name__ == "__main__":
    sys.exit(main())
