"""An answer leaves in one piece."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from service.protocol import HEAD_BYTES, Together
from tests.service import hurried
from tests.service.serving import in_thread

QUESTION = b'POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 14\r\n\r\n{"nodes": [1]}'


class Sink(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.sent: list[bytes] = []
        self.closed_after: int | None = None
        self.unread = 0
        self.aborted = False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.sent.append(data)

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closed_after is not None

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closed_after = len(self.sent)


def test_what_is_written_in_one_go_is_sent_in_one_piece() -> None:
    async def main() -> None:
        sink = Sink()
        transport = Together(sink, asyncio.get_running_loop())
        transport.write(b"head")
        assert sink.sent == []
        transport.write(b"body")
        assert sink.sent == [b"headbody"], "at once: it waits for nobody else's turn"
        await asyncio.sleep(0)
        transport.write(b"more")
        assert sink.sent == [b"headbody"], "it may be the head of another answer"
        await asyncio.sleep(0)
        assert sink.sent == [b"headbody", b"more"]
        transport.write(b"last")
        transport.close()
        await asyncio.sleep(0)
        assert (sink.sent[-1], sink.closed_after, len(sink.sent)) == (b"last", 3, 3)
        assert transport.get_extra_info("peername") == ("127.0.0.1", 1)

    asyncio.run(main())


def test_a_client_that_reads_nothing_is_hung_up_on_and_a_slow_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.protocol.UNREAD_SECONDS", 0.1)

    async def main() -> None:
        sink = Sink()
        transport = Together(sink, asyncio.get_running_loop())
        sink.unread = 1000
        transport.write(b"answer")
        for _ in range(30):  # slowly read
            await asyncio.sleep(0.01)
            sink.unread -= 1
            assert not sink.aborted
        await asyncio.sleep(0.3)
        assert sink.aborted

    hurried.run(main())


@pytest.mark.parametrize("sent", [b"", b"POST /predict HT", QUESTION + b"POST /predict HTTP/1.1\r\nhost:"])
def test_a_request_whose_head_does_not_come_is_not_waited_for(
    store: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.protocol.HEAD_SECONDS", 0.5)
    with in_thread(store) as client, socket.create_connection(("127.0.0.1", client.base_url.port)) as silent:
        silent.settimeout(60)
        silent.sendall(sent)
        answered = b""
        with suppress(ConnectionResetError):
            while more := silent.recv(65_536):
                answered += more
        assert answered.count(b"HTTP/1.1 200") == sent.count(QUESTION)


@pytest.mark.parametrize("piece", [b"x-more: yes\r\n", b"x" * 1000])
def test_a_head_without_end_is_refused(client: httpx.Client, piece: bytes) -> None:
    with socket.create_connection(("127.0.0.1", client.base_url.port)) as caller:
        caller.settimeout(60)
        caller.sendall(b"POST /predict HTTP/1.1\r\nx-long: ")
        answered = b""
        with suppress(ConnectionError):
            for _ in range(8 * HEAD_BYTES // len(piece)):  # of the packet in which it begins nothing is counted
                caller.sendall(piece)
        with suppress(ConnectionError):
            while more := caller.recv(65_536):
                answered += more
    assert answered.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"head_too_large"' in answered
    assert client.post("/predict", json={"nodes": [1]}, headers={"x-long": "x" * 30_000}).status_code == 200


def test_the_service_sends_head_and_body_together(client: httpx.Client) -> None:
    body = b'{"nodes": [1]}'
    with socket.create_connection(("127.0.0.1", client.base_url.port)) as caller:
        head = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        caller.sendall(head % len(body) + body)
        first = caller.recv(65536)
        assert first.startswith(b"HTTP/1.1 200")
        assert first.endswith(b"}]}")
