"""sgf-worker: takes retraining jobs from Redis and trains them here, one after another.

    sgf-worker                     with the settings of the service: SGF_REDIS_URL, SGF_STORE, SGF_DATA_ROOT ...
    sgf-worker --burst             exits when no job waits

The worker and the service must share the store. A training dies with its worker. On SIGTERM or SIGINT the worker stops the
training and reports its job as failed. After a kill the service notices the missing heartbeat and reports the job as failed.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

from model_store.cli.parser import CommandParser, installed_version
from model_store.cli.terminal import interruptible, print_error
from service.settings import Settings, SettingsError

LOG = logging.getLogger("service.worker")


@interruptible("sgf-worker")
def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser("sgf-worker", description=__doc__)
    parser.add_argument("--burst", action="store_true", help="exit when no job waits")
    options = parser.parse_args(arguments)
    try:
        settings = Settings.from_env()
        if settings.redis_url is None:
            raise SettingsError("SGF_REDIS_URL is empty: there is no Redis to take jobs from")
    except SettingsError as error:
        print_error("sgf-worker", error)
        return 2
    from service.jobs.training_worker import Worker  # imported late: --help must not wait for redis and pydantic
    from service.telemetry import logs

    writer = logs.set_up(settings.log_format)
    if writer.text is not None:
        writer.put([banner(settings, writer.text.style(f"sgf-worker {installed_version()}", "bold")).encode()])
    worker = Worker(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, worker.stop)
    worker.run(options.burst)
    LOG.info("stopped")
    return 0


def banner(settings: Settings, title: str) -> str:
    address = urlsplit(settings.redis_url or "")
    facts = {
        "jobs": f"from Redis at {address.hostname or address.path}{f':{address.port}' if address.port else ''}",
        "store": settings.store,
        "data": settings.data_root,
        "stop": "Ctrl-C; a running training is stopped and reported as failed",
    }
    return "\n".join(("", f"  {title}", "", *(f"  {name:11}{fact}" for name, fact in facts.items()), "", ""))


if __name__ == "__main__":
    sys.exit(main())
