"""The reverse proxy of profile `tls`: its configuration in a real nginx, in front of a real service."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from service.http.errors import STATUS
from tests.deploy.tools import ROOT, need, run
from tests.service.serving import free_port, in_processes, until

NEW = {"id": "a", "features": [1, 2, 3, 4, 5], "neighbors": [0, 3]}
LIMIT_BYTES = 8 * 2**20


class Proxy(NamedTuple):
    client: httpx.Client
    """Uses the HTTPS port, and trusts the certificate."""
    http_port: int
    https_port: int


def make_certificate(folder: Path) -> Path:
    """Writes a certificate of localhost and its key as the proxy expects them, and returns their folder."""
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", folder / "privkey.pem", "-out", folder / "fullchain.pem"]
    run(need("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject, *files)
    folder.chmod(0o755)
    (folder / "privkey.pem").chmod(0o644)  # the proxy in a container has another user
    return folder


@contextmanager
def proxy(folder: Path, upstream: int, **replaced: str) -> Iterator[Proxy]:
    """Runs nginx with the configuration of compose: other ports, paths and upstream, and words replaced."""
    http_port, https_port = free_port(), free_port()
    (folder / "certificates").mkdir()
    certificate = make_certificate(folder / "certificates") / "fullchain.pem"
    text = (ROOT / "deploy" / "tls" / "nginx.conf").read_text()
    places = {"/tmp/": f"{folder}/", "/etc/sgformer-tls": str(folder), "service:8000": f"127.0.0.1:{upstream}"}  # noqa: S108
    if os.geteuid() == 0:  # in the container nginx is not root, and its workers have its user
        replaced["worker_processes auto;"] = "worker_processes auto; user root;"
    ports = {"listen 8080": f"listen 127.0.0.1:{http_port}", "listen 8443": f"listen 127.0.0.1:{https_port}"}
    for old, new in (places | ports | replaced).items():
        assert old in text, old
        text = text.replace(old, new)
    (folder / "nginx.conf").write_text(text)
    command = [need("nginx"), "-c", str(folder / "nginx.conf"), "-e", "/dev/stderr", "-g", "daemon off;"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: process.poll() is not None or listens(https_port))
            assert process.poll() is None, process.stderr and process.stderr.read()
            context = ssl.create_default_context(cafile=certificate)
            with httpx.Client(base_url=f"https://localhost:{https_port}", verify=context, timeout=30) as client:
                yield Proxy(client, http_port, https_port)
        finally:
            process.terminate()
            process.communicate(timeout=20)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def served(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """In front of a real service."""
    need("nginx")
    with (
        in_processes(store) as running,
        proxy(tmp_path_factory.mktemp("proxy"), running.client.base_url.port or 0) as running_proxy,
    ):
        until(lambda: running_proxy.client.get("/health/ready").status_code == 200)
        yield running_proxy


def check_error(response: httpx.Response, status: int, code: str) -> None:
    """An error of the proxy itself has the shape, and a code, of the service's errors."""
    assert response.status_code == status == STATUS[code]
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error", "code", "details"}
    assert response.json()["code"] == code


def test_the_service_answers_over_tls(served: Proxy) -> None:
    response = served.client.post("/predict", json={"nodes": [1], "new_nodes": [NEW]}, headers={"x-request-id": "from-me"})
    assert [answer["exactness"] for answer in response.raise_for_status().json()["predictions"]] == ["exact", "exact"]
    assert response.headers["strict-transport-security"] == "max-age=31536000"
    assert response.headers.get_list("x-request-id") == ["from-me"]
    assert response.headers["server"] == "nginx"  # without its version
    assert served.client.post("/predict", json={"nodes": [1]}).headers["x-request-id"]
    assert served.client.post("/predict", json={"nodes": [10**9]}).json()["code"] == "unknown_node"


def test_http_redirects_and_keeps_the_method(served: Proxy) -> None:
    for method in ("GET", "POST"):
        response = httpx.request(method, f"http://127.0.0.1:{served.http_port}/predict?a=b")
        assert (response.status_code, response.headers["location"]) == (308, "https://127.0.0.1/predict?a=b")


def test_a_body_over_the_limit_is_refused(served: Proxy) -> None:
    check_error(served.client.post("/predict", content=b" " * (LIMIT_BYTES + 1)), 413, "body_too_large")
    check_error(served.client.post("/predict", content=iter([b" " * 2**20] * 9)), 413, "body_too_large")
    at_the_limit = json.dumps({"nodes": [1]}).encode().ljust(LIMIT_BYTES)
    assert served.client.post("/predict", content=at_the_limit).status_code == 200


def test_metrics_and_admin_cannot_be_reached(served: Proxy) -> None:
    for path in ("/metrics", "/admin/jobs", "/admin/retrain"):
        check_error(served.client.get(path), 404, "not_found")


def handshake(port: int, version: str) -> bool:
    """Whether the proxy speaks this version of TLS. The client allows versions that OpenSSL disables by default."""
    command = [need("openssl"), "s_client", "-connect", f"127.0.0.1:{port}", f"-{version}", "-cipher", "DEFAULT@SECLEVEL=0"]
    return "Cipher is (NONE)" not in run(*command, check=False, input="").stdout


def test_only_tls_1_2_and_1_3_are_spoken(served: Proxy) -> None:
    spoken = {version: handshake(served.https_port, version) for version in ("tls1", "tls1_1", "tls1_2", "tls1_3")}
    assert spoken == {"tls1": False, "tls1_1": False, "tls1_2": True, "tls1_3": True}


def test_an_old_version_of_tls_would_be_found(tmp_path: Path) -> None:
    protocols = {"ssl_protocols TLSv1.2": "ssl_protocols TLSv1.1 TLSv1.2"}
    with proxy(
        tmp_path, free_port(), **protocols, **{"ssl_ciphers ECDHE": "ssl_ciphers DEFAULT@SECLEVEL=0:ECDHE"}
    ) as running_proxy:
        assert handshake(running_proxy.https_port, "tls1_1")


def test_without_the_service_the_proxy_answers_with_an_error_of_the_same_shape(tmp_path: Path) -> None:
    with proxy(tmp_path, free_port()) as running_proxy:
        check_error(running_proxy.client.get("/health/live"), 503, "not_ready")


def test_a_client_that_sends_its_head_slowly_is_disconnected(tmp_path: Path) -> None:
    timeout = {"client_header_timeout 10s": "client_header_timeout 1s"}
    with ExitStack() as stack:
        port = stack.enter_context(proxy(tmp_path, free_port(), **timeout)).http_port
        slow = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        slow.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n")
        assert slow.recv(1000) == b""


class EchoHandler(BaseHTTPRequestHandler):
    """Answers with the head that it received."""

    def do_GET(self) -> None:
        body = json.dumps({name.lower(): value for name, value in self.headers.items()}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_the_proxy_forwards_no_upgrade_and_always_a_request_id(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), EchoHandler) as upstream:
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        with proxy(tmp_path, upstream.server_address[1]) as running_proxy:
            upgrade = {"connection": "upgrade", "upgrade": "websocket", "authorization": "Bearer key"}
            head = running_proxy.client.get("/", headers=upgrade | {"x-request-id": "from-me"}).json()
            assert not {"upgrade", "connection"} & set(head)
            assert (head["authorization"], head["x-request-id"], head["host"]) == ("Bearer key", "from-me", "localhost")
            assert len(running_proxy.client.get("/").json()["x-request-id"]) == 32
        upstream.shutdown()
