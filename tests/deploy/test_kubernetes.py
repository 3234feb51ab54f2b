"""Manifests against the schemas of Kubernetes, as written and as kustomize builds them."""

from __future__ import annotations

import shutil
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from service.settings import Settings
from tests.deploy import manifests, queries
from tests.deploy.tools import ROOT


def test_everything_written_follows_the_schemas() -> None:
    found = manifests.written()
    assert {"Deployment", "StatefulSet", "Job", "NetworkPolicy", "PodDisruptionBudget", "HorizontalPodAutoscaler"} <= {
        one["kind"] for one in found
    }
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


def test_the_service_knows_every_setting_that_it_is_given() -> None:
    config = next(one for one in manifests.built("production") if one["kind"] == "ConfigMap")
    assert Settings.from_env(config["data"]).redis_url == "redis://redis:6379/0"


def test_the_autoscaler_asks_for_what_the_adapter_offers() -> None:
    rules = yaml.safe_load((manifests.KUBERNETES / "prometheus-adapter-rules.yaml").read_text())["rules"]["custom"]
    offered = {rule["name"]["as"] for rule in rules}
    scaler = next(one for one in manifests.written() if one["kind"] == "HorizontalPodAutoscaler")
    asked = {one["pods"]["metric"]["name"] for one in scaler["spec"]["metrics"] if one["type"] == "Pods"}
    assert asked == offered
    for rule in rules:
        query = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'pod="a"').replace("<<.GroupBy>>", "pod")
        assert {name for name, _ in queries.needed(query)} <= {name for name, _ in queries.needed(rule["seriesQuery"])}


def test_the_monitor_selects_the_service_by_a_port_that_it_has() -> None:
    """No package ships the schema of this custom resource: what matters of it is compared by hand."""
    found = {one["kind"]: one for one in manifests.built("production") if one["metadata"]["name"] == "sgformer"}
    monitor, service = found["ServiceMonitor"], found["Service"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {one["port"] for one in monitor["spec"]["endpoints"]} <= {one["name"] for one in service["spec"]["ports"]}
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "sgformer"
    assert 'job="sgformer"' in queries.ALERTS.read_text()


def test_images_and_volumes_are_those_of_the_dockerfile() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    for one in manifests.written():
        for container in manifests.containers(one):
            if "sgformer" in container["image"]:
                assert manifests.pod(one)["securityContext"]["runAsUser"] == 10001
                for mount in container["volumeMounts"]:
                    assert mount["mountPath"] in dockerfile or mount["mountPath"] == "/tmp"  # noqa: S108  # inside the image


def broken(tmp_path: Path, file: str, right: str, wrong: str) -> Path:
    """A copy of all manifests with one thing wrong."""
    copied = Path(shutil.copytree(manifests.KUBERNETES, tmp_path / "kubernetes"))
    text = (copied / file).read_text()
    assert right in text
    (copied / file).write_text(text.replace(right, wrong))
    return copied
