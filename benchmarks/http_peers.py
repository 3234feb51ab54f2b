"""MLServer, BentoML and LitServe with the same model, one worker each, as `benchmarks.http` measures them.

Each lives in an environment of its own below var/peers, made on first use: what they require of one another's libraries
does not agree. Access logs are off, as are metrics and compression where they are on by default; uvloop and httptools are
there for all of them. No request waits for others to make a batch.
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
from typing import Any

import numpy as np

from benchmarks.servers import OURS, Dialect, Server, free_port, running

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = ROOT / "var" / "peers"
SHARED = ("httptools", "numpy", "safetensors", "uvloop")
"""In every environment in the version that we have."""
TOLERANCE = 1e-6


def _tensors(body: bytes) -> bytes:
    """Our question in the V2 inference protocol."""
    question = json.loads(body)
    if "nodes" in question:
        asked = {"nodes": ("INT64", question["nodes"])}
    else:
        new = question["new_nodes"]
        asked = {
            "features": ("FP32", [node["features"] for node in new]),
            "neighbors": ("INT64", [node["neighbors"] for node in new]),
        }
    return json.dumps({"inputs": [_tensor(name, *tensor) for name, tensor in asked.items()]}).encode()


def _tensor(name: str, datatype: str, values: list[Any]) -> dict[str, Any]:
    array = np.array(values)
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "data": array.ravel().tolist()}


def _tensor_probabilities(answer: bytes) -> np.ndarray:
    outputs = {output["name"]: output for output in json.loads(answer)["outputs"]}
    return np.array(outputs["probabilities"]["data"]).reshape(outputs["probabilities"]["shape"])


@dataclass(frozen=True)
class Peer:
    package: str
    """Pinned, as pip wants it."""
    command: tuple[str, ...]
    """What its environment runs; {port} is filled in there and in the settings."""
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
        Dialect("/v2/models/sgformer/infer", _tensors, _tensor_probabilities),
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
    """One of `PEERS`, serving the only model of a store."""
    that, port = PEERS[name], str(free_port())
    _install(that)
    program, *rest = (part.replace("{port}", port) for part in that.command)
    command = [str(that.environment / "bin" / program), *rest]
    with tempfile.TemporaryDirectory() as folder:  # takes what they leave behind
        environ = os.environ | {key: value.replace("{port}", port) for key, value in that.settings.items()}
        environ |= {"PYTHONPATH": str(ROOT), "BENCHMARK_STORE": str(Path(store).resolve()), "TMPDIR": folder}
        with running(command, int(port), environ, that.dialect, folder) as server:
            yield server


def check_agreement(reference: Server, others: Iterable[Server], body: bytes) -> None:
    """All answer one question with the same probabilities: else they would not be measured at the same work."""
    expected = reference.probabilities(body)
    for other in others:
        found = other.probabilities(body)
        if found.shape != expected.shape or not np.allclose(found, expected, rtol=0, atol=TOLERANCE):
            raise SystemExit(f"{other.dialect.path} on port {other.port} answers otherwise than the plain handler")


def _install(that: Peer) -> None:
    wanted = "\n".join([that.package, *(f"{name}=={version(name)}" for name in SHARED)])
    installed = that.environment / "installed.txt"
    if installed.exists() and installed.read_text() == wanted:
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(that.environment)], check=True)
    pip = [str(that.environment / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *wanted.split("\n")], check=True)
    installed.write_text(wanted)  # last: an environment that is half made is made again
