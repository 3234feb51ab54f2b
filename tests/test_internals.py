"""The internals of other packages that this project uses. A release that changes one of them fails here, by name.

pyproject.toml bounds these packages to the minor release that was tested. To raise a bound, install the new release, run
this file and tests/service, and look at the release notes for the names below.
"""

from __future__ import annotations

import inspect
import tomllib
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
INTERNALS: dict[str, tuple[str, ...]] = {
    "uvicorn": (
        "uvicorn.protocols.http.httptools_impl:STATUS_LINE",
        "uvicorn.protocols.http.httptools_impl:HttpToolsProtocol.connection_made",
        "uvicorn.protocols.http.httptools_impl:HttpToolsProtocol.connection_lost",
        "uvicorn.protocols.http.httptools_impl:HttpToolsProtocol.data_received",
        "uvicorn.protocols.http.httptools_impl:HttpToolsProtocol.pause_writing",
        "uvicorn.protocols.http.httptools_impl:HttpToolsProtocol.resume_writing",
        "uvicorn.protocols.http.httptools_impl:HttpToolsProtocol.on_message_begin",
        "uvicorn.protocols.http.httptools_impl:HttpToolsProtocol.on_headers_complete",
        "uvicorn.protocols.http.httptools_impl:HttpToolsProtocol.on_body",
        "uvicorn.protocols.http.httptools_impl:HttpToolsProtocol.on_message_complete",
        "uvicorn.protocols.http.httptools_impl:HttpToolsProtocol.on_response_complete",
        "uvicorn.protocols.http.httptools_impl:HttpToolsProtocol.shutdown",
        "uvicorn.protocols.http.flow_control:FlowControl.pause_reading",
        "uvicorn.protocols.http.flow_control:FlowControl.resume_reading",
        "uvicorn.server:ServerState",
        "uvicorn.supervisors.multiprocess:Process.start",
    ),
    "httptools": ("httptools:HttpRequestParser", "httptools:HttpParserUpgrade", "httptools:parse_url"),
    "prometheus-client": (
        "prometheus_client.values:ValueClass",
        "prometheus_client.values:MultiProcessValue",
        "prometheus_client.multiprocess:MultiProcessCollector",
        "prometheus_client.multiprocess:mark_process_dead",
    ),
    "starlette": ("starlette.routing:Match.FULL", "starlette.routing:Route.matches"),
    "fastapi": ("fastapi:FastAPI.openapi", "fastapi.exceptions:RequestValidationError"),
}
CYCLE_ARGUMENTS = {
    "scope", "transport", "flow", "logger", "access_logger", "access_log", "default_headers", "message_event",
    "expect_100_continue", "keep_alive", "on_response",
}  # fmt: skip
PROTOCOL_ATTRIBUTES = (
    "client", "cycle", "expect_100_continue", "flow", "headers", "loop", "parser", "scheme", "server",
    "server_state", "tasks", "timeout_keep_alive", "transport", "url",
)  # fmt: skip


def requirements() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {one.name: one for one in map(Requirement, project["dependencies"])}


def named(path: str) -> Any:
    module, _, attributes = path.partition(":")
    value = import_module(module)
    for attribute in attributes.split("."):
        value = getattr(value, attribute)
    return value


@pytest.mark.parametrize("path", [path for paths in INTERNALS.values() for path in paths])
def test_an_internal_name_is_there(path: str) -> None:
    assert named(path) is not None


@pytest.mark.parametrize("package", INTERNALS)
def test_a_package_whose_internals_are_used_is_bounded_to_the_installed_minor_release(package: str) -> None:
    installed = Version(metadata.version(package))
    bounds = requirements()[package].specifier
    assert installed in bounds
    assert f"{installed.major}.{installed.minor + 1}" not in bounds
    assert f"{installed.major + 1}.0" not in bounds


def test_uvicorns_protocol_has_the_attributes_in_use() -> None:
    source = inspect.getsource(named("uvicorn.protocols.http.httptools_impl:HttpToolsProtocol"))
    assert [name for name in PROTOCOL_ATTRIBUTES if f"self.{name}" not in source] == []


def test_uvicorns_cycle_takes_the_arguments_in_use() -> None:
    cycle = named("uvicorn.protocols.http.httptools_impl:RequestResponseCycle")
    assert set(inspect.signature(cycle).parameters) == CYCLE_ARGUMENTS
    source = inspect.getsource(cycle)
    used = ("body", "more_body", "message_event", "response_started", "response_complete", "keep_alive")
    assert [name for name in used if f"self.{name}" not in source] == []


def test_a_histogram_of_prometheus_has_the_fields_in_use() -> None:
    histogram = named("prometheus_client:Histogram")("seconds", "A duration.", buckets=(1.0, 2.0), registry=None)
    assert histogram._upper_bounds == [1.0, 2.0, float("inf")]
    histogram._sum.inc(1)
    histogram._buckets[0].inc(1)
