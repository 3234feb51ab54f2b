"""`sgf-serve` and `sgf-worker` in a terminal: banner, log lines, Ctrl-C, and what stops the start."""

from __future__ import annotations

import json
import re
import shlex
import socket
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from model_store import NodeIds, Store
from service.__main__ import main
from tests.model_store.samples import publish
from tests.service.serving import CONTENTS, free_port, in_processes, refused, start_module, until
from tests.terminals import Terminal

BANNER = r"(?s)  sgf-serve \d.*?\ncurl [^\n]*\n"
LINE = r"\r\d\d:\d\d:\d\d "


def serve(store: Path, *flags: str, columns: int = 80, **environ: str) -> Terminal:
    flags = ("--store", str(store), "--port", str(free_port()), *flags)
    return Terminal(sys.executable, "-m", "service", *flags, columns=columns, **environ)


def post(curl: str, **replaced: str) -> httpx.Response:
    """Sends the request of a curl command."""
    _, url, *words = shlex.split(curl.replace("$SGF_API_KEYS", replaced.get("key", "")))
    options = dict(zip(words[::2], words[1::2], strict=True))
    headers = dict([options["-H"].split(": ", 1)] if "-H" in options else [], **{"content-type": "application/json"})
    return httpx.post(url, content=options["--json"], headers=headers)


def test_a_terminal_gets_a_banner_and_text_lines(store: Path) -> None:
    with serve(store) as terminal:
        banner = terminal.read_until(BANNER)[0]
        address = re.search(r"address +(http://127\.0\.0\.1:\d+)\n", banner)[1]  # type: ignore[index]
        for words in (
            "demo, version 1, snapshot",
            "60 nodes",
            "5 features",
            "3: x, y, z",
            "numpy (cpu), 1 worker",
            "Ctrl-C",
        ):
            assert words in banner
        assert f"{address}/docs" in banner
        assert max(map(len, banner.splitlines()[:-1])) <= 80
        assert post(banner.splitlines()[-1]).status_code == 200
        refused(httpx.post(f"{address}/predict", json={"nodes": [99]}), 404, "unknown_node")
        terminal.read_until(LINE + r"200     POST /predict  +\d+\.\d\d ms +\d+ B\n")
        line = terminal.read_until(LINE + r"404     POST /predict .* unknown_node\n")[0]
        assert len(line.strip()) <= 80
        assert "\x1b[32m200\x1b[0m" in terminal.text
        terminal.press_ctrl_c()
        assert terminal.wait() == 0
    assert re.fullmatch(rf"{LINE}info    stopped\n", terminal.plain.partition("^C")[2])
    assert '{"' not in terminal.plain.replace(banner, "")


def test_several_workers_print_one_banner_and_no_colour_if_unwanted(store: Path) -> None:
    with serve(store, "--workers", "2", columns=120, NO_COLOR="1") as terminal:
        terminal.read_until(BANNER)
        terminal.read_until(r"(?s)(info +serving demo 1.*){2}")
        terminal.press_ctrl_c()
        assert terminal.wait() == 0
    assert terminal.text.count("  sgf-serve ") == 1
    assert "numpy (cpu), 2 workers" in terminal.text
    assert "\x1b" not in terminal.text
    assert re.fullmatch(rf"{LINE}info    stopped\n", terminal.text.partition("^C")[2])


def test_the_request_of_the_banner_has_an_id_of_the_user_and_hides_the_key(tmp_path: Path) -> None:
    ids, key = NodeIds.build([f"it's {row}" for row in range(60)]), "k" * 20
    Store(tmp_path).publish("mine", replace(CONTENTS, node_ids=ids), activate=True)
    with serve(tmp_path, SGF_API_KEYS=key) as terminal:
        curl = terminal.read_until(BANNER)[0].splitlines()[-1]
        answer = post(curl, key=key).json()
    assert answer["predictions"][0]["node"] == "it's 0"
    assert key not in terminal.text


def test_the_format_of_the_log_can_be_chosen(store: Path) -> None:
    with serve(store, SGF_LOG_FORMAT="json") as terminal:
        terminal.read_until(r"Uvicorn running on")
        terminal.press_ctrl_c()
        terminal.wait()
    assert all(json.loads(line.removeprefix("^C")) for line in terminal.text.splitlines())
    with in_processes(store, log_format="text") as (client, _process, lines):
        client.get("/health/ready")
        # The banner follows readiness by up to one poll of the port.
        until(lambda: all(any(part in line for line in lines) for part in ("GET  /health/ready", "  sgf-serve ")))
    assert re.search(r"(?m)^\d\d:\d\d:\d\d 200     GET  /health/ready ", "".join(lines))
    assert "\x1b" not in "".join(lines)
    assert "\r" not in "".join(lines)


def test_a_worker_has_a_banner_without_the_password_and_ends_with_one_line() -> None:
    url = f"redis://me:secret@127.0.0.1:{free_port()}/0"
    with Terminal(sys.executable, "-m", "service.jobs.worker", SGF_REDIS_URL=url) as terminal:
        terminal.read_until(r"(?s)  sgf-worker \d.*from Redis at 127\.0\.0\.1:\d+\n.*warning Redis.*Connection refused")
        terminal.press_ctrl_c()
        assert terminal.wait() == 0
    assert re.search(rf"{LINE}info    stopped\n$", terminal.plain)
    assert "secret" not in terminal.text
    assert "Traceback" not in terminal.text


@pytest.mark.parametrize(
    ("models", "flags", "message"),
    [
        ((), (), "the store STORE has no model: train one (sgf-train --data FOLDER --activate) or serve the demo "),
        (("digits", "songs"), (), "the store STORE has several models (digits, songs): choose one with --model\n"),
        (
            ("digits", "songs"),
            ("--model", "digts"),
            "there is no model digts in the store STORE, it has digits, songs; did you mean digits? (--wait-for-model ",
        ),
        (
            ("-songs",),
            (),
            "no version of songs is live: sgf-models --store STORE --model songs activate 1; --wait-for-model ",
        ),
    ],
)
def test_a_missing_model_stops_the_start(
    models: tuple[str, ...], flags: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in models:
        publish(Store(tmp_path), model=name.removeprefix("-"), activate=not name.startswith("-"))
    assert main(["--store", str(tmp_path), "--port", "0", *flags]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"sgf-serve: {message.replace('STORE', str(tmp_path))}")
    assert printed.count("\n") == 1


def test_a_store_that_cannot_be_read_stops_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish(Store(tmp_path), model="songs", activate=True)
    (tmp_path / "songs" / "CURRENT").write_text("nonsense")
    assert main(["--store", str(tmp_path), "--port", "0"]) == 1
    assert re.fullmatch(r"sgf-serve: the store cannot be read: .*CURRENT.*\n", capsys.readouterr().err)


def test_a_service_that_waits_for_its_model_says_so(tmp_path: Path) -> None:
    with in_processes(tmp_path, model="songs", wait_for_model="true") as (client, _process, _lines):
        message = refused(client.get("/health/ready"), 503, "not_ready")
        assert message == "waiting for a model to serve: there is no model songs in this store (existing models: none)"
        publish(Store(tmp_path), model="songs", activate=True)
        until(lambda: client.get("/health/ready").status_code == 200)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_port_in_use_is_reported_before_anything_is_loaded(
    workers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["--store", str(tmp_path / "none"), "--demo", "--port", str(port), "--workers", workers]) == 2
    advice = "stop the program that listens there, or choose another port with --port (SGF_PORT)"
    assert capsys.readouterr().err == f"sgf-serve: port {port} of 127.0.0.1 is in use: {advice}\n"
    assert not (tmp_path / "none").exists()


def test_an_address_of_another_machine_stops_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--store", str(tmp_path), "--host", "192.0.2.1"]) == 2
    message = "sgf-serve: cannot listen on 192.0.2.1, port 8000 (Cannot assign requested address): see --host and --port\n"
    assert capsys.readouterr().err == message


def test_port_0_is_replaced_by_the_port_that_is_printed(store: Path) -> None:
    with start_module("service", "--store", str(store), "--port", "0", log_format="text") as (_process, lines):
        until(lambda: "curl" in "".join(lines))
        curl = next(line for line in lines if line.startswith("curl"))
        assert post(curl).status_code == 200
