"""The variants of the HTTP protocol that the benchmarks compare answer as the service does."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from pathlib import Path

import pytest

from benchmarks.servers import service
from model_store.demo import install_demo

PROTOCOLS = (
    "benchmarks.protocols:Plain",
    "benchmarks.protocols:WithoutQueue",
    "benchmarks.protocols:WithoutOnePacket",
    "benchmarks.protocols:WithoutTimers",
    "benchmarks.protocols:WithoutLastRequest",
    "benchmarks.unmonitored:Protocol",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    root: Path = tmp_path_factory.mktemp("variants")
    install_demo(root)
    return str(root)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_variant_answers_requests_of_both_paths(store: str, protocol: str) -> None:
    with service(store, protocol=protocol) as server:
        answer = json.loads(server.ask(b'{"nodes": [0]}'))  # answered without ASGI
        assert answer["predictions"][0]["class"] == "0"
        connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("GET", "/classes")
        response = connection.getresponse()
        assert (response.status, len(json.loads(response.read())["classes"])) == (200, 10)
        connection.close()
