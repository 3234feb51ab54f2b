"""A LitServe server: one process for HTTP, one for the model, and LitServe's fast queue between them.

python -m benchmarks.peers.litserve_api PORT
"""

from __future__ import annotations

import os
import sys
from typing import Any

import litserve

from benchmarks.peers.model import Model, NewNode

Question = tuple[list[int], list[NewNode]]


class SGFormerAPI(litserve.LitAPI):
    def setup(self, device: str) -> None:  # noqa: ARG002  # always the CPU
        self._model = Model(os.environ["BENCHMARK_STORE"])

    def decode_request(self, request) -> Question:  # untyped: FastAPI would validate a typed parameter
        new_nodes = [(node["id"], node["features"], node["neighbors"]) for node in request.get("new_nodes", ())]
        return request.get("nodes", []), new_nodes

    def predict(self, question: Question) -> dict[str, Any]:
        return self._model.answers(*question)

    def encode_response(self, output: dict[str, Any]) -> dict[str, Any]:
        return output


if __name__ == "__main__":
    server = litserve.LitServer(SGFormerAPI(), accelerator="cpu", workers_per_device=1, fast_queue=True)
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[1]),
        num_api_servers=1,
        log_level="warning",
        access_log=False,
        generate_client_file=False,
    )
