"""Kubernetes manifests: as they are written, and as kustomize puts them together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from tests.deploy.tools import ROOT, need, run

KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("demo", "production", "gpu")
VERSION = "1.32"
CUSTOM = {"ServiceMonitor", "Kustomization"}
"""Not of Kubernetes itself: its schemas do not have them."""
Manifest = dict[str, Any]


def written(folder: Path = KUBERNETES) -> list[Manifest]:
    """Every document of every file, before kustomize."""
    return [one for path in sorted(folder.rglob("*.yaml")) for one in documents(path.read_text()) if "kind" in one]


def built(overlay: str, folder: Path = KUBERNETES) -> list[Manifest]:
    """What `kubectl apply -k` would send. Raises AssertionError."""
    return documents(run(need("kubectl"), "kustomize", folder / "overlays" / overlay).stdout)


def documents(text: str) -> list[Manifest]:
    return [one for one in yaml.safe_load_all(text) if one]


def check_schema(manifests: list[Manifest]) -> None:
    """Raises kubernetes_validate.ValidationError, which names the field; unknown fields are errors too."""
    for one in manifests:
        if one["kind"] not in CUSTOM:
            kubernetes_validate.validate(one, VERSION, strict=True)


def containers(manifest: Manifest) -> list[Manifest]:
    found: list[Manifest] = pod(manifest).get("containers", [])
    return found


def pod(manifest: Manifest) -> Manifest:
    found: Manifest = template(manifest).get("spec", {})
    return found


def template(manifest: Manifest) -> Manifest:
    """Of its pods; a CronJob has it in the template of its jobs. Empty where there are none."""
    spec = manifest.get("spec", {})
    found: Manifest = spec.get("jobTemplate", {}).get("spec", spec).get("template", {})
    return found


def loose(manifests: list[Manifest]) -> list[str]:
    """What a platform team would refuse: names what is missing, and where."""
    found = []
    for one in manifests:
        name = f"{one['kind']} {one['metadata']['name']}"
        if containers(one) and not pod(one)["securityContext"].get("runAsNonRoot"):
            found.append(f"{name} may run as root")
        if containers(one) and pod(one).get("enableServiceLinks") is not False:
            found.append(f"{name} gets variables with the names of services")
        for container in containers(one):
            security, resources = container.get("securityContext", {}), container.get("resources", {})
            if not security.get("readOnlyRootFilesystem") or security.get("capabilities") != {"drop": ["ALL"]}:
                found.append(f"{name} can write to its root file system or has capabilities")
            if not {"cpu", "memory"} <= set(resources.get("requests", ())) or "memory" not in resources.get("limits", ()):
                found.append(f"{name} does not say what it needs")
    return found


def dangling(manifests: list[Manifest]) -> list[str]:
    """Names that one manifest uses and no other defines: claims, config maps, selectors, targets."""
    have = {(one["kind"], one["metadata"]["name"]) for one in manifests}
    labels = [template(one)["metadata"]["labels"].items() for one in manifests if containers(one)]
    wanted: set[tuple[str, str]] = set()
    found = []
    for one in manifests:
        for volume in pod(one).get("volumes", ()):
            if "persistentVolumeClaim" in volume:
                wanted.add(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]))
        for container in containers(one):
            wanted |= {
                ("ConfigMap", source["configMapRef"]["name"])
                for source in container.get("envFrom", ())
                if "configMapRef" in source
            }
            mounts, volumes = {mount["name"] for mount in container.get("volumeMounts", ())}, pod(one).get("volumes", [])
            claims = one["spec"].get("volumeClaimTemplates", [])
            missing = mounts - {volume["name"] for volume in volumes} - {claim["metadata"]["name"] for claim in claims}
            found += [f"{one['metadata']['name']} mounts {name}, which is no volume" for name in missing]
        if one["kind"] == "HorizontalPodAutoscaler":
            target = one["spec"]["scaleTargetRef"]
            wanted.add((target["kind"], target["name"]))
        if one["kind"] in ("Service", "PodDisruptionBudget"):
            selector = one["spec"]["selector"]
            chosen = selector.get("matchLabels", selector).items()
            if not any(chosen <= own for own in labels):
                found.append(f"{one['kind']} {one['metadata']['name']} selects no pod")
    return found + [f"{kind} {name} is used and not defined" for kind, name in sorted(wanted - have)]
