"""A request and its reply, as the protocol, admission and the gateway hand them on."""

from __future__ import annotations

import asyncio
import gzip
import random
import re
import time
import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

import orjson

from service.admission import Place
from service.http.errors import Refusal

if TYPE_CHECKING:
    from service.http.protocol import Protocol

JSON = "application/json"
GZIP_FROM_BYTES = 1024
UNPARSED_BYTES = 8192
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
    _head: bytes | None = None

    @classmethod
    def refused(cls, refusal: Refusal) -> Reply:
        """The same for the same refusal: in an overload one refusal is sent to many."""
        if refusal.reply is None:
            content = orjson.dumps(refusal.body(), default=str)
            refusal.reply = cls(refusal.status, content, headers=refusal.headers, error=refusal.code)
        reply: Reply = refusal.reply
        return reply

    @property
    def head(self) -> bytes:
        """Its own headers as they are sent."""
        if self._head is None:
            more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
            self._head = f"content-type: {self.media_type}\r\ncontent-length: {len(self.content)}\r\n{more}".encode()
        return self._head

    async def compressed(self) -> Reply:
        in_thread = len(self.content) >= THREAD_FROM_BYTES
        content = await asyncio.to_thread(gzip.compress, self.content, 1) if in_thread else gzip.compress(self.content, 1)
        headers = self.headers | {"content-encoding": "gzip", "vary": "accept-encoding"}
        return replace(self, content=content, headers=headers, _head=None)


class Request:
    """A request whose head is complete. Made for every request, so it holds little and computes what it can later."""

    __slots__ = (
        "_gone", "_id", "arrived", "body", "connection", "expects_continue", "headers", "is_complete", "is_gone",
        "is_refused", "keep_alive", "key", "method", "named", "path", "place", "started", "target", "version",
    )  # fmt: skip

    def __init__(
        self,
        connection: Protocol,
        method: str,
        target: bytes,
        version: str,
        headers: list[tuple[bytes, bytes]],
        keep_alive: bool = True,
        expects_continue: bool = False,
    ) -> None:
        self.connection, self.method, self.target, self.version = connection, method, target, version
        self.headers, self.named = headers, dict(headers)
        self.keep_alive, self.expects_continue = keep_alive, expects_continue
        self.body = bytearray()
        self.is_complete = self.is_refused = self.is_gone = False
        self.started, self.arrived = time.perf_counter(), 0.0
        path = target.partition(b"?")[0].decode("latin-1")
        self.path = unquote(path) if "%" in path else path
        self.place = Place(None)
        self.key: str | None = None
        """Of the API key, the name that the log shows."""
        self._id: str | None = None
        self._gone: asyncio.Event | None = None

    @property
    def id(self) -> str:
        """The client's own, where it is a valid one."""
        if self._id is None:
            given = self.named.get(b"x-request-id", b"")
            self._id = given.decode() if _REQUEST_ID.fullmatch(given) else new_request_id()
        return self._id

    def content(self, limit: int) -> bytes | bytearray:
        """The body, decompressed. Raises Refusal."""
        body, self.body = self.body, bytearray()
        return _unzipped(body, limit) if self.named.get(b"content-encoding", b"").lower() == b"gzip" else body

    def accepts(self, media_type: bytes) -> bool:
        return _accepts(self.named.get(b"accept", b""), media_type)

    def takes_compressed(self, reply: Reply) -> bool:
        return len(reply.content) >= GZIP_FROM_BYTES and _accepts(self.named.get(b"accept-encoding", b""), b"gzip")

    def start(self, place: Place) -> None:
        self.place = place
        self.connection.start(self)

    def refuse(self, refusal: Refusal) -> None:
        self.connection.refuse(self, refusal)

    async def gone(self) -> None:
        """Returns when the client has closed the connection."""
        self._gone = asyncio.Event()
        if not self.is_gone:
            await self._gone.wait()

    def lose(self) -> None:
        """The client has closed the connection."""
        self.is_gone = True
        if self._gone is not None:
            self._gone.set()


class Unparsed:
    """A request in one packet that waits as the bytes it came in: if it is refused, parsing it would have been in vain."""

    __slots__ = ("arrived", "connection", "data", "is_gone", "is_refused", "path", "rest", "started")
    _HEAD = re.compile(rb"POST (/predict|/embed) HTTP/1\.1\r\n")
    _LENGTH = re.compile(rb"\ncontent-length: *(\d{1,4})\r\n", re.IGNORECASE)
    _ID = re.compile(rb"\nx-request-id: *([A-Za-z0-9._:-]{1,128})\r\n", re.IGNORECASE)
    _UNUSUAL = re.compile(
        rb"\n(?:transfer-encoding|upgrade|expect|connection|content-length: *\d+\r\n(?s:.*)\ncontent-length)", re.IGNORECASE
    )

    def __init__(self, connection: Protocol, data: bytes, path: str) -> None:
        self.connection, self.data, self.path = connection, data, path
        self.rest = b""
        """What arrived behind it."""
        self.is_gone = self.is_refused = False
        self.arrived, self.started = 0.0, time.perf_counter()

    @classmethod
    def of(cls, connection: Protocol, data: bytes) -> Unparsed | None:
        """None for anything but one whole request of a usual kind: that is parsed at once."""
        if len(data) > UNPARSED_BYTES or not (start := cls._HEAD.match(data)):
            return None
        end = data.find(b"\r\n\r\n") + 4
        head = data[:end]
        length = cls._LENGTH.search(head)
        if length is None or len(data) != end + int(length[1]) or cls._UNUSUAL.search(head):
            return None
        return cls(connection, data, start[1].decode())

    @property
    def id(self) -> str:
        given = self._ID.search(self.data)
        return given[1].decode() if given else new_request_id()

    def start(self, place: Place) -> None:
        self.connection.parse(self, place)

    def refuse(self, refusal: Refusal) -> None:
        self.is_refused = True
        self.connection.refuse_unparsed(self, refusal)


def new_request_id() -> str:
    return f"{random.getrandbits(64):016x}"  # no secret


def _accepts(accepted: bytes, what: bytes) -> bool:
    """Named, and not by a quality of zero, as in `gzip;q=0`."""
    return what in accepted and not (b"q=0" in accepted and re.search(re.escape(what) + _NO_QUALITY, accepted))


def _unzipped(body: bytes | bytearray, limit: int) -> bytes:
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
