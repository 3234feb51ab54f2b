"""Kubernetes manifests: as they are written, and as kustomize builds them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.deploy.tools import ROOT, need, run

KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("demo", "production", "gpu", "training", "kubeflow")
Manifest = dict[str, Any]


def documents(text: str) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(text) if document]


def written() -> list[Manifest]:
    """Every document of every file, before kustomize."""
    files = sorted(KUBERNETES.rglob("*.yaml"))
    return [document for path in files for document in documents(path.read_text()) if "kind" in document]


@functools.cache
def kustomize(folder: str) -> list[Manifest]:
    """The manifests that `kubectl apply -k` would send."""
    return documents(run(need("kubectl"), "kustomize", KUBERNETES / folder).stdout)


def built(overlay: str) -> list[Manifest]:
    return kustomize(f"overlays/{overlay}")


def named(manifests: list[Manifest], kind: str, name: str = "sgformer") -> Manifest:
    """The manifest of a kind and a name. kustomize adds a hash to the name of a ConfigMap."""
    pattern = re.compile(rf"{name}(-[a-z0-9]{{10}})?")
    return next(manifest for manifest in of_kind(manifests, kind) if pattern.fullmatch(manifest["metadata"]["name"]))


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def template(manifest: Manifest) -> Manifest:
    """The template of the manifest's pods; a CronJob has it in the template of its jobs, and Kubeflow's TrainingRuntime in
    that of its only group of jobs. Empty where there are no pods.
    """
    spec = manifest.get("spec", {})
    if manifest["kind"] == "TrainingRuntime":
        (group,) = spec["template"]["spec"]["replicatedJobs"]
        spec = group["template"]["spec"]
    pods: Manifest = spec.get("jobTemplate", {}).get("spec", spec).get("template", {})
    return pods


def pod(manifest: Manifest) -> Manifest:
    spec: Manifest = template(manifest).get("spec", {})
    return spec


def labels(manifest: Manifest) -> dict[str, str]:
    """The labels of the manifest's pods."""
    pairs: dict[str, str] = template(manifest).get("metadata", {}).get("labels", {})
    return pairs


def containers(manifest: Manifest) -> list[Manifest]:
    listed: list[Manifest] = pod(manifest).get("containers", [])
    return listed


def every_container(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest, Manifest]]:
    """The name of its manifest, the manifest, and the container."""
    for manifest in manifests:
        yield from ((manifest["metadata"]["name"], manifest, container) for container in containers(manifest))


def mounts(container: Manifest) -> dict[str, Manifest]:
    """The mounts of a container, by path."""
    return {mount["mountPath"]: mount for mount in container.get("volumeMounts", ())}


def volume(manifest: Manifest, name: str) -> Manifest:
    """A volume of the manifest's pods, or a template of a claim. Empty where there is none of that name."""
    claims = manifest["spec"].get("volumeClaimTemplates", ())
    volumes = [*pod(manifest).get("volumes", ()), *({"name": claim["metadata"]["name"], "claim": True} for claim in claims)]
    return next((entry for entry in volumes if entry["name"] == name), {})
