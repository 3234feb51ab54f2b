"""One HTTP request and its answer, as ASGI has them: gzip both ways, one shape for errors."""

from __future__ import annotations

import asyncio
import gzip
import random
import re
import time
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import unquote

import orjson

from service.admission import Place
from service.errors import Refusal

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = "application/json"
GZIP_FROM_BYTES = 1024
THREAD_FROM_BYTES = 64 * 1024
"""A larger answer is compressed in a thread, while the event loop answers others."""
_NO_QUALITY = rb"\s*;\s*q=0(\.0*)?\s*(,|$)"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


@dataclass
class Reply:
    status: int
    content: bytes
    media_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)
    error: str | None = None
    """The code of the error, for the log."""
    head_bytes: bytes = b""
    """Of a refusal: its head as it is sent."""

    @classmethod
    def refused(cls, refusal: Refusal) -> Reply:
        """The same for the same refusal: in an overload one refusal is sent to many."""
        if refusal.reply is None:
            content = orjson.dumps(refusal.body(), default=str)
            refusal.reply = cls(refusal.status, content, headers=refusal.headers, error=refusal.code)
            refusal.reply.head_bytes = b"".join([b"%b: %b\r\n" % pair for pair in refusal.reply.head])
        reply: Reply = refusal.reply
        return reply

    @property
    def head(self) -> list[tuple[bytes, bytes]]:
        """Its headers, as they are sent."""
        sent = {"content-type": self.media_type, "content-length": str(len(self.content))} | self.headers
        return [(name.encode(), value.encode()) for name, value in sent.items()]


class Connection(Protocol):
    """What a request needs of the connection that it came on."""

    client: tuple[str, int] | None

    def start(self, request: Request, place: Place) -> None: ...

    def refuse(self, request: Request, refusal: Refusal) -> None: ...


class Request:
    """A request whose head is complete. Made for every request, so it holds little and computes what it can later."""

    __slots__ = (
        "_id", "arrived", "body", "connection", "expects_continue", "headers", "is_complete", "is_gone", "is_refused",
        "keep_alive", "key", "method", "named", "path", "place", "started", "target", "version",
    )  # fmt: skip
    place: Place

    def __init__(
        self,
        connection: Connection,
        method: str,
        target: bytes,
        version: str,
        headers: list[tuple[bytes, bytes]],
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        self.connection, self.method, self.target, self.version = connection, method, target, version
        self.headers, self.named = headers, dict(headers)
        self.keep_alive, self.expects_continue = keep_alive, expects_continue
        self.body = bytearray()
        self.is_complete = self.is_refused = self.is_gone = False
        self.started, self.arrived = time.perf_counter(), 0.0
        path = target.partition(b"?")[0].decode("latin-1")
        self.path = unquote(path) if "%" in path else path
        self.key: str | None = None
        """Of the API key, the name that the log shows."""
        self._id: str | None = None

    @property
    def id(self) -> str:
        """The client's own, where it is a valid one."""
        if self._id is None:
            given = self.named.get(b"x-request-id", b"")
            self._id = given.decode() if _REQUEST_ID.fullmatch(given) else new_request_id()
        return self._id

    def start(self, place: Place) -> None:
        self.connection.start(self, place)

    def refuse(self, refusal: Refusal) -> None:
        self.connection.refuse(self, refusal)


class Exchange:
    """A request that runs, and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.request: Request = scope["sgf.request"]
        self.path, self.method, self.headers = self.request.path, self.request.method, self.request.named
        self.place = self.request.place
        self.receive, self.send = receive, send

    async def body(self, limit: int) -> bytes:
        """The whole body, decompressed. Raises Refusal."""
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise Refusal("gone", "the client closed the connection")
        body: bytes = message["body"]
        return _unzipped(body, limit) if self.headers.get(b"content-encoding", b"").lower() == b"gzip" else body

    async def reply(self, reply: Reply) -> int:
        """Returns the size of the body as it was sent."""
        if len(reply.content) >= GZIP_FROM_BYTES and _takes_gzip(self.headers.get(b"accept-encoding", b"")):
            reply = await _zipped(reply)
        headers = [*reply.head, (b"x-request-id", self.request.id.encode())]
        await self.send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": reply.content})
        return len(reply.content)

    def wants(self, media_type: bytes) -> bool:
        accepted = self.headers.get(b"accept", b"")
        return media_type in accepted and not _refuses(accepted, media_type)

    def leave_lane(self) -> None:
        self.place.release()

    async def gone(self) -> None:
        """Returns when the client has closed the connection. Call it after `body`."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


def new_request_id() -> str:
    return f"{random.getrandbits(64):016x}"  # no secret


async def _zipped(reply: Reply) -> Reply:
    in_thread = len(reply.content) >= THREAD_FROM_BYTES
    content = await asyncio.to_thread(gzip.compress, reply.content, 1) if in_thread else gzip.compress(reply.content, 1)
    headers = reply.headers | {"content-encoding": "gzip", "vary": "accept-encoding"}
    return replace(reply, content=content, headers=headers)


def _takes_gzip(accepted: bytes) -> bool:
    return b"gzip" in accepted and not _refuses(accepted, b"gzip")


def _refuses(accepted: bytes, what: bytes) -> bool:
    """By a quality of zero, as in `gzip;q=0`."""
    return b"q=0" in accepted and re.search(re.escape(what) + _NO_QUALITY, accepted) is not None


def _unzipped(body: bytes, limit: int) -> bytes:
    """Never unpacks more than the limit, whatever a small body may hold."""
    unpacker = zlib.decompressobj(31)
    try:
        content = unpacker.decompress(body, limit + 1)
    except zlib.error:
        raise Refusal("bad_encoding", "the body is not gzip, as its content-encoding says") from None
    if len(content) > limit:
        raise Refusal("body_too_large", f"the body is larger than {limit:,} bytes when it is decompressed", limit=limit)
    if not unpacker.eof or unpacker.unused_data:
        raise Refusal("bad_encoding", "the body is not one whole gzip member")
    return content
