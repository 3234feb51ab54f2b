"""Manifests against the schemas of Kubernetes, as written and as kustomize builds them."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from model_store import Store
from service.settings import Settings
from tests.commands import commands_of
from tests.deploy import manifests, queries
from tests.deploy.deployment_files import password_file
from tests.deploy.tools import ROOT, run
from tests.model_store.samples import publish


def test_everything_written_follows_the_schemas() -> None:
    found = manifests.written()
    assert {
        "Deployment",
        "StatefulSet",
        "Job",
        "CronJob",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "HorizontalPodAutoscaler",
    } <= {one["kind"] for one in found}
    manifests.check_schema(found)


@pytest.mark.parametrize("overlay", manifests.OVERLAYS)
def test_every_overlay_builds_into_something_whole(overlay: str) -> None:
    found = manifests.built(overlay)
    manifests.check_schema(found)
    assert manifests.loose(found) == []
    assert manifests.dangling(found) == []
    assert {one["metadata"].get("namespace", "sgformer") for one in found} == {"sgformer"}


@pytest.mark.parametrize(
    ("file", "right", "wrong", "told"),
    [
        ("service.yaml", "replicas: 2", "replicas: two", "is not of type 'integer'"),
        ("service.yaml", "readinessProbe:", "readynessProbe:", "readynessProbe"),
        ("network.yaml", "podSelector: {}", "podSelectors: {}", "podSelectors"),
    ],
)
def test_what_is_not_in_the_schema_is_found(tmp_path: Path, file: str, right: str, wrong: str, told: str) -> None:
    with pytest.raises(kubernetes_validate.ValidationError) as caught:
        manifests.check_schema(manifests.written(broken(tmp_path, f"base/{file}", right, wrong)))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("file", "right", "wrong", "told"),
    [
        ("base/service.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "can write"),
        ("base/service.yaml", "runAsNonRoot: true", "runAsNonRoot: false", "may run as root"),
        ("base/prune.yaml", "enableServiceLinks: false", "enableServiceLinks: true", "CronJob prune gets variables"),
        ("base/prune.yaml", "claimName: store", "claimName: stores", "stores is used and not defined"),
        ("base/worker.yaml", 'cpu: "1", memory: 1Gi', "memory: 1Gi", "does not say what it needs"),
        ("base/service.yaml", "claimName: store", "claimName: stores", "stores is used and not defined"),
        ("base/service.yaml", "{name: tmp, mountPath: /tmp}", "{name: temp, mountPath: /tmp}", "mounts temp"),
        (
            "overlays/production/autoscaler.yaml",
            "    name: sgformer\n",
            "    name: sgformers\n",
            "sgformers is used and not defined",
        ),
    ],
)
def test_what_does_not_fit_together_is_found(tmp_path: Path, file: str, right: str, wrong: str, told: str) -> None:
    found = manifests.built("production", broken(tmp_path, file, right, wrong))
    assert told in "\n".join(manifests.loose(found) + manifests.dangling(found))


def test_kustomize_finds_a_patch_without_a_target(tmp_path: Path) -> None:
    folder = broken(tmp_path, "base/kustomization.yaml", "  - worker.yaml\n", "  - walker.yaml\n")
    with pytest.raises(AssertionError, match=r"walker\.yaml"):
        manifests.built("demo", folder)


def test_the_service_knows_every_setting_that_it_is_given(tmp_path: Path) -> None:
    config = next(one for one in manifests.built("production") if one["kind"] == "ConfigMap")
    assert Settings.from_env(config["data"] | password_file(tmp_path)).redis_url == "redis://sgf@redis:6379/0"


def test_the_worker_has_the_settings_of_the_service() -> None:
    """One of them alone with SGF_TRAINING_SECONDS would be believed, and the other one train for as long as it likes."""
    found = {one["metadata"]["name"]: one for one in manifests.built("production") if one["kind"] == "Deployment"}
    service, worker = (manifests.containers(found[name])[0]["envFrom"] for name in ("sgformer", "sgformer-worker"))
    assert [one for one in service if "configMapRef" in one] == worker


def test_no_image_of_ours_is_pulled_in_spite_of_being_there() -> None:
    """Kubernetes always pulls `latest`, which fails for an image that was only loaded into the cluster."""
    for overlay in manifests.OVERLAYS:
        for one in manifests.built(overlay):
            for container in manifests.containers(one):
                assert re.search(r":\d+\.\d+", container["image"]), f"{overlay}: {container['image']}"


def test_only_the_images_that_serve_are_for_gpus() -> None:
    """Nothing in training/ uses one: a worker would hold it for nothing."""
    for one in manifests.built("gpu"):
        for container in manifests.containers(one):
            gpu = "nvidia.com/gpu" in container["resources"]["limits"]
            assert gpu == (one["kind"] == "Deployment" and one["metadata"]["name"] == "sgformer")


def test_every_model_is_pruned_every_night(tmp_path: Path) -> None:
    """The command of the job as written: on an empty store, and beside a model whose first publication failed."""
    (job,) = (one for one in manifests.written() if one["kind"] == "CronJob")
    command = manifests.containers(job)[0]["command"]
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run(*command, env={"PATH": programs, "SGF_STORE": str(tmp_path)})
    store = Store(tmp_path)
    for model in ("one", "two"):
        for version in range(1, 6):
            publish(store, model=model, activate=version == 1)
    (tmp_path / "empty").mkdir()
    run(*command, env={"PATH": programs, "SGF_STORE": str(tmp_path)})
    assert [store.model(model).versions() for model in ("one", "two")] == [[1, 3, 4, 5]] * 2


def test_the_autoscaler_asks_for_what_the_adapter_offers() -> None:
    rules = yaml.safe_load((manifests.KUBERNETES / "prometheus-adapter-rules.yaml").read_text())["rules"]["custom"]
    offered = {rule["name"]["as"] for rule in rules}
    scaler = next(one for one in manifests.written() if one["kind"] == "HorizontalPodAutoscaler")
    asked = {one["pods"]["metric"]["name"] for one in scaler["spec"]["metrics"] if one["type"] == "Pods"}
    assert asked == offered
    for rule in rules:
        query = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'pod="a"').replace("<<.GroupBy>>", "pod")
        assert {name for name, _ in queries.needed(query)} <= {name for name, _ in queries.needed(rule["seriesQuery"])}


def test_the_alerts_become_what_the_prometheus_operator_takes() -> None:
    """By the line of the page that brings them, without its last step; with the label of the ServiceMonitor."""
    (line,) = (one.text for one in commands_of(ROOT, "docs/deployment.md") if "PrometheusRule" in one.text)
    rule = yaml.safe_load(run("sh", "-c", line.removesuffix(" | kubectl apply -n sgformer -f -"), cwd=ROOT).stdout)
    monitor = next(one for one in manifests.written() if one["kind"] == "ServiceMonitor")
    assert rule["kind"] == "PrometheusRule"
    assert rule["metadata"]["labels"] == monitor["metadata"]["labels"]
    assert rule["spec"] == yaml.safe_load(queries.ALERTS.read_text())


def test_the_user_is_that_of_the_dockerfile() -> None:
    for one in manifests.written():
        if any("sgformer" in container["image"] for container in manifests.containers(one)):
            assert manifests.pod(one)["securityContext"]["runAsUser"] == 10001
    assert "USER 10001:10001" in (ROOT / "Dockerfile").read_text()


def broken(tmp_path: Path, file: str, right: str, wrong: str) -> Path:
    """A copy of all manifests with one thing wrong."""
    copied = Path(shutil.copytree(manifests.KUBERNETES, tmp_path / "kubernetes"))
    text = (copied / file).read_text()
    assert right in text
    (copied / file).write_text(text.replace(right, wrong))
    return copied
