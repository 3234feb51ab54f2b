"""One HTTP request and its answer, as ASGI has them: bodies with limits, gzip both ways, one shape for errors."""

from __future__ import annotations

import asyncio
import gzip
import random
import re
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import orjson

from service.errors import Refusal

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = "application/json"
GZIP_FROM_BYTES = 1024
THREAD_FROM_BYTES = 64 * 1024
"""A larger answer is compressed in a thread: meanwhile others are answered."""
DRAINED = 16
"""Times the limit of a body: so much is read of one that is too large, before the connection is cut."""
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

    @classmethod
    def refused(cls, refusal: Refusal) -> Reply:
        return cls(refusal.status, orjson.dumps(refusal.body(), default=str), headers=refusal.headers, error=refusal.code)

    @cached_property
    def head(self) -> list[tuple[bytes, bytes]]:
        """Its headers, as they are sent."""
        sent = {"content-type": self.media_type, "content-length": str(len(self.content))} | self.headers
        return [(name.encode(), value.encode()) for name, value in sent.items()]


class Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.receive, self._send = receive, send
        self._more = True
        """Whether more of the body is to come."""
        self.request_id = request_id(self.headers)

    async def body(self, limit: int) -> bytes:
        """The whole body, decompressed. Raises Refusal where it is too large, or not what its headers say."""
        try:
            self._check_headers(limit)
            body = await self._received(limit)
        except Refusal as refusal:
            if refusal.code == "body_too_large":
                await self._drain(limit)
            raise
        return _unzipped(body, limit) if self.headers.get(b"content-encoding", b"").lower() == b"gzip" else body

    async def reply(self, reply: Reply) -> int:
        """Returns the size of the body as it was sent."""
        if len(reply.content) >= GZIP_FROM_BYTES and _takes_gzip(self.headers.get(b"accept-encoding", b"")):
            reply = await _zipped(reply)
        headers = [*reply.head, (b"x-request-id", self.request_id.encode())]
        await self._send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": reply.content})
        return len(reply.content)

    def wants(self, media_type: bytes) -> bool:
        accepted = self.headers.get(b"accept", b"")
        return media_type in accepted and not _refuses(accepted, media_type)

    async def gone(self) -> None:
        """Returns when the caller has hung up. Only after the body was read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def _check_headers(self, limit: int) -> None:
        kind = self.headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            shown = kind.decode("latin-1")[:60]
            raise Refusal("unsupported_media_type", f"the content type is {shown!r}, expected {JSON}")
        coding = self.headers.get(b"content-encoding", b"identity").lower()
        if coding not in (b"gzip", b"identity"):
            shown = coding.decode("latin-1")[:60]
            raise Refusal("unsupported_media_type", f"the content encoding is {shown!r}, expected gzip or none")
        length = self.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit:
            raise _too_large(limit)

    async def _received(self, limit: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while self._more:
            parts.append(await self._next_part())
            size += len(parts[-1])
            if size > limit:
                raise _too_large(limit)
        return b"".join(parts)

    async def _next_part(self) -> bytes:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            self._more = False
            raise Refusal("bad_length", "the connection ended before the body did")
        self._more = message.get("more_body", False)
        part: bytes = message.get("body", b"")
        return part

    async def _drain(self, limit: int) -> None:
        """Throws away what still comes, within bounds: a client that is still sending would see a reset, not our answer."""
        left = DRAINED * limit
        while self._more and left > 0 and b"expect" not in self.headers:  # who asks first whether to send is not sending
            left -= len(await self._next_part())


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """The client's own, where it can be one."""
    given = headers.get(b"x-request-id", b"")
    return given.decode() if _REQUEST_ID.fullmatch(given) else f"{random.getrandbits(64):016x}"  # no secret


def replayed(body: bytes, receive: Receive) -> Receive:
    """As if this body had not been read yet."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> MutableMapping[str, Any]:
        return messages.pop() if messages else await receive()

    return again


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
        raise _too_large(limit)
    if not unpacker.eof or unpacker.unused_data:
        raise Refusal("bad_encoding", "the body is not one whole gzip member")
    return content


def _too_large(limit: int) -> Refusal:
    # The rest of the body is not read, so the connection cannot be used again.
    told = f"the body is larger than {limit:,} bytes"
    return Refusal("body_too_large", told, headers={"connection": "close"}, limit=limit)
