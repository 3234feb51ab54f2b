"""An HTTP request, which the protocol, admission and the gateway share; and `usual_head`, which parses equal heads once."""

from __future__ import annotations

import asyncio
import random
import re
import time
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.admission import Slot
from service.errors import Refusal

if TYPE_CHECKING:
    from service.http.protocol import Protocol

USUAL_BYTES = 8192
"""Largest usual request: see `Head`."""
OPTIONAL_HEADERS = {b"transfer-encoding", b"expect"}
UPGRADE_HEADERS = {b"upgrade", b"http2-settings", b"connection"}
_NO_QUALITY = rb"\s*;\s*q=0(\.0*)?\s*(,|$)"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
USUAL_TARGETS = {b"/predict", b"/embed"}


class Request:
    """A request whose head is complete."""

    __slots__ = (
        "_gone", "_id", "arrived", "body", "connection", "expects_continue", "headers", "is_complete", "is_gone",
        "is_refused", "keep_alive", "key", "method", "named", "path", "slot", "started", "target", "version",
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
        head: Head | None = None,
    ) -> None:
        """`head`: the head of a usual request, which many requests share."""
        self.connection, self.method, self.target, self.version = connection, method, target, version
        self.headers = headers
        self.keep_alive, self.expects_continue = keep_alive, expects_continue
        self.body: bytes | bytearray = bytearray()
        self.is_complete = self.is_refused = self.is_gone = False
        self.started, self.arrived = time.perf_counter(), 0.0
        self.slot = Slot(None)
        self.key: str | None = None
        """The name of the API key in the log."""
        self._id: str | None = None
        if head is not None:
            self.named, self.path = head.named, head.path
        else:
            path = target.partition(b"?")[0].decode("latin-1")
            self.named, self.path = dict(headers), unquote(path) if "%" in path else path
        self._gone: asyncio.Event | None = None

    @property
    def id(self) -> str:
        """The id that the client sent, if it is valid, else a new one."""
        if self._id is None:
            self._id = _id_of(self.named).decode()
        return self._id

    def content(self, limit: int) -> bytes | bytearray:
        """The body, decompressed. Raises Refusal."""
        body, self.body = self.body, b""
        return _unzip(body, limit) if self.named.get(b"content-encoding", b"").lower() == b"gzip" else body

    def accepts(self, header: bytes, value: bytes) -> bool:
        """True if the header names the value, and not with a quality of zero, as in `gzip;q=0`."""
        accepted = self.named.get(header, b"")
        return value in accepted and not (b"q=0" in accepted and re.search(re.escape(value) + _NO_QUALITY, accepted))

    def start(self, slot: Slot) -> None:
        self.slot = slot
        self.connection.start(self)

    def refuse(self, refusal: Refusal) -> None:
        self.connection.refuse(self, refusal)

    async def gone(self) -> None:
        """Returns when the client has closed the connection."""
        self._gone = asyncio.Event()
        if not self.is_gone:
            await self._gone.wait()

    def lose(self) -> None:
        """Called when the client has closed the connection: wakes the task that waits in `gone`."""
        self.is_gone = True
        if self._gone is not None:
            self._gone.set()


class Head:
    """The head of a usual request: POST /predict or /embed over HTTP/1.1, a small body of known length, and no
    `Transfer-Encoding`, `Expect`, `Upgrade` or `Connection: close`. Its `on_...` methods collect what the parser finds.
    """

    def __init__(self, head: bytes) -> None:
        """Raises httptools.HttpParserError and HttpParserUpgrade."""
        self.size, self.target, self.headers = len(head), b"", list[tuple[bytes, bytes]]()
        self._has_ended = self._has_body = False
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(head)
        self.named = dict(self.headers)
        length = self.named.get(b"content-length", b"")
        self.body_bytes = int(length) if length.isdigit() else USUAL_BYTES
        self.is_usual = (
            self._has_ended
            and not self._has_body
            and parser.get_method() == b"POST"
            and self.target in USUAL_TARGETS
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not self.named.keys() & OPTIONAL_HEADERS
        )
        self.path, self.origin = self.target.decode("latin-1"), self.named.get(b"origin")

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._has_ended = True

    def on_body(self, _body: bytes) -> None:
        self._has_body = True

    @property
    def id(self) -> bytes:
        """The id that the client sent, if it is valid, else a new one."""
        return _id_of(self.named)


def usual_head(data: bytes) -> Head | None:
    """The head of the request in `data`. None unless `data` is exactly one complete, usual request."""
    end = data.find(b"\r\n\r\n") + 4
    if end < len(data) <= USUAL_BYTES and (head := _usual_head(data[:end])) and len(data) == end + head.body_bytes:
        return head
    return None


@lru_cache(maxsize=256)  # the requests of a client have few different heads
def _usual_head(head: bytes) -> Head | None:
    try:
        parsed = Head(head)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None  # the parser of the connection reports it
    return parsed if parsed.is_usual else None


def _id_of(headers: dict[bytes, bytes]) -> bytes:
    name = headers.get(b"x-request-id")
    return name if name is not None and _REQUEST_ID.fullmatch(name) else new_request_id()


def new_request_id() -> bytes:
    return b"%016x" % random.getrandbits(64)  # not a secret


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
    """The object with which uvicorn runs an ASGI application for one request."""
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
