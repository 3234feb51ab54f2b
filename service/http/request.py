"""An HTTP request, as the protocol, admission and the gateway pass it on: parsed, or still the bytes it came in."""

from __future__ import annotations

import asyncio
import random
import re
import time
import zlib
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.admission import Place
from service.errors import Refusal

if TYPE_CHECKING:
    from service.http.protocol import Protocol

UNPARSED_BYTES = 8192
UPGRADE_HEADERS = {b"upgrade", b"http2-settings", b"connection"}
_NO_QUALITY = rb"\s*;\s*q=0(\.0*)?\s*(,|$)"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Request:
    """A request whose head is complete."""

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
        """The name of the API key in the log."""
        self._id: str | None = None
        self._gone: asyncio.Event | None = None

    @property
    def id(self) -> str:
        """The client's, if it is valid."""
        if self._id is None:
            name = self.named.get(b"x-request-id", b"")
            self._id = name.decode() if _REQUEST_ID.fullmatch(name) else new_request_id()
        return self._id

    def content(self, limit: int) -> bytes | bytearray:
        """The body, decompressed. Raises Refusal."""
        body, self.body = self.body, bytearray()
        return _unzip(body, limit) if self.named.get(b"content-encoding", b"").lower() == b"gzip" else body

    def accepts(self, header: bytes, value: bytes) -> bool:
        """True if the header names the value, and not with a quality of zero, as in `gzip;q=0`."""
        accepted = self.named.get(header, b"")
        return value in accepted and not (b"q=0" in accepted and re.search(re.escape(value) + _NO_QUALITY, accepted))

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
    """A request in one packet that waits as the bytes it came in, so that refusing it does not need parsing."""

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
        """Bytes that arrived after it."""
        self.is_gone = self.is_refused = False
        self.arrived, self.started = 0.0, time.perf_counter()

    @classmethod
    def of(cls, connection: Protocol, data: bytes) -> Unparsed | None:
        """None if the data is anything but one whole, usual request: then it is parsed at once."""
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
        name = self._ID.search(self.data)
        return name[1].decode() if name else new_request_id()

    def start(self, place: Place) -> None:
        self.connection.parse(self, place)

    def refuse(self, refusal: Refusal) -> None:
        self.is_refused = True
        self.connection.refuse_unparsed(self, refusal)


def new_request_id() -> str:
    return f"{random.getrandbits(64):016x}"  # no secret


def _unzip(body: bytes | bytearray, limit: int) -> bytes:
    """Decompresses at most `limit` bytes, however small the body is. Raises Refusal."""
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


def origin_form(target: bytes) -> bytes:
    """The path and query of a target, which may be absolute, such as `http://host?x=1` (RFC 9112, 3.2.2)."""
    if target.startswith(b"/"):
        return target
    url = httptools.parse_url(target)
    return (url.path or b"/") + (b"?" + url.query if url.query else b"")


def head_without_upgrade(method: bytes, target: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> bytes:
    """The head of a request without `Upgrade`, to be parsed again (RFC 9110, 7.8: an upgrade may be ignored)."""
    kept = [b"%b: %b\r\n" % pair for pair in headers if pair[0] not in UPGRADE_HEADERS]
    if any(b"close" in value.lower() for name, value in headers if name == b"connection"):
        kept.append(b"connection: close\r\n")
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, target, version.encode(), b"".join(kept))


def asgi_cycle(protocol: Protocol, request: Request) -> RequestResponseCycle:
    """What uvicorn runs an ASGI application with, for one request."""
    scope: Any = {
        "type": "http",
        "asgi": {"version": protocol.asgi_version, "spec_version": "2.3"},
        "http_version": request.version,
        "server": protocol.server,
        "client": protocol.client,
        "scheme": protocol.scheme,
        "method": request.method,
        "root_path": "",
        "path": request.path,
        "query_string": request.target.partition(b"?")[2],
        "headers": request.headers,
        "sgf.request": request,
    }
    return RequestResponseCycle(
        scope=scope,
        transport=protocol.transport,
        flow=protocol.flow,
        logger=protocol.logger,
        access_logger=protocol.access_logger,
        access_log=False,
        default_headers=protocol.server_state.default_headers,
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=request.keep_alive,
        on_response=protocol.on_response_complete,
    )
