"""The training over several hosts: the commands of the Indexed Job and of Kubeflow's TrainJob, run as two hosts would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from model_store import Store
from tests.deploy.manifests import Manifest, built, containers, every_container, labels, named, pod
from tests.deploy.network_policies import allowed, ours, selects
from tests.service.serving import free_port
from tests.training.samples import labelled

SHORT = ["--epochs=2", "--hidden=8", "--checkpoint-every=0", "--quiet"]
"""Added to the arguments of the manifests, for a graph of 300 nodes."""


needs_a_minute = pytest.mark.skipif(
    os.environ.get("VERIFY_HOSTS") != "1", reason="NOT RUN: needs a minute; `make verify-hosts` runs it"
)


def job() -> Manifest:
    return named(built("training"), "Job", "train")


def test_the_number_of_hosts_agrees() -> None:
    spec = job()["spec"]
    (hosts,) = (word for word in containers(job())[0]["command"] if word.startswith("--nnodes="))
    assert spec["completionMode"] == "Indexed"
    assert hosts == f"--nnodes={spec['completions']}" == f"--nnodes={spec['parallelism']}"


def test_the_pods_find_the_first_one() -> None:
    """By the name that Kubernetes gives it: the job, its index, and the headless service."""
    service = named(built("training"), "Service", pod(job())["subdomain"])
    (endpoint,) = (word for word in containers(job())[0]["command"] if word.startswith("--rdzv-endpoint="))
    assert endpoint == f"--rdzv-endpoint={job()['metadata']['name']}-0.{service['metadata']['name']}:29500"
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert selects({"matchLabels": service["spec"]["selector"]}, labels(job()))


def test_the_pods_reach_each_other_and_redis_and_nothing_reaches_them() -> None:
    train, redis = ours("sgformer-train"), ours("redis")
    for overlay in ("training", "kubeflow"):
        manifests = built(overlay)
        selected = {labels(manifest).get("app.kubernetes.io/name") for _, manifest, _ in every_container(manifests)}
        assert "sgformer-train" in selected
        assert all(allowed(manifests, train, train, port) for port in (29500, 40000))
        assert allowed(manifests, train, redis, 6379)
        assert not allowed(manifests, ours("sgformer"), train, 29500)
        assert not allowed(manifests, train, ours("sgformer-admin"), 8000)


def test_the_command_of_the_job_trains_and_publishes(tmp_path: Path) -> None:
    container, port = containers(job())[0], free_port()
    words = [*container["command"], *container["args"], *SHORT]
    local = [word.replace("train-0.train:29500", f"127.0.0.1:{port}") for word in words]
    check_training(tmp_path, [[word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in local] for index in (0, 1)])


@needs_a_minute
def test_the_command_of_the_train_job_trains_and_publishes(tmp_path: Path) -> None:
    """With the variables that Kubeflow's plugin for torch sets."""
    manifests = built("kubeflow")
    runtime, train_job = named(manifests, "TrainingRuntime", "sgformer-torch"), named(manifests, "TrainJob", "train")
    assert train_job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    words = [*containers(runtime)[0]["command"], *train_job["spec"]["trainer"]["args"], *SHORT]
    shared = {"PET_NNODES": str(train_job["spec"]["trainer"]["numNodes"]), "PET_NPROC_PER_NODE": "auto"}
    shared |= {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(free_port())}
    check_training(tmp_path, [words] * 2, [shared | {"PET_NODE_RANK": str(index)} for index in (0, 1)])


def check_training(folder: Path, commands: list[list[str]], variables: list[dict[str, str]] | None = None) -> None:
    """Runs a command per host in a folder with the layout of the image, and checks the version that they publish."""
    data = labelled()
    arrays = {"x": data.graph.features, "edge_index": data.graph.adjacency.edge_index(), "y": data.labels}
    (folder / "data" / "my_graph").mkdir(parents=True)
    np.savez(folder / "data" / "my_graph" / "graph.npz", **arrays)
    store = folder / "store" / "models"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = os.environ | {"PATH": path, "SGF_STORE": str(store), "OMP_NUM_THREADS": "1"}
    hosts = [
        subprocess.Popen(command, cwd=folder, env=environ | own, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for command, own in zip(commands, variables or [{}] * len(commands), strict=True)
    ]
    outputs = [host.communicate(timeout=240) for host in hosts]
    assert [host.returncode for host in hosts] == [0] * len(hosts), outputs
    versions = Store(store).model("my-graph")
    assert versions.live() == 1
    with versions.open() as snapshot:
        snapshot.replay()
    assert not list((folder / "store" / "training").iterdir()), "the checkpoint is removed after publishing"
