"""The checks of the images can fail: each is given something broken. The images themselves are test_image.py's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.compose_file import settled
from tests.deploy.confinement import NEEDED_STATUS, check_confined, check_status
from tests.deploy.drain import check_drains
from tests.deploy.image import REVISION, mounts
from tests.deploy.inspection import LABELS, check_clean, check_configuration, check_small
from tests.deploy.tools import ROOT
from tests.service.serving import free_port, until

PROMISES = """
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: {at_the_end})
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
client, _ = server.accept()
client.recv(1000)
client.sendall(b"HTTP/1.1 100 Continue\\r\\n\\r\\n")
while True:
    time.sleep(0.05)
"""
"""A server that takes a request."""
ENDS_AT_ONCE = "os._exit(0)"
SENDS_AWAY = "(client.sendall(b'HTTP/1.1 503 Service Unavailable\\r\\n\\r\\n'), os._exit(0))"
ANSWERS_HALF = "(client.sendall(b'HTTP/1.1 200 OK\\r\\ncontent-length: 9\\r\\n\\r\\n{'), os._exit(0))"


@pytest.fixture
def promising(request: pytest.FixtureRequest) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    port = free_port()
    with subprocess.Popen([sys.executable, "-c", PROMISES.format(at_the_end=request.param), str(port)]) as process:
        try:
            until(lambda: f":{port:04X} 00000000:0000 0A" in Path("/proc/net/tcp").read_text())  # it listens
            yield port, process
        finally:
            process.kill()


@pytest.mark.parametrize("promising", [ENDS_AT_ONCE, SENDS_AWAY, ANSWERS_HALF], indirect=True)
def test_a_server_that_leaves_what_it_has_in_hand_is_found(promising: tuple[int, subprocess.Popen[bytes]]) -> None:
    port, process = promising
    with pytest.raises((AssertionError, ValueError), match=r"left a request|it answered|Expecting"):
        check_drains(port, lambda: process.send_signal(signal.SIGTERM))


def test_this_process_is_not_confined() -> None:
    with pytest.raises(AssertionError, match=r"Uid|CapEff|NoNewPrivs|mounted"):
        check_confined(os.getpid())


@pytest.mark.parametrize(
    ("status", "root", "told"),
    [
        ({"Uid": "10001\t0\t0\t0"}, "ro", "Uid"),
        ({"CapEff": "00000000a80425fb"}, "ro", "CapEff"),
        ({"NoNewPrivs": "0"}, "ro", "NoNewPrivs"),
        ({}, "rw", "mounted"),
    ],
)
def test_one_freedom_is_enough_to_be_found(status: dict[str, str], root: str, told: str) -> None:
    check_status(NEEDED_STATUS, {"/": ["ro", "relatime"]})
    with pytest.raises(AssertionError, match=told):
        check_status(NEEDED_STATUS | status, {"/": [root, "relatime"], "/tmp": ["ro"]})  # noqa: S108  # of a container


NEEDED = {"service", "onnxruntime", "numpy"}


@pytest.mark.parametrize(
    ("packages", "size_bytes", "told"),
    [
        (NEEDED - {"numpy"}, 1, "not all"),
        (NEEDED | {"torch"}, 1, "nobody needs .'torch'"),
        (NEEDED | {"pip"}, 1, "nobody needs .'pip'"),
        (NEEDED, 400_000_000, "400 MB"),
    ],
)
def test_an_image_that_is_not_small_is_found(packages: set[str], size_bytes: int, told: str) -> None:
    check_small(NEEDED, 300_000_000)
    with pytest.raises(AssertionError, match=told):
        check_small(packages, size_bytes)


@pytest.mark.parametrize("left", ["etc/pip.conf", "run/registry/ca.crt"])
def test_what_the_build_left_behind_is_found(tmp_path: Path, left: str) -> None:
    (tmp_path / left).parent.mkdir(parents=True)
    (tmp_path / left).touch()
    check_clean(tmp_path, {})
    (tmp_path / left).write_text("index-url = of this machine")
    with pytest.raises(AssertionError, match="was left"):
        check_clean(tmp_path, {})


@pytest.mark.parametrize("pair", ["PIP_INDEX_URL=x", f"HERE={ROOT}"])
def test_what_the_configuration_tells_of_this_machine_is_found(tmp_path: Path, pair: str) -> None:
    with pytest.raises(AssertionError, match="configuration"):
        check_clean(tmp_path, {"Env": [pair]})


@pytest.mark.parametrize(
    ("changed", "labels", "told"),
    [
        ({"Entrypoint": ["sh", "-c", "sgf-serve"]}, {}, "Entrypoint"),
        ({"User": "0:0"}, {}, "User"),
        ({"StopSignal": "SIGKILL"}, {}, "StopSignal"),
        ({}, {"version": "unknown"}, "version is unknown"),
        ({}, {"revision": "unknown"}, "revision is unknown"),
    ],
)
def test_another_configuration_is_found(changed: dict[str, Any], labels: dict[str, str], told: str) -> None:
    right = {"title": "sgformer-serving", "licenses": "Apache-2.0", "version": "0.2.0", "revision": REVISION}
    config = {"Entrypoint": ["sgf-serve"], "User": "10001:10001", "StopSignal": "SIGTERM"}
    check_configuration(config | {"Labels": {LABELS + name: value for name, value in right.items()}}, REVISION)
    given = {LABELS + name: value for name, value in (right | labels).items()}
    with pytest.raises(AssertionError, match=told):
        check_configuration(config | changed | {"Labels": given}, REVISION)


def test_containers_are_run_with_the_volumes_of_compose() -> None:
    auth, store = "container/run/redis-auth", "container/var/lib/sgformer/store"
    assert list(mounts(settled()["services"]["service"], Path("container"), Path("volumes"))) == [
        f"mkdir -p {store} && mount --bind volumes/store {store}",
        f"mount -o remount,ro,bind {store}",
        f"mkdir -p {auth} && mount --bind volumes/redis-auth {auth}",
        f"mount -o remount,ro,bind {auth}",
        "mount -t tmpfs -o size=64m,mode=1777 tmpfs container/tmp",
    ]
