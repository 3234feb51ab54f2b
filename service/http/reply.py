"""A reply: the status, headers and content of an HTTP response, and its bytes on the wire."""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.errors import Refusal
from service.http.errors import STATUS, headers_for

JSON, NPY = "application/json", "application/x-npy"
GZIP_FROM_BYTES = 1024
THREAD_FROM_BYTES = 64 * 1024
"""A larger answer is compressed in a thread, while the event loop answers other requests."""


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
        """Made once per refusal: in an overload, one refusal is sent to many clients."""
        reply = _REPLIES.get(refusal)
        if reply is None:
            content = orjson.dumps(refusal.body(), default=str)
            reply = cls(STATUS[refusal.code], content, headers=headers_for(refusal), error=refusal.code)
            _REPLIES[refusal] = reply
        return reply

    async def compressed(self) -> Reply:
        in_thread = len(self.content) >= THREAD_FROM_BYTES
        content = await asyncio.to_thread(gzip.compress, self.content, 1) if in_thread else gzip.compress(self.content, 1)
        headers = self.headers | {"content-encoding": "gzip", "vary": "accept-encoding"}
        return replace(self, content=content, headers=headers, _head=None)

    def encode(self, default_headers: bytes, request_id: str, keep_alive: bool, with_content: bool = True) -> bytes:
        """One packet: status line, headers and content."""
        if self._head is None:
            more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
            self._head = f"content-type: {self.media_type}\r\ncontent-length: {len(self.content)}\r\n{more}".encode()
        end = b"" if keep_alive else b"connection: close\r\n"
        content = self.content if with_content else b""
        parts = STATUS_LINE[self.status], default_headers, self._head, request_id.encode(), end, content
        return b"%b%b%bx-request-id: %b\r\n%b\r\n%b" % parts


_REPLIES: WeakKeyDictionary[Refusal, Reply] = WeakKeyDictionary()
