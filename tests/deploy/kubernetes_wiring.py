"""Whether the manifests fit together, fit the images, and fit the service inside. Each check names what does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from tests.deploy import image_facts
from tests.deploy.compose_wiring import PING
from tests.deploy.manifests import Manifest, containers, pod, template
from tests.deploy.policies import selects, wrong_ways
from tests.deploy.tools import ROOT

Answers = Callable[[str], tuple[int, int]]
"""Of a path: the status from a service that has a model, and from one that has none."""
PROBES = {"startupProbe": (200, 200), "livenessProbe": (200, 200), "readinessProbe": (200, 503)}
"""Alive is alive without a model: that is no reason to be killed. Ready is not."""
SERVING, WORKER = "sgformer-serving", "sgformer-worker"
EXPOSED, ADMIN = "sgformer", "sgformer-admin"
"""Deployments of the serving image."""
PASSWORD_FILE = "/run/redis-auth/password"  # noqa: S105  # where it is, not what


def complaints(manifests: list[Manifest], answers: Answers) -> list[str]:
    checks = (probes(manifests, answers), ports(manifests), monitors(manifests, answers), budgets(manifests))
    others = (volumes(manifests), commands(manifests), settings(manifests), endings(manifests), rights(manifests))
    return [told for check in (*checks, *others) for told in check] + wrong_ways(manifests)


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [one for one in manifests if one["kind"] in kinds]


def named(manifests: list[Manifest], kind: str, name: str = "sgformer") -> Manifest:
    """A ConfigMap has a hash of what is in it behind its name."""
    return next(
        one for one in of_kind(manifests, kind) if re.fullmatch(rf"{name}(-[a-z0-9]{{10}})?", one["metadata"]["name"])
    )


def every_container(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Manifest]]:
    yield from ((one, container) for one in manifests for container in containers(one))


def probes(manifests: list[Manifest], answers: Answers) -> Iterator[str]:
    for one, container in every_container(manifests):
        serves = SERVING in container["image"] and one["kind"] == "Deployment"
        if serves and not PROBES.keys() <= container.keys():
            yield f"{one['metadata']['name']} is not probed for everything"
        open_ports = {port["name"] for port in container.get("ports", ())}
        for name, expected in PROBES.items():
            probe = container.get(name, {})
            port = probe.get("httpGet", probe.get("tcpSocket", {})).get("port")
            if port is not None and port not in open_ports:
                yield f"{name} asks port {port}"
            if "httpGet" in probe and answers(probe["httpGet"]["path"]) != expected:
                yield f"{name} asks {probe['httpGet']['path']}, which answers {answers(probe['httpGet']['path'])}"
            if "exec" in probe and probe["exec"]["command"] != [
                "sh",
                "-c",
                PING.format(file=PASSWORD_FILE).replace("$$", "$"),
            ]:
                yield f"{name} runs {probe['exec']['command']}"


def ports(manifests: list[Manifest]) -> Iterator[str]:
    for one, container in every_container(manifests):
        expected = {"redis": 6379}.get(one["metadata"]["name"], int(image_facts.variable("SGF_PORT")))
        for port in container.get("ports", ()):
            if port["containerPort"] != expected:
                yield f"{one['metadata']['name']} opens {port['containerPort']}, its program {expected}"
    for service in of_kind(manifests, "Service"):
        selector = service["spec"]["selector"]
        chosen = [made for made in manifests if containers(made) and selects({"matchLabels": selector}, _labels(made))]
        have = {port["name"] for made in chosen for container in containers(made) for port in container.get("ports", ())}
        for port in service["spec"]["ports"]:
            if port["targetPort"] not in have:
                yield f"Service {service['metadata']['name']} leads to port {port['targetPort']}"


def monitors(manifests: list[Manifest], answers: Answers) -> Iterator[str]:
    for one in of_kind(manifests, "ServiceMonitor"):
        for service in (named(manifests, "Service", name) for name in (EXPOSED, ADMIN)):
            name, labels = service["metadata"]["name"], service["metadata"]["labels"]
            if not selects(one["spec"]["selector"], labels):
                yield f"the ServiceMonitor does not select Service {name}"
            if labels.get(one["spec"]["jobLabel"]) != "sgformer":
                yield f"the ServiceMonitor's job of {name} is not the one of the alerts"
            for endpoint in one["spec"]["endpoints"]:
                if endpoint["port"] not in {port["name"] for port in service["spec"]["ports"]}:
                    yield f"the ServiceMonitor scrapes port {endpoint['port']}"
                if answers(endpoint["path"]) != (200, 200) or endpoint["path"].startswith("/health"):
                    yield f"the ServiceMonitor scrapes {endpoint['path']}"


def budgets(manifests: list[Manifest]) -> Iterator[str]:
    deployment = named(manifests, "Deployment")
    fewest = min([one["spec"]["minReplicas"] for one in of_kind(manifests, "HorizontalPodAutoscaler")] or [0])
    for one in of_kind(manifests, "PodDisruptionBudget"):
        if one["spec"]["minAvailable"] >= (fewest or deployment["spec"].get("replicas", 1)):
            yield "the budget lets no node be drained"
        if not selects(one["spec"]["selector"], _labels(deployment)):
            yield "the budget is not about the service"


def volumes(manifests: list[Manifest]) -> Iterator[str]:
    """Every image of ours has /tmp and its folders, and the same claims stand behind them."""
    for one, container in every_container(manifests):
        if "sgformer" not in container["image"]:
            continue
        name, mounts = one["metadata"]["name"], {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        if "/tmp" not in mounts or "emptyDir" not in _volume(one, mounts["/tmp"]["name"]):  # noqa: S108  # in a container
            yield f"{name} has no /tmp to write to"
        folders = {"store": "SGF_STORE"} | ({"data": "SGF_DATA_ROOT"} if name in (ADMIN, WORKER) else {})
        for claim, variable in folders.items():
            place = next((path for path in mounts if image_facts.below(image_facts.variable(variable), path)), None)
            if place is None:
                yield f"{name} does not mount {variable}"
            elif _volume(one, mounts[place]["name"]).get("persistentVolumeClaim", {}).get("claimName") != claim:
                yield f"{name} has something else as {variable}"
            elif mounts[place].get("readOnly", False) != ((name, claim) in {(EXPOSED, "store"), (ADMIN, "data")}):
                yield f"{name} {'cannot' if mounts[place].get('readOnly') else 'can'} write to {variable}"


def commands(manifests: list[Manifest]) -> Iterator[str]:
    for one, container in every_container(manifests):
        if "sgformer" in container["image"]:
            yield from (
                f"{one['metadata']['name']}: {told}" for told in image_facts.unknown_words(container.get("command", []))
            )


def settings(manifests: list[Manifest]) -> Iterator[str]:
    given = named(manifests, "ConfigMap")["data"]
    redis = urlsplit(given["SGF_REDIS_URL"])
    services = {
        (one["metadata"]["name"], port["port"]) for one in of_kind(manifests, "Service") for port in one["spec"]["ports"]
    }
    if (redis.hostname, redis.port) not in services:
        yield f"there is no Service {redis.hostname}:{redis.port}"
    worker = containers(named(manifests, "Deployment", WORKER))[0]
    if worker["resources"]["requests"]["cpu"] != given.get("SGF_TRAINING_THREADS"):
        yield "the worker does not train with the cores that it asks for"
    page = (ROOT / "docs" / "deployment.md").read_text()
    for name in (EXPOSED, ADMIN):
        given_from = containers(named(manifests, "Deployment", name))[0]["envFrom"]
        secrets = [one["secretRef"]["name"] for one in given_from if "secretRef" in one]
        if not secrets or f"kubectl create secret generic {secrets[0]} -n sgformer" not in page:
            yield f"the secret of {name} is {secrets}: not the one that docs/deployment.md makes"


def rights(manifests: list[Manifest]) -> Iterator[str]:
    """The exposed service cannot change anything; the password of Redis is where it is used, from the secret of the page."""
    for name in (EXPOSED, ADMIN):
        container = containers(named(manifests, "Deployment", name))[0]
        given = {one["name"]: one["value"] for one in container.get("env", ())}
        off = (given.get("SGF_ADMIN_TOKEN") == "", given.get("SGF_AUTO_ROLLBACK") == "false")
        if off != (name == EXPOSED, name == EXPOSED):
            yield f"{name} {'may' if name == EXPOSED else 'may not'} administer the store"
    if "sgformer-admin" in str(containers(named(manifests, "Deployment"))[0]["envFrom"]):
        yield "sgformer has the secret of sgformer-admin"
    page = (ROOT / "docs" / "deployment.md").read_text()
    if named(manifests, "ConfigMap")["data"].get("SGF_REDIS_PASSWORD_FILE") != PASSWORD_FILE:
        yield f"SGF_REDIS_PASSWORD_FILE is not {PASSWORD_FILE}"
    for one, container in every_container(manifests):
        name, mounts = one["metadata"]["name"], {mount["mountPath"]: mount for mount in container.get("volumeMounts", ())}
        mount = mounts.get(PASSWORD_FILE.rpartition("/")[0])
        if (mount is not None) != (name in (EXPOSED, ADMIN, WORKER, "redis")):
            yield f"{name} {'has' if mount else 'has no'} password of Redis"
        secret = {} if mount is None else _volume(one, mount["name"]).get("secret", {})
        if (
            mount is not None
            and f"kubectl create secret generic {secret.get('secretName')} -n sgformer --from-literal=password=" not in page
        ):
            yield f"{name} takes the password of Redis from {secret}: not the secret that docs/deployment.md makes"


def endings(manifests: list[Manifest]) -> Iterator[str]:
    """A drain that is killed before its end is none; and what nobody reaps or removes stays."""
    for service in (named(manifests, "Deployment", name) for name in (EXPOSED, ADMIN)):
        ends = containers(service)[0].get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
        if int(ends[1]) < 1:
            yield f"{service['metadata']['name']} ends before its endpoint is taken out"
        if pod(service).get("terminationGracePeriodSeconds", 30) <= int(ends[1]) + image_facts.drain_seconds():
            yield f"{service['metadata']['name']} is killed while it drains"
    if not pod(named(manifests, "Deployment", WORKER)).get("shareProcessNamespace"):
        yield "nobody reaps what a job leaves"
    for one in of_kind(manifests, "Job"):
        if "ttlSecondsAfterFinished" not in one["spec"]:
            yield f"Job {one['metadata']['name']} stays for ever, and refuses the next apply"


def _volume(one: Manifest, name: str) -> dict[str, Any]:
    return next((volume for volume in pod(one)["volumes"] if volume["name"] == name), {})


def _labels(one: Manifest) -> dict[str, str]:
    found: dict[str, str] = template(one)["metadata"]["labels"]
    return found
