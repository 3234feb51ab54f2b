"""Settings, API keys and the admin token."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from service.__main__ import main
from service.app import create_app
from service.errors import Refusal
from service.http.security import Security
from service.settings import Settings, SettingsError, table
from tests.service.serving import in_thread, refused

ROOT = Path(__file__).parent.parent.parent
KEY, TOKEN = "k" * 20, "t" * 20


def test_no_setting_is_required() -> None:
    assert Settings.from_env({}) == Settings()


def test_flags_override_variables() -> None:
    settings = Settings.from_env({"SGF_PORT": "9000", "SGF_WORKERS": "3", "SGF_MODEL": "", "PATH": "x"}, port="9001")
    assert (settings.port, settings.workers, settings.model) == (9001, 3, None)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SGF_PORT", "http", "SGF_PORT is 'http': expected a port from 0 (any that is free) to 65535"),
        ("SGF_PORT", "70000", "SGF_PORT is '70000': expected a port from 0 (any that is free) to 65535"),
        ("SGF_CACHE_BYTES", "-1", "SGF_CACHE_BYTES is '-1': expected a whole number of at least 0"),
        ("SGF_WORKERS", "0", "SGF_WORKERS is '0': expected a whole number of at least 1"),
        ("SGF_ACCESS_LOG", "maybe", "SGF_ACCESS_LOG is 'maybe': expected true or false"),
        ("SGF_DEVICE", "gpu", "SGF_DEVICE is 'gpu': expected one of auto, cpu, cuda"),
        ("SGF_DEADLINE_SECONDS", "-1", "SGF_DEADLINE_SECONDS is '-1': expected a positive number of seconds"),
        ("SGF_DEADLINE_SECONDS", "nan", "SGF_DEADLINE_SECONDS is 'nan': expected a positive number of seconds"),
        ("SGF_REDIS_URL", "http://x:secret@y", "SGF_REDIS_URL is (hidden): expected redis://, rediss:// or unix://"),
        ("SGF_ADMIN_TOKEN", "short", "SGF_ADMIN_TOKEN is (hidden): expected at least 16 characters"),
        ("SGF_API_KEYS", "short", "SGF_API_KEYS is (hidden): expected keys of at least 16 characters, separated by commas"),
        ("SGF_JOBS", "redis", "SGF_JOBS is 'redis': expected the address of Redis in SGF_REDIS_URL"),
        ("SGF_PROBATION_FAILURES", "20", "SGF_PROBATION_FAILURES is '20': expected a share above 0, at most 1"),
        ("SGF_WORKRES", "2", "SGF_WORKRES is not a setting; did you mean SGF_WORKERS?"),
        ("SGF_QUUX_ZZ", "2", "SGF_QUUX_ZZ is not a setting; sgf-serve --help lists all"),
        ("SGF_LOG_FORMAT", "yaml", "SGF_LOG_FORMAT is 'yaml': expected one of auto, text, json"),
    ],
)
def test_an_invalid_value_is_an_error_that_names_the_variable(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({name: value})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("flag", ["--check", "--table"])
def test_a_closed_pipe_is_no_error(flag: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "service", flag], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_check_prints_all_settings_and_hides_secrets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGF_API_KEYS", f"{KEY},{KEY}")
    monkeypatch.setenv("SGF_ADMIN_TOKEN", TOKEN)
    monkeypatch.setenv("SGF_REDIS_URL", "redis://:password@host/0")
    assert main(["--check", "--port", "81"]) == 0
    out = capsys.readouterr().out
    assert "SGF_PORT=81\n" in out
    assert "SGF_API_KEYS=(set)\n" in out
    assert not {KEY, TOKEN, "password"} & set(out.replace("=", "\n").split())
    assert "password" not in out


def test_the_text_of_settings_has_no_secrets() -> None:
    settings = Settings(api_keys=(KEY,), admin_token=TOKEN, redis_url="redis://:hunter2@host/0")
    for text in (repr(settings), str(settings), f"{settings}"):
        assert not any(secret in text for secret in (KEY, TOKEN, "hunter2"))
        assert "max_queue_seconds=0.15" in text


def test_settings_of_earlier_releases_are_accepted_and_have_no_effect() -> None:
    assert Settings.from_env({"SGF_MAX_INFLIGHT": "5", "SGF_LATE_INFLIGHT": "1", "SGF_MAX_LAG_SECONDS": "1"}) == Settings()


def test_an_invalid_setting_stops_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--workers", "many"]) == 2
    assert capsys.readouterr().err == "sgf-serve: SGF_WORKERS is 'many': expected a whole number of at least 1\n"


def test_the_documented_table_is_current() -> None:
    assert table() in (ROOT / "docs" / "configuration.md").read_text()


def test_a_new_route_needs_a_key_unless_it_is_listed_as_public(store: Path) -> None:
    public = {"/", "/health/live", "/health/ready", "/metrics", "/docs", "/openapi.json", "/docs/oauth2-redirect"}
    security = Security(Settings(api_keys=(KEY,)))
    app = create_app(Settings(store=store, api_keys=(KEY,)))
    paths = {*app._pages.openapi()["paths"], *public, "/predict", "/embed", "/some/new/route"}
    open_paths = set()
    for path in paths:
        with suppress(Refusal):
            security.check(path, None)
            open_paths.add(path)
    assert open_paths == public
    for path in ("/admin", "/admin/jobs", "/administration"):
        with pytest.raises(Refusal):
            security.check(path, b"Bearer " + KEY.encode())
    assert Security(Settings()).check("/some/new/route", None) is None


def test_keys_and_the_admin_token(store: Path) -> None:
    with in_thread(store, api_keys=(KEY, "o" * 20), admin_token=TOKEN) as client:
        question = {"nodes": [1]}
        response = client.post("/predict", json=question)
        refused(response, 401, "unauthorized")
        assert response.headers["www-authenticate"] == "Bearer"
        for wrong in ("x" * 20, KEY[:-1], KEY + "k", TOKEN):
            refused(client.post("/predict", json=question, headers={"authorization": f"Bearer {wrong}"}), 403, "forbidden")
        refused(client.post("/predict", json=question, headers={"authorization": f"Basic {KEY}"}), 401, "unauthorized")
        for key in (KEY, "o" * 20):
            assert client.post("/predict", json=question, headers={"authorization": f"Bearer {key}"}).status_code == 200
        refused(client.get("/models"), 401, "unauthorized")
        assert client.get("/health/ready").status_code == client.get("/metrics").status_code == 200
        refused(client.get("/admin/jobs", headers={"authorization": f"Bearer {KEY}"}), 403, "forbidden")
        refused(client.get("/admin/nothing", headers={"authorization": f"Bearer {TOKEN}"}), 404, "not_found")
        assert client.get("/admin/jobs", headers={"authorization": f"Bearer {TOKEN}"}).json() == {"jobs": []}
