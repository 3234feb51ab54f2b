"""The banner that `sgf-serve` prints in a terminal when it is ready: what is served, where, and a request to try."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import orjson

from model_store.cli.parser import installed_version
from service.engines.served_model import ServedModel
from service.rollout.rollout import Rollout
from service.settings import Settings
from service.telemetry.logs import LogWriter
from service.telemetry.process_info import mark
from service.telemetry.text_lines import TextLines

POLL_SECONDS = 0.1
ALL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # compared, not bound
DEFAULT_COLUMNS, LABEL_COLUMNS = 100, 11


async def announce(settings: Settings, rollout: Rollout, writer: LogWriter, text: TextLines) -> None:
    """Waits until a model is served and the port is open, then prints the banner. Only one worker prints it."""
    host = ALL_ADDRESSES.get(settings.host, settings.host)
    while rollout.model is None or not await _is_open(host, settings.port):
        await asyncio.sleep(POLL_SECONDS)
    if mark("announced"):
        writer.put([banner(settings, host, rollout.model, text).encode()])


async def _is_open(host: str, port: int) -> bool:
    with suppress(OSError):
        (await asyncio.open_connection(host, port))[1].close()
        return True
    return False


def banner(settings: Settings, host: str, model: ServedModel, text: TextLines) -> str:
    address = f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"
    sizes, config, workers = model.snapshot.manifest.sizes, model.config, settings.workers
    kind = {"multiclass": "classes", "multilabel": "labels", "regression": "values"}[config.task]
    engine = f"{model.engine_name} (cpu)" if model.engine.backend == "numpy" else model.engine_name
    names = f": {', '.join(model.classes)}" if model.classes else ""
    facts = {
        "model": f"{model.name}, version {model.version}, snapshot {model.id[:12]}",
        "graph": f"{sizes.nodes:,} nodes, {sizes.adjacency_entries // 2:,} edges, {config.in_features:,} features",
        kind: f"{config.out_features:,}{names}",
        "engine": f"{engine}, {workers} worker{'s' if workers > 1 else ''}",
        "address": address,
        "pages": f"{address} (console), {address}/docs",
        "stop": "Ctrl-C",
    }
    width = (text.columns or DEFAULT_COLUMNS) - LABEL_COLUMNS - 2
    lines = [f"  {text.style(f'{name:{LABEL_COLUMNS}}', 'dim')}{_cut(fact, width)}" for name, fact in facts.items()]
    title = text.style(f"sgf-serve {installed_version()}", "bold")
    hint = f"  Try it from another terminal:\n\n{_request(settings, address, model)}"
    return "\n".join(("", f"  {title}", "", *lines, "", hint, "", ""))


def _request(settings: Settings, address: str, model: ServedModel) -> str:
    """A command that asks for the first node of the graph. A key is never printed."""
    ids = model.snapshot.node_ids
    question = orjson.dumps({"nodes": [0 if ids is None else ids.names([0])[0]]}).decode().replace("'", r"'\''")
    key = ' -H "authorization: Bearer $SGF_API_KEYS"' if settings.api_keys else ""
    return f"curl {address}/predict{key} --json '{question}'"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 4]} ..."
