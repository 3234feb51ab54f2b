"""The write-ahead log of the changes of one graph: records of bytes, numbered, hashed, durable; one writer at a time.

In a file of the store or in Redis Streams (`redis_log`, which imports redis). What the bytes mean, and when a version no
longer needs a record, belongs to the callers. The format and the protocol are described in docs/graph_log.md.
"""

from model_store.graph_log.address import LogAddress
from model_store.graph_log.file_log import FileLog
from model_store.graph_log.log import GraphLog, Writer
from model_store.graph_log.record import Position, Record

__all__ = ["FileLog", "GraphLog", "LogAddress", "Position", "Record", "Writer"]
