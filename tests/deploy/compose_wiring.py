"""Whether the services of compose fit together, fit the images, and fit what is mounted. Each check names what does not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from service.settings import Settings
from tests.deploy import image_facts
from tests.deploy.tools import ROOT

Compose = dict[str, Any]
Service = dict[str, Any]
EXPOSED, WORKING = ("service", "service-gpu"), ("worker", "demo")
SERVING = (*EXPOSED, "admin")
ONE_SHOT = ("demo", "redis-password")
IN_REDIS = (*SERVING, "worker")
"""Services that use Redis."""
PASSWORD = "redis-auth"  # noqa: S105  # where it is, not what
"""The volume with the password of Redis."""
PING = 'REDISCLI_AUTH="$$(cat {file})" redis-cli --user sgf ping | grep -q PONG'
THEIRS = {
    "redis": ("redis-cli", 6379, "", "/data"),
    "prometheus": ("wget", 9090, "/-/ready", "/prometheus"),
    "grafana": ("wget", 3000, "/api/health", "/var/lib/grafana"),
}
"""What images of others bring: a program that can ask, the port, who answers when it is ready, where data is kept."""


def complaints(file: Compose, scraped: dict[str, Any], source: dict[str, Any]) -> list[str]:
    """Of the file with its defaults, Prometheus' configuration, and Grafana's data source."""
    services = file["services"]
    checks = (health(services), images(services), hardening(services), mounts(services), kept(services), endings(services))
    others = (gpus(services), networks(file), addresses(services, scraped, source), rights(services), proxy(services))
    return [told for check in (*checks, *others) for told in check]


def health(services: dict[str, Service]) -> Iterator[str]:
    for name, (program, port, path, _) in THEIRS.items():
        command = services[name].get("healthcheck", {}).get("test", ["NONE"])
        if name == "redis":
            if command != ["CMD-SHELL", PING.format(file=_password_file(services))]:
                yield f"redis's health is asked with {command}"
            continue
        if command[:2] != ["CMD", program]:
            yield f"{name}'s health is asked with {command}"
        asked = urlsplit(command[-1])
        if (asked.hostname, asked.port, asked.path) != ("127.0.0.1", port, path):
            yield f"{name}'s health is asked at {command[-1]}"
    for name in (*SERVING, *WORKING):
        if "healthcheck" in services[name]:
            yield f"{name} has its check in its image"


def images(services: dict[str, Service]) -> Iterator[str]:
    for name, service in services.items():
        build = service.get("build", {})
        if build and build["target"] != ("serving" if name in SERVING else "worker"):
            yield f"{name} is the image {build['target']}"
        if build and build["target"] not in image_facts.TARGETS:
            yield f"the Dockerfile has no target {build['target']}"
        if name in (*SERVING, *WORKING):
            command = [*service.get("entrypoint", ()), *service.get("command", ())]
            yield from (f"{name}: {told}" for told in image_facts.unknown_words(command))


def hardening(services: dict[str, Service]) -> Iterator[str]:
    for name, service in services.items():
        if service.get("security_opt") != ["no-new-privileges:true"]:
            yield f"{name} may gain privileges"
        if service.get("read_only") and not any(one.split(":")[0] == "/tmp" for one in service.get("tmpfs", ())):  # noqa: S108
            yield f"{name} has no /tmp to write to"
        if service.get("restart") != ("no" if name in ONE_SHOT else "unless-stopped"):
            yield f"{name} is not started again as it should be"
        if "mem_limit" not in service:
            yield f"{name} may take all of the memory"


def mounts(services: dict[str, Service]) -> Iterator[str]:
    for name, service in services.items():
        for source, place, *how in (volume.split(":") for volume in service.get("volumes", ())):
            if source.startswith(".") and not (ROOT / source).exists():
                yield f"{name} mounts {source}, which is not there"
            if source == "store" and (how == ["ro"]) != (name in EXPOSED):
                yield f"{name} {'cannot' if how else 'can'} write to the store"
            if source == PASSWORD and (how == ["ro"]) == (name == "redis-password"):
                yield f"{name} {'cannot' if how else 'can'} write the password of Redis"
            if place.startswith("/etc") and how != ["ro"]:
                yield f"{name} may change {place}"
    for name, needed in (
        ("prometheus", next(one for one in services["prometheus"]["command"] if "config.file" in one).partition("=")[2]),
        ("grafana", "/etc/grafana/provisioning/datasources/prometheus.yml"),
        ("grafana", "/etc/grafana/dashboards/sgformer.json"),
    ):
        if not _source(services[name], needed).is_file():
            yield f"{name} has no {needed}"


def kept(services: dict[str, Service]) -> Iterator[str]:
    """What is written is in the volume that it belongs to."""
    for name in (*SERVING, *WORKING):
        for volume, variable in (("store", "SGF_STORE"), ("data", "SGF_DATA_ROOT")):
            trains = name in ("admin", "worker")
            if _behind(services[name], image_facts.variable(variable)) != (volume if trains or volume == "store" else None):
                yield f"{name} has {'no ' if trains or volume == 'store' else ''}{volume} at {variable}"
    for name, (*_, place) in THEIRS.items():
        if _behind(services[name], place) != name:
            yield f"{name} forgets everything"
    if "--storage.tsdb.path=/prometheus" not in services["prometheus"]["command"]:
        yield "Prometheus writes elsewhere than to its volume"


def endings(services: dict[str, Service]) -> Iterator[str]:
    for name in SERVING:
        if _seconds(services[name].get("stop_grace_period", "10s")) <= image_facts.drain_seconds():
            yield f"{name} is killed while it drains"
    if not services["worker"].get("init"):
        yield "nobody reaps what a job leaves"


def gpus(services: dict[str, Service]) -> Iterator[str]:
    for name, service in services.items():
        devices = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        for_gpus = (
            any("gpu" in one["capabilities"] for one in devices),
            service.get("build", {}).get("args", {}).get("VARIANT") == "gpu",
            (service.get("environment") or {}).get("SGF_DEVICE") == "cuda",
            service.get("profiles") == ["gpu"],
        )
        if set(for_gpus) != {name == "service-gpu"}:
            yield f"{name} is half for a GPU: {for_gpus}"


def networks(file: Compose) -> Iterator[str]:
    services, known = file["services"], file["networks"]
    needed = [("prometheus", one) for one in SERVING] + [("grafana", "prometheus")]
    needed += [(one, "redis") for one in IN_REDIS] + [("tls", "service")]
    for one, other in needed:
        if not set(services[one]["networks"]) & set(services[other]["networks"]):
            yield f"{one} does not reach {other}"
    if set(services["redis"]["networks"]) & set(services["grafana"]["networks"]):
        yield "grafana reaches redis"
    for name, service in services.items():
        outside = any(not (known[one] or {}).get("internal") for one in service.get("networks", ()))
        if outside != ("ports" in service):
            yield f"{name} is {'not ' if not outside else ''}on a network that leads out"
    for name in ("prometheus", "grafana"):
        if services[name].get("profiles") != ["observability"]:
            yield f"{name} is not of the profile observability"


def addresses(services: dict[str, Service], scraped: dict[str, Any], source: dict[str, Any]) -> Iterator[str]:
    """Names and ports that services have for each other, and ports of this machine."""
    port = image_facts.variable("SGF_PORT")
    (job,) = scraped["scrape_configs"]
    targets = {one for given in job["static_configs"] for one in given["targets"]}
    targets |= {f"{name}:{given['port']}" for given in job["dns_sd_configs"] for name in given["names"]}
    expected = {f"{name}:{port}" for name in SERVING}
    if targets != expected:
        yield f"Prometheus scrapes {sorted(targets)}, there are {sorted(expected)}"
    if job.get("metrics_path", "/metrics") != "/metrics":
        yield f"Prometheus scrapes {job['metrics_path']}"
    if source["url"] != f"http://prometheus:{THEIRS['prometheus'][1]}":
        yield f"Grafana asks {source['url']}"
    for name in IN_REDIS:
        redis = urlsplit(services[name]["environment"]["SGF_REDIS_URL"])
        if (redis.username, redis.hostname, redis.port) != ("sgf", "redis", THEIRS["redis"][1]):
            yield f"{name} looks for Redis at {redis.netloc}"
    for name in (*SERVING, "grafana"):
        inside = str(THEIRS[name][1]) if name in THEIRS else port
        if [one.rpartition(":")[2] for one in services[name].get("ports", ())] != [inside]:
            yield f"{name} is published from another port than {inside}"
    published = [one.rpartition(":")[0] for service in services.values() for one in service.get("ports", ())]
    if len(published) != len(set(published)):
        yield f"two are published at one port: {published}"


def rights(services: dict[str, Service]) -> Iterator[str]:
    """The exposed services cannot change anything; the password of Redis is where it is used, and nowhere else."""
    for name in SERVING:
        given = services[name]["environment"]
        if ("SGF_ADMIN_TOKEN" in given) != (name == "admin"):
            yield f"{name} {'has an' if 'SGF_ADMIN_TOKEN' in given else 'has no'} admin token"
        if (given["SGF_AUTO_ROLLBACK"] == "false") != (name in EXPOSED):
            yield f"{name} {'rolls' if name in EXPOSED else 'does not roll'} back"
    mounting = {
        name for name, one in services.items() if any(volume.split(":")[0] == PASSWORD for volume in one.get("volumes", ()))
    }
    if mounting != {*IN_REDIS, "redis", "redis-password"}:
        yield f"the password of Redis is mounted by {sorted(mounting)}"
    for name in IN_REDIS:
        if services[name]["environment"].get("SGF_REDIS_PASSWORD_FILE") != _password_file(services):
            yield f"{name} does not know where the password of Redis is"


def proxy(services: dict[str, Service]) -> Iterator[str]:
    """The reverse proxy leads to the service, and allows bodies as large as the service does."""
    config, tls = (ROOT / "deploy" / "tls" / "nginx.conf").read_text(), services["tls"]
    listens = re.findall(r"listen (\d+)", config)
    if sorted(one.rpartition(":")[2] for one in tls.get("ports", ())) != sorted(listens):
        yield f"the proxy is published from other ports than {listens}"
    if f"server service:{image_facts.variable('SGF_PORT')};" not in config:
        yield "the proxy does not lead to the service"
    if f"client_max_body_size {Settings().max_body_bytes // 2**20}m;" not in config:
        yield "the proxy allows other bodies than the service"
    places = [volume.split(":")[1] for volume in tls["volumes"]]
    for file in (tls["entrypoint"][2], *re.findall(r"ssl_certificate\w* (\S+);", config)):
        if not any(image_facts.below(file, place) for place in places):
            yield f"the proxy has no {file}"


def _password_file(services: dict[str, Service]) -> str:
    """Where Redis has it; the others have it there too."""
    places = [volume.split(":")[1] for volume in services["redis"]["volumes"] if volume.startswith(f"{PASSWORD}:")]
    return f"{places[0]}/password" if places else ""


def _behind(service: Service, place: str) -> str | None:
    """The volume that a folder of the container is in."""
    mounts = [volume.split(":") for volume in service.get("volumes", ())]
    return next((one[0] for one in mounts if image_facts.below(place, one[1])), None)


def _source(service: Service, file: str) -> Path:
    """What a file of the container is here."""
    for source, place, *_ in (volume.split(":") for volume in service["volumes"]):
        if image_facts.below(file, place):
            return ROOT / source / file[len(place) + 1 :]
    return ROOT / "nothing"


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", text)
    assert found is not None, text
    return 60 * float(found[1] or 0) + float(found[2] or 0)


def read_yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())
