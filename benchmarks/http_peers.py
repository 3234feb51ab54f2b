"""MLServer, BentoML and LitServe with the same model, one worker each, for `benchmarks.groups.predict`.

Each has its own environment below var/peers, created on first use, because their requirements conflict. Access logs are off,
and so are metrics and compression where they are on by default. All have uvloop and httptools. No request waits for a batch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.servers import OURS, Dialect, Server, free_port, running

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = ROOT / "var" / "peers"
SHARED = ("httptools", "numpy", "orjson", "safetensors", "uvloop")
"""Installed in the environment of every peer, in the version that the environment of the benchmarks has."""
TOLERANCE = 1e-6
DATATYPES = {"i": "INT64", "f": "FP32"}


def _to_tensors(body: bytes) -> bytes:
    """Converts a /predict body to the V2 inference protocol."""
    question = json.loads(body)
    if "nodes" in question:
        arrays = {"nodes": np.array(question["nodes"])}
    else:
        arrays = {name: np.array([node[name] for node in question["new_nodes"]]) for name in ("features", "neighbors")}
    inputs = [
        {"name": name, "shape": array.shape, "datatype": DATATYPES[array.dtype.kind], "data": array.ravel().tolist()}
        for name, array in arrays.items()
    ]
    return json.dumps({"inputs": inputs}).encode()


def _tensor_probabilities(answer: bytes) -> np.ndarray:
    outputs = {output["name"]: output for output in json.loads(answer)["outputs"]}
    return np.array(outputs["probabilities"]["data"]).reshape(outputs["probabilities"]["shape"])


@dataclass(frozen=True)
class Peer:
    package: str
    """Pinned, in the notation of pip."""
    command: tuple[str, ...]
    """Run in its environment; {port} is replaced here and in the settings."""
    settings: dict[str, str] = field(default_factory=dict)
    dialect: Dialect = OURS

    @property
    def environment(self) -> Path:
        return ENVIRONMENTS / self.package.partition("==")[0]


PEERS = {
    "MLServer": Peer(
        "mlserver==1.7.1",
        ("mlserver", "start", "."),
        {
            "MLSERVER_HOST": "127.0.0.1",
            "MLSERVER_HTTP_PORT": "{port}",
            "MLSERVER_GRPC_PORT": "0",
            "MLSERVER_PARALLEL_WORKERS": "0",  # in the HTTP process: a pool of one has half the rate
            "MLSERVER_DEBUG": "false",
            "MLSERVER_METRICS_ENDPOINT": "",
            "MLSERVER_GZIP_ENABLED": "false",
            "MLSERVER_MODEL_NAME": "sgformer",
            "MLSERVER_MODEL_IMPLEMENTATION": "benchmarks.peers.mlserver_runtime.SGFormerRuntime",
        },
        Dialect("/v2/models/sgformer/infer", _to_tensors, _tensor_probabilities),
    ),
    "BentoML": Peer(
        "bentoml==1.4.39",
        ("bentoml", "serve", "benchmarks.peers.bentoml_service:SGFormerService", "--host", "127.0.0.1", "--port", "{port}"),
        {"BENTOML_HOME": ".", "BENTOML_DO_NOT_TRACK": "true"},
    ),
    "LitServe": Peer("litserve==0.2.19", ("python", "-m", "benchmarks.peers.litserve_api", "{port}")),
}


@contextmanager
def peer(name: str, store: str) -> Iterator[Server]:
    """Starts one of `PEERS` with the only model of a store."""
    selected, port = PEERS[name], str(free_port())
    _install(selected)
    program, *rest = (part.replace("{port}", port) for part in selected.command)
    command = [str(selected.environment / "bin" / program), *rest]
    with tempfile.TemporaryDirectory() as folder:  # for files that a peer leaves behind
        environ = os.environ | {key: value.replace("{port}", port) for key, value in selected.settings.items()}
        environ |= {"PYTHONPATH": str(ROOT), "BENCHMARK_STORE": str(Path(store).resolve()), "TMPDIR": folder}
        with running(command, int(port), environ, selected.dialect, folder) as server:
            yield server


def check_agreement(reference: Server, others: Iterable[Server], body: bytes) -> None:
    """Checks that all servers answer a question with the same probabilities, i.e. do the same work."""
    expected = reference.probabilities(body)
    for other in others:
        actual = other.probabilities(body)
        if actual.shape != expected.shape or not np.allclose(actual, expected, rtol=0, atol=TOLERANCE):
            raise SystemExit(
                f"{other.dialect.path} on port {other.port} answers with other probabilities than the reference, "
                f"{reference.dialect.path} on port {reference.port}"
            )


def _install(selected: Peer) -> None:
    packages = "\n".join([selected.package, *(f"{name}=={version(name)}" for name in SHARED)])
    installed = selected.environment / "installed.txt"
    if installed.exists() and installed.read_text() == packages:
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(selected.environment)], check=True)
    pip = [str(selected.environment / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *packages.split("\n")], check=True)
    installed.write_text(packages)  # last, so that an incomplete environment is created again
