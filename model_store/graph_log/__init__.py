"""The write-ahead log of the changes of one graph: records of bytes, numbered, hashed, durable; one writer at a time.

The log is in files of the store or in Redis Streams (`redis_log`, which imports redis). What the bytes mean, and when no
version needs a record any more, belongs to the callers. docs/graph_log.md describes the format and the protocol.
"""

from model_store.graph_log.address import LogAddress
from model_store.graph_log.file_log import FileLog
from model_store.graph_log.log import GraphLog, Writer
from model_store.graph_log.record import Position, Record

__all__ = ["FileLog", "GraphLog", "LogAddress", "Position", "Record", "Writer"]
