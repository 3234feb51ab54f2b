"""The checks of `sgf-serve` before a worker starts: a wrong port or model causes one line, not a log of failed attempts."""

from __future__ import annotations

import errno
import socket
from dataclasses import replace

from model_store import Store, StoreError
from model_store.demo import install_demo
from model_store.suggestions import did_you_mean
from service.settings import Settings

GET_A_MODEL = "train one (sgf-train --data FOLDER --activate) or serve the demo (sgf-serve --demo)"
WAIT = "--wait-for-model starts without one"


class NotStartable(Exception):  # noqa: N818  # names the condition
    """The service cannot start. The text says why and what to do; the exit code is 2 if the command line must change."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def prepare(settings: Settings, with_demo: bool) -> Settings:
    """Checks the port, then installs the demo or checks the model. Returns the settings with the port, which is never 0.

    Raises:
        NotStartable: the port is in use, there is no model to serve, or the store cannot be used.
    """
    settings = replace(settings, port=_usable_port(settings.host, settings.port))
    try:
        if with_demo:
            install_demo(settings.store)
        elif not settings.wait_for_model:
            _check_model(settings)
    except (StoreError, OSError) as error:
        problem = "the demo cannot be installed into the store" if with_demo else "the store cannot be read"
        raise NotStartable(f"{problem}: {error}", exit_code=1) from error
    return settings


def _usable_port(host: str, port: int) -> int:
    """The port, or a free one for port 0. The service binds it again: another program may take it in between."""
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((address[0], port, *address[2:]))
                port = listener.getsockname()[1]
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            advice = "stop the program that listens there, or choose another port with --port (SGF_PORT)"
            raise NotStartable(f"port {port} of {host} is in use: {advice}") from None
        raise NotStartable(f"cannot listen on {host}, port {port} ({error.strerror}): see --host and --port") from None
    return port


def _check_model(settings: Settings) -> None:
    store, name = Store(settings.store), settings.model
    names = store.models()
    if not names:
        raise NotStartable(f"the store {store.root} has no model: {GET_A_MODEL}; {WAIT}")
    if name is None and len(names) > 1:
        raise NotStartable(f"the store {store.root} has several models ({', '.join(names)}): choose one with --model")
    if name is not None and name not in names:
        existing = f"it has {', '.join(names)}{did_you_mean(name, names)}"
        raise NotStartable(f"there is no model {name} in the store {store.root}, {existing} ({WAIT})")
    versions = store.model(name or names[0])
    if versions.live() is None:
        command = f"sgf-models --store {store.root} --model {versions.name} activate {versions.versions()[-1]}"
        raise NotStartable(f"no version of {versions.name} is live: {command}; {WAIT}")
