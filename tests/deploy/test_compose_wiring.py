"""What the services of compose say of each other, of images and of mounts is so; where it is not, it is found."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy.compose_file import settled
from tests.deploy.compose_wiring import complaints, read_yaml
from tests.deploy.mutation import GONE, changed


def wired() -> dict[str, Any]:
    """The three files that have to agree."""
    source = read_yaml("deploy/grafana/provisioning/datasources/prometheus.yml")["datasources"][0]
    return {"file": settled(), "scraped": read_yaml("deploy/prometheus/prometheus.yml"), "source": source}


def test_everything_fits() -> None:
    assert complaints(**wired()) == []


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("redis healthcheck test 1", "redis-cli ping", "redis's health is asked with"),
        ("redis healthcheck", GONE, "redis's health is asked with ['NONE']"),
        ("prometheus healthcheck test 1", "curl", "prometheus's health is asked with"),
        ("prometheus healthcheck test 3", "http://127.0.0.1:9091/-/ready", "prometheus's health is asked at"),
        ("prometheus healthcheck test 3", "http://127.0.0.1:9090/ready", "prometheus's health is asked at"),
        ("grafana healthcheck test 3", "http://127.0.0.1:8080/api/health", "grafana's health is asked at"),
        ("service healthcheck", {"test": ["CMD", "curl", "x"]}, "service has its check in its image"),
        ("service build target", "worker", "service is the image worker"),
        ("demo build target", "trainer", "no target trainer"),
        ("demo entrypoint 2", "sgf-train --recipe digit", "no recipe digit"),
        ("demo entrypoint 2", "sgf-trian --recipe digits", "no program sgf-trian"),
        ("worker security_opt", [], "worker may gain privileges"),
        ("redis security_opt 0", "no-new-privileges:false", "redis may gain privileges"),
        ("service tmpfs", GONE, "service has no /tmp"),
        ("grafana tmpfs 0", "/temp:size=64m", "grafana has no /tmp"),
        ("service restart", "no", "service is not started again"),
        ("demo restart", "unless-stopped", "demo is not started again"),
        ("service volumes 0", "store:/var/lib/sgformer/models:ro", "service has no store at SGF_STORE"),
        ("service volumes 0", "store:/var/lib/sgformer/store", "service can write to the store"),
        ("service-gpu volumes 0", "store:/var/lib/sgformer/store", "service-gpu can write to the store"),
        ("admin volumes 0", "store:/var/lib/sgformer/store:ro", "admin cannot write to the store"),
        ("service environment SGF_ADMIN_TOKEN", "t" * 20, "service has an admin token"),
        ("admin environment SGF_ADMIN_TOKEN", GONE, "admin has no admin token"),
        ("service environment SGF_AUTO_ROLLBACK", "", "service rolls back"),
        ("admin environment SGF_AUTO_ROLLBACK", "false", "admin does not roll back"),
        ("service volumes 1", "redis-auth:/run/redis-auth", "service can write the password"),
        ("redis-password volumes 0", "redis-auth:/data:ro", "redis-password cannot write the password"),
        ("prometheus volumes 0", "redis-auth:/etc/prometheus:ro", "the password of Redis is mounted by"),
        ("worker volumes 2", "data:/run/redis-auth:ro", "the password of Redis is mounted by"),
        ("worker environment SGF_REDIS_PASSWORD_FILE", "/run/password", "worker does not know where"),
        ("redis mem_limit", GONE, "redis may take all of the memory"),
        ("redis-password restart", "always", "redis-password is not started again"),
        ("tls ports 0", "127.0.0.1:443:443", "the proxy is published from other ports"),
        ("tls networks", ["metrics"], "tls is not on a network that leads out"),
        ("tls volumes 1", "./deploy/tls/certificates:/certificates:ro", "the proxy has no /etc/sgformer-tls/certificates"),
        ("worker volumes 0", "models:/var/lib/sgformer/store", "worker has no store"),
        ("worker volumes 1", "data:/data", "worker has no data at SGF_DATA_ROOT"),
        ("demo volumes 0", "data:/var/lib/sgformer/store", "demo has no store"),
        ("service-gpu volumes 1", "data:/var/lib/sgformer/data:ro", "service-gpu has data at SGF_DATA_ROOT"),
        ("redis volumes 0", "redis:/var/data", "redis forgets everything"),
        ("prometheus volumes 0", "./deploy/prometeus:/etc/prometheus:ro", "./deploy/prometeus, which is not there"),
        ("prometheus volumes 0", "./deploy/prometheus:/etc/prometheus", "may change /etc/prometheus"),
        ("prometheus volumes 0", "./deploy/grafana:/etc/prometheus:ro", "prometheus has no /etc/prometheus/prometheus.yml"),
        ("prometheus command 0", "--config.file=/etc/prometheus.yml", "prometheus has no /etc/prometheus.yml"),
        ("prometheus command 1", "--storage.tsdb.path=/data", "Prometheus writes elsewhere"),
        ("prometheus volumes 1", "prometheus:/var/prometheus", "prometheus forgets everything"),
        ("grafana volumes 0", "./deploy/grafana:/etc/grafana/provisioning:ro", "grafana has no /etc/grafana/provisioning"),
        ("grafana volumes 1", "./deploy/grafana/dashboards:/dashboards:ro", "grafana has no /etc/grafana/dashboards"),
        ("grafana volumes 2", "grafana:/data", "grafana forgets everything"),
        ("service stop_grace_period", "3s", "service is killed while it drains"),
        ("service stop_grace_period", "5s", "service is killed while it drains"),
        ("worker init", GONE, "nobody reaps"),
        ("service-gpu deploy", GONE, "service-gpu is half for a GPU"),
        ("service-gpu build args VARIANT", "cpu", "service-gpu is half for a GPU"),
        ("service-gpu environment SGF_DEVICE", "cpu", "service-gpu is half for a GPU"),
        ("service-gpu profiles", GONE, "service-gpu is half for a GPU"),
        ("service build args VARIANT", "gpu", "service is half for a GPU"),
        ("service networks", ["edge", "backend"], "prometheus does not reach service"),
        ("service networks", ["edge", "metrics"], "service does not reach redis"),
        ("service networks", ["backend", "metrics"], "service is not on a network that leads out"),
        ("service-gpu networks", ["edge", "backend"], "prometheus does not reach service-gpu"),
        ("grafana networks", ["edge"], "grafana does not reach prometheus"),
        ("worker networks", ["metrics"], "worker does not reach redis"),
        ("worker networks", ["backend", "edge"], "worker is on a network that leads out"),
        ("redis networks", ["backend", "metrics"], "grafana reaches redis"),
        ("prometheus profiles", GONE, "prometheus is not of the profile"),
        ("service environment SGF_REDIS_URL", "redis://sgf@cache:6379/0", "service looks for Redis at sgf@cache"),
        ("worker environment SGF_REDIS_URL", "redis://sgf@redis:6380/0", "worker looks for Redis at sgf@redis:6380"),
        ("admin environment SGF_REDIS_URL", "redis://redis:6379/0", "admin looks for Redis at redis:6379"),
        ("service ports 0", "127.0.0.1:8000:8080", "service is published from another port"),
        ("service ports", GONE, "service is published from another port"),
        ("service-gpu ports 0", "127.0.0.1:8000:8000", "two are published at one port"),
        ("grafana ports 0", "127.0.0.1:3000:80", "grafana is published from another port"),
    ],
)
def test_one_wrong_wire_is_found(path: str, value: Any, told: str) -> None:
    assert told in "\n".join(complaints(**changed(wired(), f"file services {path}", value)))


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("file networks backend", None, "redis is on a network that leads out"),
        ("file networks edge", {"internal": True}, "service is not on a network that leads out"),
        (
            "scraped scrape_configs 0 static_configs 0 targets 0",
            "server:8000",
            "Prometheus scrapes ['admin:8000', 'server:8000'",
        ),
        ("scraped scrape_configs 0 static_configs 0 targets 0", "service:80", "Prometheus scrapes"),
        ("scraped scrape_configs 0 dns_sd_configs 0 names", ["gpu"], "Prometheus scrapes"),
        ("scraped scrape_configs 0 dns_sd_configs 0 port", 8001, "Prometheus scrapes"),
        ("scraped scrape_configs 0 metrics_path", "/metric", "Prometheus scrapes /metric"),
        ("source url", "http://prometheus:9091", "Grafana asks http://prometheus:9091"),
    ],
)
def test_a_wrong_wire_between_the_files_is_found(path: str, value: Any, told: str) -> None:
    assert told in "\n".join(complaints(**changed(wired(), path, value)))
