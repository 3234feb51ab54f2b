"""Kubernetes manifests: they follow the schemas, fit together, and fit the images and the service. No cluster is needed."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from model_store import Store
from service.settings import Settings
from tests.commands import commands_of
from tests.deploy import queries
from tests.deploy.deployment_files import (
    DOCKERFILE,
    REDIS_HEALTH,
    check_words,
    drain_seconds,
    image_variable,
    is_below,
    password_file,
)
from tests.deploy.manifests import (
    KUBERNETES,
    OVERLAYS,
    Manifest,
    built,
    containers,
    documents,
    every_container,
    kustomize,
    labels,
    mounts,
    named,
    of_kind,
    pod,
    volume,
    written,
)
from tests.deploy.network_policies import Party, admits, allowed, other, ours, selects
from tests.deploy.tools import ROOT, run
from tests.model_store.samples import publish
from tests.service.serving import in_thread

EXPOSED, ADMIN, WORKER = "sgformer", "sgformer-admin", "sgformer-worker"
TRAINING = ("train", "sgformer-torch")
"""The manifests whose pods train over several hosts."""
NOT_IN_THE_SCHEMAS = ("ServiceMonitor", "Kustomization", "TrainingRuntime", "TrainJob")
SERVING = (EXPOSED, ADMIN)
PASSWORD_FOLDER = "/run/redis-auth"  # noqa: S105  # a path
GUIDE = (ROOT / "docs" / "deployment.md").read_text()
PROBES = {"startupProbe": (200, 200), "livenessProbe": (200, 200), "readinessProbe": (200, 503)}
"""The statuses of a service with a model and of one without: the latter is alive, and not ready."""
Statuses = Callable[[str], tuple[int, int]]


@pytest.fixture(params=OVERLAYS)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return built(request.param)


@pytest.fixture(scope="module")
def statuses(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Statuses]:
    """Of a path: the status from a service with a model, and from one without."""
    with in_thread(store) as ready, in_thread(tmp_path_factory.mktemp("empty")) as empty:
        yield functools.cache(lambda path: (ready.get(path).status_code, empty.get(path).status_code))


def check_schema(manifests: list[Manifest]) -> None:
    """Raises kubernetes_validate.ValidationError, which names the field; unknown fields are errors too."""
    for manifest in manifests:
        if manifest["kind"] not in NOT_IN_THE_SCHEMAS:  # of Kubernetes
            kubernetes_validate.validate(manifest, "1.32", strict=True)


def test_everything_written_follows_the_schemas() -> None:
    kinds = {
        "Deployment",
        "StatefulSet",
        "Job",
        "CronJob",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "HorizontalPodAutoscaler",
    }
    assert kinds <= {manifest["kind"] for manifest in written()}
    check_schema(written())


@pytest.mark.parametrize(
    ("file", "right", "wrong", "error"),
    [
        ("service.yaml", "replicas: 2", "replicas: two", "is not of type 'integer'"),
        ("service.yaml", "readinessProbe:", "readynessProbe:", "readynessProbe"),
        ("network.yaml", "podSelector: {}", "podSelectors: {}", "podSelectors"),
    ],
)
def test_the_schemas_reject_a_broken_manifest(file: str, right: str, wrong: str, error: str) -> None:
    text = (KUBERNETES / "base" / file).read_text()
    with pytest.raises(kubernetes_validate.ValidationError) as caught:
        check_schema(documents(text.replace(right, wrong)))
    assert error in str(caught.value)


def test_every_overlay_follows_the_schemas_in_one_namespace(manifests: list[Manifest]) -> None:
    check_schema(manifests)
    assert {manifest["metadata"].get("namespace", "sgformer") for manifest in manifests} == {"sgformer"}


def test_pods_are_confined_and_say_what_they_need(manifests: list[Manifest]) -> None:
    for name, manifest, container in every_container(manifests):
        assert pod(manifest)["securityContext"]["runAsNonRoot"], name
        assert pod(manifest)["enableServiceLinks"] is False, name
        assert container["securityContext"]["readOnlyRootFilesystem"], name
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
        assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
        assert "memory" in container["resources"]["limits"], name
        if "sgformer" in container["image"]:
            assert pod(manifest)["securityContext"]["runAsUser"] == 10001
            check_words(container.get("command", []))
    assert "USER 10001:10001" in DOCKERFILE
    assert pod(named(manifests, "Deployment", WORKER))["shareProcessNamespace"]  # reaps processes that a job leaves behind
    for job in of_kind(manifests, "Job"):
        assert "ttlSecondsAfterFinished" in job["spec"], "a job that stays refuses the next apply"


def test_every_name_that_is_used_is_defined(manifests: list[Manifest]) -> None:
    defined = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}
    for name, manifest, container in every_container(manifests):
        for mount in container.get("volumeMounts", ()):
            assert volume(manifest, mount["name"]), f"{name} mounts {mount['name']}"
        claims = [
            entry["persistentVolumeClaim"] for entry in pod(manifest).get("volumes", ()) if "persistentVolumeClaim" in entry
        ]
        maps = [source["configMapRef"] for source in container.get("envFrom", ()) if "configMapRef" in source]
        assert {("PersistentVolumeClaim", claim["claimName"]) for claim in claims} <= defined, name
        assert {("ConfigMap", source["name"]) for source in maps} <= defined, name
    for manifest in of_kind(manifests, "HorizontalPodAutoscaler"):
        target = manifest["spec"]["scaleTargetRef"]
        assert (target["kind"], target["name"]) in defined
    for manifest in of_kind(manifests, "Service", "PodDisruptionBudget"):
        selector = manifest["spec"]["selector"]
        chosen = selector.get("matchLabels", selector).items()
        assert any(containers(workload) and chosen <= labels(workload).items() for workload in manifests), manifest[
            "metadata"
        ]["name"]


def test_probes_ask_what_the_service_answers(manifests: list[Manifest], statuses: Statuses) -> None:
    for name, _, container in every_container(manifests):
        assert name not in SERVING or PROBES.keys() <= container.keys()
        ports = {port["name"] for port in container.get("ports", ())}
        for kind, expected in PROBES.items():
            probe = container.get(kind, {})
            request = probe.get("httpGet", probe.get("tcpSocket", {}))
            assert request.get("port") in {None, *ports}, f"{name} {kind}"
            assert "httpGet" not in probe or statuses(request["path"]) == expected, f"{name} {kind}"
            assert "exec" not in probe or probe["exec"]["command"] == ["sh", "-c", REDIS_HEALTH], f"{name} {kind}"


def test_ports_lead_to_the_programs(manifests: list[Manifest]) -> None:
    for name, _, container in every_container(manifests):
        expected = 6379 if name == "redis" else int(image_variable("SGF_PORT"))
        assert {port["containerPort"] for port in container.get("ports", ())} <= {expected}, name
    for service in of_kind(manifests, "Service"):
        selector = {"matchLabels": service["spec"]["selector"]}
        workloads = [manifest for manifest in manifests if selects(selector, labels(manifest))]
        chosen = [container for workload in workloads for container in containers(workload)]
        open_ports = {port["name"] for container in chosen for port in container.get("ports", ())}
        assert {port["targetPort"] for port in service["spec"].get("ports", ())} <= open_ports, service["metadata"]["name"]


@pytest.mark.parametrize("overlay", ["production", "gpu"])
def test_prometheus_scrapes_both_services_under_the_job_of_the_alerts(overlay: str, statuses: Statuses) -> None:
    monitor = named(built(overlay), "ServiceMonitor")["spec"]
    for service in (named(built(overlay), "Service", name) for name in SERVING):
        assert selects(monitor["selector"], service["metadata"]["labels"])
        assert service["metadata"]["labels"][monitor["jobLabel"]] == "sgformer"
        for endpoint in monitor["endpoints"]:
            assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
            assert (endpoint["path"], statuses(endpoint["path"])) == ("/metrics", (200, 200))


def test_a_node_can_be_drained(manifests: list[Manifest]) -> None:
    deployment = named(manifests, "Deployment")
    scalers = [scaler["spec"]["minReplicas"] for scaler in of_kind(manifests, "HorizontalPodAutoscaler")]
    for budget in of_kind(manifests, "PodDisruptionBudget"):
        assert budget["spec"]["minAvailable"] < min(scalers or [deployment["spec"].get("replicas", 1)])
        assert selects(budget["spec"]["selector"], labels(deployment))


def test_folders_of_the_images_are_in_their_claims(manifests: list[Manifest]) -> None:
    """And can be written to where the program writes."""
    for name, manifest, container in every_container(manifests):
        if "sgformer" not in container["image"]:
            continue
        assert "emptyDir" in volume(manifest, mounts(container)["/tmp"]["name"]), name  # noqa: S108  # in a container
        folders = {"store": "SGF_STORE"} | ({"data": "SGF_DATA_ROOT"} if name in (ADMIN, WORKER, *TRAINING) else {})
        for claim, setting in folders.items():
            (mount,) = (entry for path, entry in mounts(container).items() if is_below(image_variable(setting), path))
            assert volume(manifest, mount["name"])["persistentVolumeClaim"]["claimName"] == claim, name
            reading = {(EXPOSED, "store"), *((reader, "data") for reader in (ADMIN, *TRAINING))}
            assert mount.get("readOnly", False) == ((name, claim) in reading), name


def test_only_the_service_with_admin_can_change_the_store(manifests: list[Manifest]) -> None:
    for name in SERVING:
        container = containers(named(manifests, "Deployment", name))[0]
        environment = {entry["name"]: entry["value"] for entry in container.get("env", ())}
        disabled = environment.get("SGF_ADMIN_TOKEN") == "", environment.get("SGF_AUTO_ROLLBACK") == "false"
        assert disabled == (name == EXPOSED, name == EXPOSED)
        secrets = [source["secretRef"]["name"] for source in container["envFrom"] if "secretRef" in source]
        assert (ADMIN in secrets) == (name == ADMIN)
        assert f"kubectl create secret generic {secrets[0]} -n sgformer" in GUIDE


def test_only_those_that_use_redis_have_its_password(manifests: list[Manifest]) -> None:
    """From the secret that the guide creates."""
    assert named(manifests, "ConfigMap")["data"]["SGF_REDIS_PASSWORD_FILE"] == f"{PASSWORD_FOLDER}/password"
    for name, manifest, container in every_container(manifests):
        mount = mounts(container).get(PASSWORD_FOLDER)
        assert (mount is not None) == (name in (*SERVING, WORKER, "redis", *TRAINING)), name
        if mount:
            secret = volume(manifest, mount["name"])["secret"]["secretName"]
            assert f"kubectl create secret generic {secret} -n sgformer --from-literal=password=" in GUIDE, name


def test_settings_are_known_and_agree(manifests: list[Manifest], tmp_path: Path) -> None:
    data = named(manifests, "ConfigMap")["data"]
    settings = Settings.from_env(data | password_file(tmp_path))
    assert settings.redis_url == "redis://sgf@redis:6379/0"
    assert settings.graph_log == "redis", "the pods of the service cannot write to the store"
    assert 6379 in {port["port"] for port in named(manifests, "Service", "redis")["spec"]["ports"]}
    service, worker = (containers(named(manifests, "Deployment", name))[0] for name in (EXPOSED, WORKER))
    assert worker["resources"]["requests"]["cpu"] == data["SGF_TRAINING_THREADS"]
    assert [source for source in service["envFrom"] if "configMapRef" in source] == worker["envFrom"]


def test_the_service_drains_before_it_is_killed(manifests: list[Manifest]) -> None:
    for name in SERVING:
        deployment = named(manifests, "Deployment", name)
        program, seconds = containers(deployment)[0]["lifecycle"]["preStop"]["exec"]["command"]
        assert (program, int(seconds) >= 1) == ("sleep", True)  # until the endpoint is taken out
        assert pod(deployment)["terminationGracePeriodSeconds"] > int(seconds) + drain_seconds()


def test_network_policies_connect_what_belongs_together_and_nothing_else(manifests: list[Manifest]) -> None:
    service, admin, worker, redis, prune = (ours(name) for name in (EXPOSED, ADMIN, WORKER, "redis", "prune"))
    client, operator = other("shop", may_ask="true"), other("ops", may_administer="true")
    prometheus, stranger = other("monitoring"), other("elsewhere")
    names = Party({"k8s-app": "kube-dns"}, {"kubernetes.io/metadata.name": "kube-system"})
    needed = [(client, service, 8000), (prometheus, service, 8000), (operator, admin, 8000), (prometheus, admin, 8000)]
    for source, target, port in [*needed, *((source, redis, 6379) for source in (service, admin, worker))]:
        assert allowed(manifests, source, target, port), (source, target)
    refused = [(stranger, service, 8000), (stranger, redis, 6379), (stranger, worker, 8000), (stranger, prune, 8000)]
    refused += [(prune, service, 8000), (prune, redis, 6379), (client, redis, 6379), (client, service, 22)]
    refused += [(source, admin, 8000) for source in (client, stranger, service, worker, prune)]
    for source, target, port in [*refused, (operator, redis, 6379), (operator, service, 8000)]:
        assert not admits(manifests, target, source, port), (source, target)
    for source in (service, admin, worker, redis, prune):
        assert not any(allowed(manifests, source, stranger, port) for port in (443, 53)), source
    for source in (service, admin, worker, redis):
        assert all(allowed(manifests, source, names, 53, protocol) for protocol in ("UDP", "TCP")), source


def test_our_images_have_a_version_and_only_the_exposed_service_a_gpu() -> None:
    """Kubernetes always pulls `latest`, which fails for an image that was only loaded into the cluster."""
    for overlay in OVERLAYS:
        for name, manifest, container in every_container(built(overlay)):
            assert re.search(r":\d+\.\d+", container["image"]), f"{overlay}: {container['image']}"
            gpu = overlay == "gpu" and (manifest["kind"], name) == ("Deployment", EXPOSED)
            assert ("nvidia.com/gpu" in container["resources"]["limits"]) == gpu


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_everything_that_an_overlay_changes_exists(overlay: str) -> None:
    """kustomize does not report a patch, an image or a number of replicas without a target."""
    folder = KUBERNETES / "overlays" / overlay
    kustomization, resources = yaml.safe_load((folder / "kustomization.yaml").read_text()), list[Manifest]()
    for name in kustomization["resources"]:
        path = (folder / name).resolve()
        resources += kustomize(str(path)) if path.is_dir() else documents(path.read_text())
    defined = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in resources}
    for target in (patch["target"] for patch in kustomization.get("patches", ())):
        assert any(kind == target["kind"] and target.get("name", name) == name for kind, name in defined), target
    images = {re.sub(r":[^/]*$", "", container["image"]) for *_, container in every_container(resources)}
    assert {image["name"] for image in kustomization.get("images", ())} <= images
    replicated = {name for kind, name in defined if kind in ("Deployment", "StatefulSet")}
    assert {entry["name"] for entry in kustomization.get("replicas", ())} <= replicated


def test_every_model_is_pruned_every_night(tmp_path: Path) -> None:
    """The job's command as written: on an empty store, and beside a model whose first publication failed."""
    (job,) = of_kind(written(), "CronJob")
    environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "SGF_STORE": str(tmp_path)}
    run(*containers(job)[0]["command"], env=environ)
    store = Store(tmp_path)
    for model in ("one", "two"):
        for version in range(1, 6):
            publish(store, model=model, activate=version == 1)
    (tmp_path / "empty").mkdir()
    run(*containers(job)[0]["command"], env=environ)
    assert [store.model(model).versions() for model in ("one", "two")] == [[1, 3, 4, 5]] * 2


def test_the_autoscaler_uses_the_metric_of_the_adapter() -> None:
    rules = yaml.safe_load((KUBERNETES / "prometheus-adapter-rules.yaml").read_text())["rules"]["custom"]
    (scaler,) = of_kind(written(), "HorizontalPodAutoscaler")
    metrics = {metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"] if metric["type"] == "Pods"}
    assert metrics == {rule["name"]["as"] for rule in rules}
    for rule in rules:
        query = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'pod="a"').replace("<<.GroupBy>>", "pod")
        assert {name for name, _ in queries.needed(query)} <= {name for name, _ in queries.needed(rule["seriesQuery"])}


def test_the_guide_turns_the_alerts_into_a_rule_of_the_prometheus_operator() -> None:
    """By its command without the last step; with the label of the ServiceMonitor."""
    (line,) = (command.text for command in commands_of(ROOT, "docs/deployment.md") if "print-rule" in command.text)
    rule = yaml.safe_load(run("sh", "-c", line.removesuffix(" | kubectl apply -n sgformer -f -"), cwd=ROOT).stdout)
    (monitor,) = of_kind(written(), "ServiceMonitor")
    assert (rule["kind"], rule["metadata"]["labels"]) == ("PrometheusRule", monitor["metadata"]["labels"])
    assert rule["spec"] == yaml.safe_load(queries.ALERTS.read_text())
