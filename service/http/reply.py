"""A reply: the status, headers and content of an HTTP response, and its bytes on the wire."""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import dataclass, field, replace

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
    _head: bytes = b""
    _encoded_with: bytes | None = None
    """The default headers that `_head` contains. `_head` is kept because an overload sends the same reply to many
    clients."""

    @classmethod
    def for_refusal(cls, refusal: Refusal) -> Reply:
        content = orjson.dumps(refusal.body(), default=str)
        return cls(STATUS[refusal.code], content, headers=headers_for(refusal), error=refusal.code)

    async def compressed(self) -> Reply:
        in_thread = len(self.content) >= THREAD_FROM_BYTES
        content = await asyncio.to_thread(gzip.compress, self.content, 1) if in_thread else gzip.compress(self.content, 1)
        headers = self.headers | {"content-encoding": "gzip", "vary": "accept-encoding"}
        return replace(self, content=content, headers=headers)

    def encode(self, default_headers: bytes, request_id: bytes, keep_alive: bool, with_content: bool = True) -> bytes:
        """One packet: status line, headers and content."""
        if self._encoded_with is not default_headers:
            more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
            head = f"content-type: {self.media_type}\r\ncontent-length: {len(self.content)}\r\n{more}x-request-id: "
            self._encoded_with, self._head = default_headers, STATUS_LINE[self.status] + default_headers + head.encode()
        end = b"" if keep_alive else b"connection: close\r\n"
        return b"%b%b\r\n%b\r\n%b" % (self._head, request_id, end, self.content if with_content else b"")
