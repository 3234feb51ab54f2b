"""The Dockerfile and the compose file: well-formed, and closed by default."""

from __future__ import annotations

import json
import os
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from compose_spec import PyCompose

from service.settings import Settings, variable
from tests.deploy.compose_file import (
    COMPOSE,
    ENV_EXAMPLE,
    VARIABLE,
    compose,
    environment,
    example,
    password_file,
    with_defaults,
)
from tests.deploy.tools import ROOT, need, run

DOCKERFILE = ROOT / "Dockerfile"


def test_the_dockerfile_is_clean() -> None:
    run(need("hadolint"), DOCKERFILE)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("FROM debian:${DEBIAN}", "FROM debian"),
        ('ENTRYPOINT ["sgf-serve"]', "ENTRYPOINT sgf-serve"),
        ("COPY service /service", "ADD service /service"),
        ("apt-get install -y --no-install-recommends python3 ", "apt-get install python3 "),
    ],
)
def test_hadolint_finds_what_is_broken(tmp_path: Path, right: str, wrong: str) -> None:
    text = DOCKERFILE.read_text()
    assert right in text
    (tmp_path / "Dockerfile").write_text(text.replace(right, wrong))
    with pytest.raises(AssertionError, match="hadolint failed"):
        run(need("hadolint"), tmp_path / "Dockerfile")


def test_only_what_the_images_need_is_sent_to_the_build() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = set(re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE.read_text(), re.MULTILINE))
    assert kept == {name for names in copied for name in names.split()}


def check_specification(text: str) -> None:
    """Raises ValueError: what the Compose specification does not allow, or a volume or network that is not there."""
    PyCompose.from_json(json.dumps(compose(with_defaults(text)))).validate()


def test_the_compose_file_follows_the_specification() -> None:
    check_specification(COMPOSE.read_text())


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("read_only: true", "read_onyl: true"),
        ("condition: service_healthy", "condition: hopeful"),
        ("networks: [backend]", "networks: [backyard]"),
        ("  store:  #", "  strore:  #"),
        ("  redis-auth:  #", "  redis-auht:  #"),
    ],
)
def test_the_specification_refuses_what_is_broken(right: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_specification(COMPOSE.read_text().replace(right, wrong))


@pytest.mark.parametrize("profile", ["", "observability", "gpu", "tls"])
def test_compose_itself_takes_it(profile: str) -> None:
    run(need("docker-compose"), "--profile", profile or "none", "config", "--quiet", cwd=ROOT)


def test_compose_itself_finds_what_is_broken(tmp_path: Path) -> None:
    for right, wrong in (("read_only: true", "read_onyl: true"), ("store:/var", "sotre:/var"), ("[ALL]", "ALL")):
        (tmp_path / "docker-compose.yml").write_text(COMPOSE.read_text().replace(right, wrong))
        with pytest.raises(AssertionError, match="docker-compose failed"):
            run(need("docker-compose"), "config", "--quiet", cwd=tmp_path)


def test_compose_itself_gives_the_service_what_env_says(tmp_path: Path) -> None:
    """The example, copied and changed: a setting that the example does not have, one for Compose alone, and a way out."""
    said = ENV_EXAMPLE.read_text().replace("TORCH_INDEX_URL=", "TORCH_INDEX_URL=http://torch.example/cpu")
    (tmp_path / ".env").write_text(said.replace("SGF_PORT=8000", "SGF_PORT=9000") + "SGF_MAX_RECOMPUTE=50000\n")
    (tmp_path / "docker-compose.yml").write_text(COMPOSE.read_text())
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SGF_")}
    services = compose(run(need("docker-compose"), "config", cwd=tmp_path, env=environ).stdout)["services"]
    given = {name: str(value) for name, value in services["service"]["environment"].items()}
    settings = Settings.from_env(given | password_file(tmp_path))
    assert (settings.max_recompute, settings.port) == (50_000, 8000)
    assert "9000:8000" in str(services["service"]["ports"])
    assert services["demo"]["build"]["args"] == {"TORCH_INDEX_URL": "http://torch.example/cpu"}
    assert "grafana" in services


def open_doors(file: dict[str, Any]) -> list[str]:
    """What a platform team would refuse."""
    found = []
    ours = {service["image"] for service in file["services"].values() if "build" in service}
    for name, service in file["services"].items():
        found += [
            f"{name} is published to everybody: {port}" for port in service.get("ports", ()) if "127.0.0.1" not in port
        ]
        if not (service["read_only"] and service["cap_drop"] == ["ALL"]):
            found.append(f"{name} can write to its root file system or has capabilities")
        if service["image"] not in ours and not re.search(r":\D*\d+\.\d+", service["image"]):
            found.append(f"{name} is not pinned: {service['image']}")
        secrets = {
            key: value for key, value in service.get("environment", {}).items() if re.search("TOKEN|KEYS|PASSWORD", key)
        }
        found += [
            f"{name} has a default for {key}"
            for key, value in secrets.items()
            if not key.endswith("_FILE") and not re.fullmatch(r"\$\{[A-Z_]+:-\}", value)
        ]
    return found + [f"{name} is published" for name in ("redis", "prometheus") if "ports" in file["services"][name]]


def test_nothing_is_open_by_default() -> None:
    assert open_doors(compose()) == []


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("127.0.0.1:${GRAFANA_PORT", "0.0.0.0:${GRAFANA_PORT", "grafana is published to everybody"),
        ("${SGF_ADMIN_TOKEN:-}", "${SGF_ADMIN_TOKEN:-let-me-in-please}", "has a default for SGF_ADMIN_TOKEN"),
        ("cap_drop: [ALL]", "cap_drop: []", "capabilities"),
        ("redis:7.4-bookworm", "redis:latest", "redis is not pinned"),
        (
            '    volumes: ["redis:/data", ',
            '    ports: ["127.0.0.1:6379:6379"]\n    volumes: ["redis:/data", ',
            "redis is published",
        ),
    ],
)
def test_an_open_door_is_found(right: str, wrong: str, told: str) -> None:
    text = COMPOSE.read_text()
    assert right in text
    assert told in "\n".join(open_doors(compose(text.replace(right, wrong))))


def test_grafana_refuses_to_start_without_a_password() -> None:
    guard = compose()["services"]["grafana"]["entrypoint"][2].replace("$$", "$").replace("exec /run.sh", "echo started")
    refused = run("sh", "-c", guard, check=False, env={"GF_SECURITY_ADMIN_PASSWORD": ""})
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "GRAFANA_ADMIN_PASSWORD" in refused.stderr
    assert run("sh", "-c", guard, env={"GF_SECURITY_ADMIN_PASSWORD": "x"}).stdout == "started\n"


def test_the_demo_is_trained_only_where_no_version_is_live(tmp_path: Path) -> None:
    command = compose()["services"]["demo"]["entrypoint"][2].replace("$$", "$").replace("exec sgf-train", "echo sgf-train")
    (tmp_path / "digits").mkdir()
    assert (
        run("sh", "-c", command, env={"SGF_STORE": str(tmp_path)}).stdout == "sgf-train --recipe digits --activate --quiet\n"
    )
    (tmp_path / "digits" / "CURRENT").write_text("1\n")
    assert run("sh", "-c", command, env={"SGF_STORE": str(tmp_path)}).stdout == ""


def test_everything_waits_for_what_it_needs() -> None:
    services = compose()["services"]
    for name, service in services.items():
        for other, how in (service.get("depends_on") or {}).items():
            if how["condition"] == "service_healthy" and other != "service":  # the service's check is in its image
                assert "healthcheck" in services[other], f"{name} waits for the health of {other}, which has none"
    assert services["service"]["depends_on"]["demo"]["condition"] == "service_completed_successfully"


def test_no_image_is_built_twice_and_none_is_pulled_that_is_built_here() -> None:
    check_builds(compose())


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("    pull_policy: never  # Compose", "    build: .  # Compose", "built by demo and by worker"),
        ("    pull_policy: never  # Compose", "    init: true  # Compose", "worker would pull"),
        ("    pull_policy: never  # `service`", "    init: true  # `service`", "admin would pull"),
        ("    build: {context: ., target: worker", "    labels: {context: ., target: worker", "worker never pulls"),
        ("\n    demo: {condition: service_completed_successfully}", "", "does not wait for demo"),
    ],
)
def test_an_image_that_is_not_there_in_time_is_found(right: str, wrong: str, told: str) -> None:
    text = COMPOSE.read_text()
    assert right in text
    with pytest.raises(AssertionError, match=told):
        check_builds(compose(text.replace(right, wrong)))


def check_builds(file: dict[str, Any]) -> None:
    """Of each image one service is the builder; the others never pull, and wait for it, so that it is built with them."""
    services, builder = file["services"], dict[str, str]()
    for name, service in services.items():
        if "build" in service:
            assert service["image"] not in builder, f"built by {builder[service['image']]} and by {name}"
            builder[service["image"]] = name
    for name, service in services.items():
        built_by = builder.get(service["image"], name)
        if built_by != name:
            assert service.get("pull_policy") == "never", f"{name} would pull what {built_by} builds"
            assert built_by in service["depends_on"], f"{name} does not wait for {built_by}"
        elif "build" not in service:
            assert service.get("pull_policy") != "never", f"{name} never pulls, and nobody builds its image"


def test_prometheus_waits_for_nobody() -> None:
    """While the service is not healthy, somebody has to say so."""
    assert "depends_on" not in compose()["services"]["prometheus"]


def test_the_worker_has_the_settings_of_training_that_the_service_has() -> None:
    services = compose()["services"]
    assert {"SGF_REDIS_URL", "SGF_TRAINING_SECONDS", "SGF_TRAINING_THREADS"} <= set(services["worker"]["environment"])
    assert services["worker"]["environment"].items() <= services["service"]["environment"].items()


def test_the_example_of_secrets_has_none_and_every_variable_of_compose_alone() -> None:
    """The settings of the service are in docs/configuration.md: the example has those that most people change."""
    given = example()
    assert not any(given[name] for name in ("SGF_ADMIN_TOKEN", "SGF_API_KEYS", "GRAFANA_ADMIN_PASSWORD"))
    used = dict(VARIABLE.findall(COMPOSE.read_text()))
    assert set(used) - set(given) <= {variable(one.name) for one in fields(Settings)}
    assert set(given) - set(used) == {"COMPOSE_PROFILES"}
    assert {name: given[name] for name in given if name in used} == {name: used[name] for name in given if name in used}
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


OF_THE_FILE = {
    "SGF_STORE",
    "SGF_DATA_ROOT",
    "SGF_HOST",
    "SGF_PORT",
    "SGF_DEVICE",
    "SGF_REDIS_URL",
    "SGF_REDIS_PASSWORD_FILE",
}
"""Settings of the images or of the file. SGF_PORT in .env is the port of this machine."""
OF_ADMIN = {"SGF_ADMIN_TOKEN", "SGF_AUTO_ROLLBACK"}
"""Settings that reach the service with /admin only."""
DEPRECATED = {"SGF_MAX_INFLIGHT", "SGF_LATE_INFLIGHT", "SGF_MAX_LAG_SECONDS"}


@pytest.mark.parametrize("name", ["service", "service-gpu", "admin"])
def test_every_setting_in_env_reaches_the_service_and_it_knows_them_all(name: str, tmp_path: Path) -> None:
    every = {variable(one.name) for one in fields(Settings)} - DEPRECATED
    of_the_file = OF_THE_FILE | ({"SGF_WORKERS"} if name == "admin" else OF_ADMIN)
    given = compose()["services"][name]["environment"]
    assert every - set(given) == of_the_file - set(given)
    assert Settings.from_env(environment(name) | password_file(tmp_path)).redis_url == "redis://sgf@redis:6379/0"
    for setting in set(given) - of_the_file:
        assert [name for name, _ in VARIABLE.findall(given[setting])] == [setting], f"{setting} is not what .env says"


def test_torch_of_the_workers_image_comes_from_where_env_says() -> None:
    """By Compose, or by `docker build`; an empty variable is the registry's own."""
    assert re.findall(r"^ARG TORCH_INDEX_URL=(\S*)$", DOCKERFILE.read_text(), re.MULTILINE) == [""]
    assert compose()["services"]["demo"]["build"]["args"]["TORCH_INDEX_URL"] == "${TORCH_INDEX_URL-}"
    assert example()["TORCH_INDEX_URL"] == ""
    serving = DOCKERFILE.read_text().split("FROM build AS build-serving")[1].split("FROM build AS")[0]
    assert "TORCH_INDEX_URL" not in serving  # VARIANT=gpu wants torch for CUDA


def test_the_version_of_the_labels_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert re.findall(r"^ARG VERSION(.*)$", DOCKERFILE.read_text(), re.MULTILINE) == [f"={project['version']}", "", ""]
