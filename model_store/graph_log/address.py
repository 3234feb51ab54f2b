"""The address of the log of a graph: the folder of its model, or Redis. It can be sent to another process."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from model_store.graph_log.file_log import FileLog
from model_store.graph_log.log import GraphLog

FOLDER = "graph_log"
SOCKET_SECONDS = 5.0
_PLAIN = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")


@dataclass(frozen=True)
class LogAddress:
    model: Path
    """The folder of the model."""
    graph: str
    """The id of the graph (`live_graph.graph_of`)."""
    redis: dict[str, Any] | None = field(default=None, repr=False)  # it may have a password
    """Keyword arguments of `redis.Redis.from_url`; None: the log is in files of the store."""

    @property
    def folder(self) -> Path:
        return self.model / FOLDER / self._name

    def open(self) -> GraphLog:
        """Returns the log, which is not read yet. The caller closes it."""
        if self.redis is None:
            return FileLog(self.folder)
        from redis import Redis

        from model_store.graph_log.redis_log import RedisLog

        timeouts = {"socket_timeout": SOCKET_SECONDS, "socket_connect_timeout": SOCKET_SECONDS}
        return RedisLog(Redis.from_url(**(timeouts | self.redis)), f"{self.model.name}:{self._name}")

    @property
    def _name(self) -> str:
        """The id of the graph as the name of a folder: an imported manifest may have an id that is not a valid name."""
        return self.graph if _PLAIN.fullmatch(self.graph) else sha256(self.graph.encode()).hexdigest()
