"""A record of the log as bytes, the same in a file and in Redis.

head      length of the record, records that follow in its group, sequence, fencing number, time in µs, length of the key
hash      sha256(hash of the previous record + head + key + sha256(payload))
key       UTF-8
payload

Equal hashes at an equal sequence prove that two logs hold the same records. The hash is also the checksum of the record.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from model_store.errors import DataError

HEAD = struct.Struct("<IIQQqH")
HASH_BYTES = 32
MIN_BYTES = HEAD.size + HASH_BYTES
MAX_KEY_BYTES = 255
MAX_PAYLOAD_BYTES = 256 * 2**20
Entry = tuple[str, bytes]
"""The idempotency key, or "", and the payload."""


@dataclass(frozen=True, slots=True)
class Record:
    sequence: int
    """1, 2, 3 ... without gaps."""
    fencing_number: int
    """The fencing number of the lease under which the record was written. It never decreases."""
    key: str
    """The idempotency key, or ""."""
    digest: str
    """The sha256 of the payload."""
    time: float
    """Seconds since 1970, by the clock of the writer. Informative: nothing depends on it."""
    payload: bytes
    hash: str


class Position(NamedTuple):
    """The place after a record. The default is the place before the first record."""

    sequence: int = 0
    hash: str = "0" * (2 * HASH_BYTES)


class Decoded(NamedTuple):
    record: Record
    length: int
    """The number of bytes of the record."""
    following: int
    """The number of records of the same group that follow."""


class Damaged(ValueError):  # noqa: N818
    """The bytes are not the record that follows a position. The log adds the place and raises LogError."""


def checked_entry(entry: Entry) -> Entry:
    """Raises DataError if the key is not short printable text, or the payload is too long."""
    key, payload = entry
    size = len(key.encode(errors="surrogatepass"))
    if size > MAX_KEY_BYTES:
        raise DataError(f"the idempotency key {key[:40]!r}... has {size} bytes; the limit is {MAX_KEY_BYTES}")
    if not key.isprintable():
        raise DataError(f"the idempotency key {key!r} has characters that are not printable, such as a line break")
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise DataError(
            f"a change of the graph has {len(payload)} bytes; the limit is {MAX_PAYLOAD_BYTES}: send smaller batches"
        )
    return entry


def encode_group(entries: Sequence[Entry], after: Position, fencing_number: int) -> list[tuple[Record, bytes]]:
    """Returns the records of one group, which is valid only as a whole, each with its bytes."""
    group: list[tuple[Record, bytes]] = []
    microseconds = time.time_ns() // 1000
    for following, (key, payload) in zip(reversed(range(len(entries))), entries, strict=True):
        sequence, key_bytes, digest = after.sequence + 1, key.encode(), hashlib.sha256(payload)
        length = MIN_BYTES + len(key_bytes) + len(payload)
        head = HEAD.pack(length, following, sequence, fencing_number, microseconds, len(key_bytes))
        record_hash = _hash(after, head, key_bytes, digest.digest())
        record = Record(sequence, fencing_number, key, digest.hexdigest(), microseconds / 1e6, payload, record_hash.hex())
        group.append((record, b"".join((head, record_hash, key_bytes, payload))))
        after = Position(sequence, record.hash)
    return group


def decode(data: memoryview, after: Position) -> Decoded:
    """Returns the record that `data` begins with and that follows `after`. Raises Damaged if its length, hash or sequence
    is wrong.
    """
    length = length_of(data)
    if length > len(data):
        raise Damaged(f"the record has {length} bytes, of which {len(data)} are there")
    head = bytes(data[: HEAD.size])
    _, following, sequence, fencing_number, microseconds, key_length = HEAD.unpack(head)
    key_bytes, payload = bytes(data[MIN_BYTES:][:key_length]), bytes(data[MIN_BYTES + key_length : length])
    digest = hashlib.sha256(payload)
    record_hash = _hash(after, head, key_bytes, digest.digest())
    if record_hash != data[HEAD.size : MIN_BYTES]:
        raise Damaged(f"the hash of the record that follows sequence {after.sequence} is wrong")
    if sequence != after.sequence + 1:
        raise Damaged(f"the record has sequence {sequence}, expected {after.sequence + 1}")
    key = key_bytes.decode(errors="replace")
    record = Record(sequence, fencing_number, key, digest.hexdigest(), microseconds / 1e6, payload, record_hash.hex())
    return Decoded(record, length, following)


def length_of(data: memoryview) -> int:
    """Returns the length that a record states. Raises Damaged if it cannot be right."""
    if len(data) < MIN_BYTES:
        raise Damaged(f"{len(data)} bytes are too few for a record")
    length, *_, key_length = HEAD.unpack_from(data)
    if not 0 <= length - MIN_BYTES - key_length <= MAX_PAYLOAD_BYTES:
        raise Damaged(f"a record cannot have {length} bytes")
    return int(length)


def stored_hash(data: bytes) -> str:
    """Returns the hash that a record states, without a check."""
    return data[HEAD.size : MIN_BYTES].hex()


def _hash(after: Position, head: bytes, key: bytes, digest: bytes) -> bytes:
    return hashlib.sha256(bytes.fromhex(after.hash) + head + key + digest).digest()
