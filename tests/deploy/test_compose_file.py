"""docker-compose.yml without Docker: its services fit together, fit the images, and open nothing beyond this machine.

test_compose_up.py runs it.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from service.settings import Settings, variable
from tests.deploy.deployment_files import (
    COMPOSE,
    DOCKERFILE,
    ENV_EXAMPLE,
    REDIS_HEALTH,
    VARIABLE,
    check_words,
    compose,
    compose_with_defaults,
    drain_seconds,
    env_example,
    image_variable,
    is_below,
    password_file,
)
from tests.deploy.docker_engine import compose_command
from tests.deploy.tools import ROOT, run

EXPOSED = {"service", "service-gpu"}
SERVING = EXPOSED | {"admin"}
TRAINING = {"worker"}
USES_REDIS = SERVING | {"worker"}
ONE_SHOT = {"demo", "redis-password"}
Services = dict[str, dict[str, Any]]


@pytest.fixture
def services() -> Services:
    """Without .env."""
    return dict(compose_with_defaults()["services"])


def volumes(service: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """By path in the container: the volume or folder, and whether it is read-only."""
    parts = [text.split(":") for text in service.get("volumes", ())]
    return {path: (source, options == ["ro"]) for source, path, *options in parts}


def volume_of(service: dict[str, Any], path: str) -> str | None:
    """The volume or folder that has this path of the container."""
    return next((source for place, (source, _) in volumes(service).items() if is_below(path, place)), None)


def file_of(service: dict[str, Any], path: str) -> Path:
    """The file of this folder that is mounted at a path of the container."""
    place, source = next((place, source) for place, (source, _) in volumes(service).items() if is_below(path, place))
    return ROOT / source / path[len(place) + 1 :]


def test_the_file_follows_the_specification_of_compose() -> None:
    PyCompose.from_json(json.dumps(compose_with_defaults())).validate()


@pytest.mark.parametrize("profile", ["none", "observability", "gpu", "tls"])
def test_compose_accepts_the_file(profile: str) -> None:
    run(*compose_command(), "--profile", profile, "config", "--quiet", cwd=ROOT)


def test_compose_passes_what_env_says(tmp_path: Path) -> None:
    """The example with a setting that it does not have, one for Compose alone, and another port."""
    text = re.sub("(?m)^TORCH_INDEX_URL=.*", "TORCH_INDEX_URL=", ENV_EXAMPLE.read_text())
    (tmp_path / ".env").write_text(text.replace("SGF_PORT=8000", "SGF_PORT=9000") + "SGF_MAX_RECOMPUTE=50000\n")
    (tmp_path / "docker-compose.yml").write_text(COMPOSE.read_text())
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SGF_")}
    services = compose(run(*compose_command(), "config", cwd=tmp_path, env=environ).stdout)["services"]
    environment = {name: str(value) for name, value in services["service"]["environment"].items()}
    settings = Settings.from_env(environment | password_file(tmp_path))
    assert (settings.max_recompute, settings.port) == (50_000, 8000)
    assert "9000:8000" in str(services["service"]["ports"])
    assert services["worker"]["build"]["args"] == {"TORCH_INDEX_URL": ""}
    assert "grafana" in services


def test_workers_and_services_can_be_scaled(tmp_path: Path, services: Services) -> None:
    """Containers of one service need names and ports of their own, and files that all of them may use."""
    for name in ("worker", "service"):
        assert not {"container_name", "hostname", "mac_address"} & set(services[name]), name
        shared = [(path, read_only) for path, (_, read_only) in volumes(services[name]).items()]
        locked = {"/var/lib/sgformer/store", "/var/lib/sgformer/data", "/var/lib/sgformer/cache"}  # by locks of their files
        assert {path for path, read_only in shared if not read_only} <= locked, name
    assert "ports" not in services["worker"]
    (tmp_path / ".env").write_text("SGF_PORT=8010-8013\n")
    (tmp_path / "docker-compose.yml").write_text(COMPOSE.read_text())
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SGF_")}
    written = compose(run(*compose_command(), "config", cwd=tmp_path, env=environ).stdout)["services"]["service"]["ports"]
    assert "8010-8013" in str(written)


def test_every_container_is_confined(services: Services) -> None:
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert any(place.startswith("/tmp:") for place in service["tmpfs"]), name  # noqa: S108  # in a container
        assert "mem_limit" in service, name
        assert service["restart"] == ("no" if name in ONE_SHOT else "unless-stopped"), name
    assert services["worker"]["init"]  # reaps processes that a job leaves behind
    for name in SERVING:
        assert float(services[name]["stop_grace_period"].removesuffix("s")) > drain_seconds()


def test_nothing_is_open_by_default() -> None:
    file = compose()["services"]
    built = {service["image"] for service in file.values() if "build" in service}
    for name, service in file.items():
        assert all("127.0.0.1" in port for port in service.get("ports", ())), name
        assert service["image"] in built or re.search(r":\D*\d+\.\d+", service["image"]), f"{name} is not pinned"
        for key, value in service.get("environment", {}).items():
            if re.search("TOKEN|KEYS|PASSWORD", key) and not key.endswith("_FILE"):
                assert re.fullmatch(r"\$\{[A-Z_]+:-\}", value), f"{name} has a default for {key}"
    assert not {"redis", "prometheus"} & {name for name, service in file.items() if "ports" in service}


def test_ports_lead_to_the_programs(services: Services) -> None:
    inside = {key: [image_variable("SGF_PORT")] for key in SERVING} | {"grafana": ["3000"], "tls": ["8443", "8080"]}
    ports = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert {name: [port.rpartition(":")[2] for port in listed] for name, listed in ports.items()} == inside
    published = [port.rpartition(":")[0] for listed in ports.values() for port in listed]
    assert len(published) == len(set(published))


def test_networks_connect_what_belongs_together_and_nothing_else(services: Services) -> None:
    internal = {name for name, network in compose()["networks"].items() if (network or {}).get("internal")}
    networks = {name: set(service.get("networks", ())) for name, service in services.items()}
    connected = [("prometheus", name) for name in SERVING] + [(name, "redis") for name in USES_REDIS]
    for source, target in [*connected, ("grafana", "prometheus"), ("tls", "service")]:
        assert networks[source] & networks[target], f"{source} does not reach {target}"
    assert not networks["redis"] & (networks["grafana"] | networks["prometheus"] | networks["tls"])
    assert {name for name in networks if networks[name] - internal} == {
        name for name in services if "ports" in services[name]
    }


def test_volumes_keep_what_the_programs_write(services: Services) -> None:
    for name in SERVING | TRAINING:
        assert volume_of(services[name], image_variable("SGF_STORE")) == "store", name
        data = "data" if name in ("admin", "worker") else None
        assert volume_of(services[name], image_variable("SGF_DATA_ROOT")) == data, name
    for name, path in (("redis", "/data"), ("prometheus", "/prometheus"), ("grafana", "/var/lib/grafana")):
        assert volume_of(services[name], path) == name
    assert "--storage.tsdb.path=/prometheus" in services["prometheus"]["command"]


def test_mounted_files_exist_and_cannot_be_changed(services: Services) -> None:
    for name, service in services.items():
        for path, (source, read_only) in volumes(service).items():
            assert not source.startswith(".") or (ROOT / source).exists(), f"{name} mounts {source}"
            assert read_only or not path.startswith("/etc"), f"{name} can change {path}"
            assert source != "store" or read_only == (name in EXPOSED), f"{name} and the store"
            assert source != "redis-auth" or read_only == (name != "redis-password"), f"{name} and the password of Redis"
    (configuration,) = (text for text in services["prometheus"]["command"] if "config.file" in text)
    assert file_of(services["prometheus"], configuration.partition("=")[2]).is_file()
    for path in ("provisioning/datasources/prometheus.yml", "dashboards/sgformer.json"):
        assert file_of(services["grafana"], f"/etc/grafana/{path}").is_file()


def test_only_the_service_with_admin_can_change_the_store(services: Services) -> None:
    for name in SERVING:
        environment = services[name]["environment"]
        assert ("SGF_ADMIN_TOKEN" in environment) == (name == "admin")
        assert (environment["SGF_AUTO_ROLLBACK"] == "false") == (name in EXPOSED)


def test_only_those_that_use_redis_know_its_password(services: Services) -> None:
    mounting = {name for name in services if "redis-auth" in str(services[name].get("volumes"))}
    assert mounting == USES_REDIS | {"redis", "redis-password"}
    assert volumes(services["redis"])["/run/redis-auth"][0] == "redis-auth"
    redis = {"SGF_REDIS_URL": "redis://sgf@redis:6379/0", "SGF_REDIS_PASSWORD_FILE": "/run/redis-auth/password"}
    for name in USES_REDIS:
        assert volumes(services[name])["/run/redis-auth"][0] == "redis-auth"
        assert redis.items() <= services[name]["environment"].items()


def test_health_is_checked_where_each_program_answers(services: Services) -> None:
    assert services["redis"]["healthcheck"]["test"] == ["CMD-SHELL", REDIS_HEALTH.replace("$", "$$")]
    for name, address in (("prometheus", "127.0.0.1:9090/-/ready"), ("grafana", "127.0.0.1:3000/api/health")):
        assert services[name]["healthcheck"]["test"] == ["CMD", "wget", "-qO-", f"http://{address}"]
    assert not {name for name in SERVING | TRAINING if "healthcheck" in services[name]}  # their images have it, or none


def test_containers_start_after_what_they_need(services: Services) -> None:
    for service in services.values():
        for other, how in (service.get("depends_on") or {}).items():
            if how["condition"] == "service_healthy" and other != "service":  # the service's check is in its image
                assert "healthcheck" in services[other], other
    for name in USES_REDIS:
        assert services[name]["depends_on"]["demo"]["condition"] == "service_completed_successfully"
        assert services[name]["depends_on"]["redis"]["condition"] == "service_healthy"
    assert "depends_on" not in services["prometheus"]  # it must report a service that does not become healthy


def test_every_image_of_ours_is_built_once_and_never_pulled(services: Services) -> None:
    """Those that use an image which another service builds start after it, so that `up` builds it."""
    builders = {service["image"]: name for name, service in services.items() if "build" in service}
    assert len(builders) == sum("build" in service for service in services.values())
    for name, service in services.items():
        builder = builders.get(service["image"], name)
        if builder != name:
            assert service["pull_policy"] == "never", name
            assert builder in service["depends_on"], name
        assert "build" in service or builder != name or "pull_policy" not in service, name


def test_images_and_commands_exist(services: Services) -> None:
    for name in SERVING | TRAINING:
        check_words([*services[name].get("entrypoint", ()), *services[name].get("command", ())])
        if "build" in services[name]:
            assert services[name]["build"]["target"] == ("serving" if name in SERVING else "worker"), name
            assert f" AS {services[name]['build']['target']}\n" in DOCKERFILE


def test_one_service_is_for_a_gpu(services: Services) -> None:
    for name, service in services.items():
        facts = {
            "capabilities: [gpu]" in yaml.safe_dump(service.get("deploy"), default_flow_style=None),
            service.get("build", {}).get("args", {}).get("VARIANT") == "gpu",
            service.get("environment", {}).get("SGF_DEVICE") == "cuda",
            service.get("profiles") == ["gpu"],
        }
        assert facts == {name == "service-gpu"}, name


def test_prometheus_and_grafana_find_what_they_read(services: Services) -> None:
    (job,) = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    targets = {target for group in job["static_configs"] for target in group["targets"]}
    targets |= {f"{name}:{group['port']}" for group in job["dns_sd_configs"] for name in group["names"]}
    assert targets == {f"{name}:{image_variable('SGF_PORT')}" for name in SERVING}
    assert job.get("metrics_path", "/metrics") == "/metrics"
    (source,) = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert (source["uid"], source["url"]) == ("prometheus", "http://prometheus:9090")
    (provider,) = yaml.safe_load((ROOT / "deploy/grafana/provisioning/dashboards/sgformer.yml").read_text())["providers"]
    folder = provider["options"]["path"]
    assert volume_of(services["grafana"], folder) == "./deploy/grafana/dashboards"
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{folder}/sgformer.json"
    assert services["prometheus"]["profiles"] == services["grafana"]["profiles"] == ["observability"]


def test_the_proxy_leads_to_the_service_with_the_same_limit_of_bodies(services: Services) -> None:
    config, tls = (ROOT / "deploy/tls/nginx.conf").read_text(), services["tls"]
    assert sorted(re.findall(r"listen (\d+)", config)) == ["8080", "8443"]
    assert f"server service:{image_variable('SGF_PORT')};" in config
    assert f"client_max_body_size {Settings().max_body_bytes // 2**20}m;" in config
    for path in (tls["entrypoint"][2], *re.findall(r"ssl_certificate\w* (\S+);", config)):
        assert volume_of(tls, path), f"the proxy has no {path}"


def script(service: str, replaced: str, by: str) -> str:
    text: str = compose()["services"][service]["entrypoint"][2].replace("$$", "$")
    assert replaced in text
    return text.replace(replaced, by)


def test_grafana_does_not_start_without_a_password() -> None:
    guard = script("grafana", "exec /run.sh", "echo started")
    refused = run("sh", "-c", guard, check=False, env={"GF_SECURITY_ADMIN_PASSWORD": ""})
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "GRAFANA_ADMIN_PASSWORD" in refused.stderr
    assert run("sh", "-c", guard, env={"GF_SECURITY_ADMIN_PASSWORD": "x"}).stdout == "started\n"


def test_the_demo_is_installed_by_the_command_that_leaves_a_store_with_models_alone(services: Services) -> None:
    """tests/model_store/test_demo.py has what the command does."""
    assert services["demo"]["entrypoint"] == ["sgf-models", "demo"]
    assert services["demo"]["image"] == services["service"]["image"]


def test_the_worker_has_the_settings_of_training_that_the_service_has() -> None:
    services = compose()["services"]
    assert {"SGF_REDIS_URL", "SGF_GRAPH_LOG", "SGF_TRAINING_SECONDS", "SGF_TRAINING_THREADS", "SGF_KEEP_VERSIONS"} <= set(
        services["worker"]["environment"]
    )
    assert services["worker"]["environment"].items() <= services["service"]["environment"].items()


def test_the_example_has_no_secrets_and_every_variable_of_compose_alone() -> None:
    """The settings of the service are in docs/configuration.md: the example has the most common ones."""
    example, used = env_example(), dict(VARIABLE.findall(COMPOSE.read_text()))
    assert not any(example[name] for name in ("SGF_ADMIN_TOKEN", "SGF_API_KEYS", "SGF_WRITE_KEYS", "GRAFANA_ADMIN_PASSWORD"))
    assert set(used) - set(example) <= {variable(field.name) for field in fields(Settings)}
    assert set(example) - set(used) == {"COMPOSE_PROFILES"}
    assert {name: example[name] for name in example if name in used} == {
        name: used[name] for name in example if name in used
    }
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


OF_THE_FILE = {
    f"SGF_{name}" for name in ("STORE", "DATA_ROOT", "HOST", "PORT", "DEVICE", "REDIS_URL", "REDIS_PASSWORD_FILE")
}
"""Settings of the images or of the file. SGF_PORT in .env is the port of this machine."""
DEPRECATED = {"SGF_MAX_INFLIGHT", "SGF_LATE_INFLIGHT", "SGF_MAX_LAG_SECONDS"}


@pytest.mark.parametrize("name", sorted(SERVING))
def test_every_setting_in_env_reaches_the_service_and_it_knows_them_all(
    name: str, services: Services, tmp_path: Path
) -> None:
    own = OF_THE_FILE | ({"SGF_WORKERS"} if name == "admin" else {"SGF_ADMIN_TOKEN", "SGF_AUTO_ROLLBACK"})
    written = compose()["services"][name]["environment"]
    assert {variable(field.name) for field in fields(Settings)} - DEPRECATED - set(written) == own - set(written)
    environment = {key: str("" if value is None else value) for key, value in services[name]["environment"].items()}
    settings = Settings.from_env(environment | password_file(tmp_path))
    assert settings.redis_url == "redis://sgf@redis:6379/0"
    assert settings.graph_log == "redis", "the service cannot write to the store"
    for setting in set(written) - own:
        assert [used for used, _ in VARIABLE.findall(written[setting])] == [setting], f"{setting} is not what .env says"
