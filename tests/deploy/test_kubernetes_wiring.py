"""What the manifests say of each other, of the images and of the service is so; and where it is not, it is found."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy import manifests
from tests.deploy.kubernetes_wiring import Answers, complaints, every_container, named
from tests.deploy.manifests import Manifest
from tests.deploy.mutation import GONE, changed
from tests.deploy.tools import need, run
from tests.service.serving import in_thread

BOX = "spec template spec containers 0"


@pytest.fixture(scope="module")
def answers(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    with in_thread(store) as with_a_model, in_thread(tmp_path_factory.mktemp("empty")) as without:

        @functools.cache
        def both(path: str) -> tuple[int, int]:
            return with_a_model.get(path).status_code, without.get(path).status_code

        yield both


@functools.cache
def built(overlay: str) -> list[Manifest]:
    return manifests.built(overlay)


@pytest.mark.parametrize("overlay", manifests.OVERLAYS)
def test_everything_fits(overlay: str, answers: Answers) -> None:
    assert complaints(built(overlay), answers) == []


@pytest.mark.parametrize(
    ("kind", "name", "path", "value", "told"),
    [
        ("Deployment", "sgformer", f"{BOX} readinessProbe httpGet path", "/ready", "asks /ready"),
        ("Deployment", "sgformer", f"{BOX} readinessProbe httpGet path", "/health/live", "readinessProbe asks /health/live"),
        ("Deployment", "sgformer", f"{BOX} livenessProbe httpGet path", "/health/ready", "livenessProbe asks /health/ready"),
        ("Deployment", "sgformer", f"{BOX} startupProbe httpGet path", "/health/ready", "startupProbe asks /health/ready"),
        ("Deployment", "sgformer", f"{BOX} livenessProbe httpGet port", "web", "asks port web"),
        ("Deployment", "sgformer", f"{BOX} readinessProbe", GONE, "not probed"),
        ("StatefulSet", "redis", f"{BOX} livenessProbe tcpSocket port", "http", "asks port http"),
        ("StatefulSet", "redis", f"{BOX} readinessProbe exec command", ["redis-cli", "ping"], "runs ['redis-cli', 'ping']"),
        ("StatefulSet", "redis", f"{BOX} volumeMounts 1 mountPath", "/run/secrets", "redis has no password of Redis"),
        ("Deployment", "sgformer-worker", "spec template spec volumes 2 secret secretName", "redis", "not the secret that"),
        ("ConfigMap", "sgformer", "data SGF_REDIS_PASSWORD_FILE", "/run/password", "SGF_REDIS_PASSWORD_FILE is not"),
        ("Deployment", "sgformer", f"{BOX} env 0 value", "t" * 20, "sgformer may administer the store"),
        ("Deployment", "sgformer", f"{BOX} env 1 value", "true", "sgformer may administer the store"),
        ("Deployment", "sgformer", f"{BOX} envFrom 1 secretRef name", "sgformer-admin", "has the secret of sgformer-admin"),
        ("Deployment", "sgformer-admin", f"{BOX} volumeMounts 0 readOnly", True, "sgformer-admin cannot write to SGF_STORE"),
        ("Deployment", "sgformer-admin", f"{BOX} lifecycle", GONE, "sgformer-admin ends before"),
        (
            "NetworkPolicy",
            "sgformer-admin",
            "spec ingress 0 from 0 namespaceSelector matchLabels",
            {},
            "lets shop in at 8000",
        ),
        ("NetworkPolicy", "sgformer-admin", "spec egress", [], "sgformer-admin does not reach redis:6379"),
        ("Deployment", "sgformer", f"{BOX} ports 0 containerPort", 8080, "opens 8080"),
        ("Deployment", "sgformer", f"{BOX} ports 0 name", "web", "asks port http"),
        ("Service", "sgformer", "spec ports 0 targetPort", "web", "leads to port web"),
        ("Service", "redis", "spec ports 0 targetPort", "http", "leads to port http"),
        ("Service", "redis", "spec ports 0 port", 6380, "no Service redis:6379"),
        ("Service", "sgformer", "spec ports 0 name", "web", "scrapes port http"),
        ("ServiceMonitor", "sgformer", "spec endpoints 0 path", "/metric", "scrapes /metric"),
        ("ServiceMonitor", "sgformer", "spec endpoints 0 port", "metrics", "scrapes port metrics"),
        (
            "ServiceMonitor",
            "sgformer",
            "spec selector matchExpressions 0 values",
            ["sgformer"],
            "does not select Service sgformer-admin",
        ),
        ("ServiceMonitor", "sgformer", "spec jobLabel", "app", "not the one of the alerts"),
        ("PodDisruptionBudget", "sgformer", "spec minAvailable", 2, "no node be drained"),
        ("PodDisruptionBudget", "sgformer", "spec selector matchLabels app.kubernetes.io/name", "redis", "not about"),
        ("HorizontalPodAutoscaler", "sgformer", "spec minReplicas", 1, "no node be drained"),
        ("Deployment", "sgformer", f"{BOX} volumeMounts 2 mountPath", "/temp", "no /tmp"),
        (
            "Deployment",
            "sgformer",
            f"{BOX} volumeMounts 0 mountPath",
            "/var/lib/sgformer/models",
            "does not mount SGF_STORE",
        ),
        ("Deployment", "sgformer", f"{BOX} volumeMounts 0 readOnly", False, "sgformer can write to SGF_STORE"),
        ("Deployment", "sgformer-worker", f"{BOX} volumeMounts 1 mountPath", "/data", "does not mount SGF_DATA_ROOT"),
        (
            "Deployment",
            "sgformer-worker",
            "spec template spec volumes 0 persistentVolumeClaim claimName",
            "data",
            "something else as SGF_STORE",
        ),
        ("Deployment", "sgformer-worker", "spec template spec shareProcessNamespace", GONE, "nobody reaps"),
        ("Deployment", "sgformer-worker", f"{BOX} resources requests cpu", "4", "cores that it asks for"),
        ("CronJob", "prune", "spec jobTemplate spec template spec containers 0 command 0", "sgf-model", "no program"),
        ("Deployment", "sgformer", f"{BOX} envFrom 1 secretRef name", "sgf", "not the one that docs/deployment.md makes"),
        ("Deployment", "sgformer", f"{BOX} lifecycle", GONE, "before its endpoint is taken out"),
        ("Deployment", "sgformer", "spec template spec terminationGracePeriodSeconds", 10, "killed while it drains"),
        ("ConfigMap", "sgformer", "data SGF_REDIS_URL", "redis://sgf@cache:6379/0", "no Service cache:6379"),
        ("ConfigMap", "sgformer", "data SGF_TRAINING_THREADS", GONE, "cores that it asks for"),
        ("Deployment", "sgformer", "spec template metadata labels app.kubernetes.io/name", "web", "leads to port http"),
        ("NetworkPolicy", "names", "spec egress 0 ports 0 port", 54, "cannot ask for names by UDP"),
        ("NetworkPolicy", "names", "spec egress 0 ports", [{"protocol": "UDP", "port": 53}], "cannot ask for names by TCP"),
        ("NetworkPolicy", "names", "spec egress 0 to 0 namespaceSelector matchLabels", {"a": "b"}, "cannot ask for names"),
        ("NetworkPolicy", "names", "spec podSelector", {"matchLabels": {"a": "b"}}, "cannot ask for names"),
        ("NetworkPolicy", "names", "spec egress 0 to", [], "reaches stranger:53"),
        ("NetworkPolicy", "nothing", "spec policyTypes", ["Egress"], "prune lets stranger in at 8000"),
        ("NetworkPolicy", "sgformer", "spec ingress 0 ports 0 port", 80, "shop does not reach sgformer:8000"),
        (
            "NetworkPolicy",
            "sgformer",
            "spec ingress 0 from 0 namespaceSelector matchLabels",
            {},
            "sgformer lets stranger in",
        ),
        (
            "NetworkPolicy",
            "sgformer",
            "spec ingress 0 from 1 namespaceSelector matchLabels",
            {"kubernetes.io/metadata.name": "monitor"},
            "prometheus does not reach sgformer:8000",
        ),
        ("NetworkPolicy", "sgformer", "spec ingress 0 from", [], "sgformer lets stranger in"),
        ("NetworkPolicy", "sgformer", "spec egress 0 ports 0 port", 6380, "sgformer does not reach redis:6379"),
        ("NetworkPolicy", "sgformer-worker", "spec egress", [], "sgformer-worker does not reach redis:6379"),
        (
            "NetworkPolicy",
            "redis",
            "spec ingress 0 from 0 podSelector matchExpressions 0 values",
            ["sgformer"],
            "sgformer-worker does not reach redis:6379",
        ),
        ("NetworkPolicy", "redis", "spec ingress 0 from 0 podSelector", {}, "redis lets prune in at 6379"),
        (
            "NetworkPolicy",
            "redis",
            "spec podSelector matchLabels app.kubernetes.io/name",
            "cache",
            "does not reach redis:6379",
        ),
    ],
)
def test_one_wrong_wire_is_found(kind: str, name: str, path: str, value: Any, told: str, answers: Answers) -> None:
    found = "\n".join(complaints(with_change(built("production"), kind, name, path, value), answers))
    assert told in found


@pytest.mark.parametrize(
    ("kind", "name", "path", "value", "told"),
    [
        ("Job", "train-demo", "spec ttlSecondsAfterFinished", GONE, "stays for ever"),
        ("Job", "train-demo", f"{BOX} command 2", "sgf-train --recipe digit", "no recipe digit"),
        ("Job", "train-demo", f"{BOX} volumeMounts 1 mountPath", "/cache", "no /tmp"),
    ],
)
def test_one_wrong_wire_of_the_demo_is_found(
    kind: str, name: str, path: str, value: Any, told: str, answers: Answers
) -> None:
    assert told in "\n".join(complaints(with_change(built("demo"), kind, name, path, value), answers))


def idle(kustomization: dict[str, Any], resources: list[Manifest]) -> list[str]:
    """What it would change and is not there: kustomize says nothing about that."""
    have = {(one["kind"], one["metadata"]["name"]) for one in resources}
    images = {container["image"].rpartition(":")[0] or container["image"] for _, container in every_container(resources)}
    found = [
        f"a patch is for {target}"
        for target in (patch["target"] for patch in kustomization.get("patches", ()))
        if not any(kind == target["kind"] and target.get("name", name) == name for kind, name in have)
    ]
    found += [f"no image is {one['name']}" for one in kustomization.get("images", ()) if one["name"] not in images]
    replicated = {name for kind, name in have if kind in ("Deployment", "StatefulSet")}
    return found + [f"no {one['name']}" for one in kustomization.get("replicas", ()) if one["name"] not in replicated]


def read(overlay: str) -> tuple[dict[str, Any], list[Manifest]]:
    """The overlay's kustomization, and what it starts from."""
    folder, found = manifests.KUBERNETES / "overlays" / overlay, []
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    for name in kustomization["resources"]:
        path = folder / name
        text = run(need("kubectl"), "kustomize", path).stdout if path.is_dir() else path.read_text()
        found += manifests.documents(text)
    return kustomization, found


@pytest.mark.parametrize("overlay", manifests.OVERLAYS)
def test_whatever_an_overlay_changes_is_there(overlay: str) -> None:
    assert idle(*read(overlay)) == []


@pytest.mark.parametrize(
    ("overlay", "path", "value", "told"),
    [
        ("production", "patches 0 target name", "sgformers", "a patch is for"),
        ("gpu", "patches 0 target kind", "StatefulSet", "a patch is for"),
        ("demo", "patches 1 target kind", "PodDisruptionBudgets", "a patch is for"),
        ("gpu", "images 0 name", "sgformer-serving", "no image is sgformer-serving"),
        ("demo", "replicas 0 name", "sgformer-service", "no sgformer-service"),
    ],
)
def test_a_change_of_nothing_is_found(overlay: str, path: str, value: str, told: str) -> None:
    kustomization, resources = read(overlay)
    assert told in "\n".join(idle(changed(kustomization, path, value), resources))


def with_change(tree: list[Manifest], kind: str, name: str, path: str, value: Any) -> list[Manifest]:
    one = named(tree, kind, name)
    return [changed(one, path, value) if other is one else other for other in tree]
