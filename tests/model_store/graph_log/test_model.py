"""A file log behaves like a list, whatever the order of operations and however many processes use it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from model_store.errors import Behind, KeyReused, RecordsPruned
from model_store.graph_log import FileLog
from model_store.graph_log.segment import COMMITTED_AT, RECORDS_AT, WORD, segment_numbers, segment_path

KEYS = st.sampled_from(["", "", "a", "b", "c"])
ENTRIES = st.lists(st.tuples(KEYS, st.binary(max_size=60)), max_size=4)
PROCESSES = st.integers(0, 2)


class LogAsList(RuleBasedStateMachine):
    @initialize(segment_bytes=st.sampled_from([200, 500, 100_000]))
    def open(self, segment_bytes: int) -> None:
        self.folder, self.segment_bytes = Path(tempfile.mkdtemp()) / "g", segment_bytes
        self.logs = [self._open() for _ in range(3)]
        self.model: list[tuple[str, bytes]] = []
        self.first = 1

    def _open(self) -> FileLog:
        return FileLog(self.folder, lease_seconds=0, segment_bytes=self.segment_bytes)

    @rule(process=PROCESSES, entries=ENTRIES)
    def append(self, process: int, entries: list[tuple[str, bytes]]) -> None:
        log = self.logs[process]
        known = {key: payload for key, payload in self.model if key}
        reused = any(key and known.setdefault(key, payload) != payload for key, payload in entries)
        with log.writer(5) as writer:
            if reused:
                with pytest.raises(KeyReused):
                    writer.append(entries, len(self.model))
                return
            records = writer.append(entries, len(self.model))
        for entry in entries:
            if not entry[0] or entry not in self.model:
                self.model.append(entry)
        assert [(record.key, record.payload) for record in records] == entries
        assert all(self.model[record.sequence - 1] == (record.key, record.payload) for record in records)

    @rule(process=PROCESSES, wrong=st.integers(1, 3))
    def append_behind(self, process: int, wrong: int) -> None:
        with self.logs[process].writer(5) as writer, pytest.raises(Behind):
            writer.append([("", b"")], len(self.model) + wrong)

    @rule(process=PROCESSES, other=PROCESSES, payload=st.binary(max_size=20))
    def take_over(self, process: int, other: int, payload: bytes) -> None:
        if process != other:
            with self.logs[process].writer(5), self.logs[other].writer(5) as writer:
                writer.append([("", payload)], len(self.model))
            self.model.append(("", payload))

    @rule(process=PROCESSES)
    def restart(self, process: int) -> None:
        self.logs[process].close()
        self.logs[process] = self._open()

    @rule(torn=st.binary(max_size=80), keep=st.floats(0, 1))
    def cut_power(self, torn: bytes, keep: float) -> None:
        """All processes end; the newest segment has a torn tail and an older committed length."""
        for process in range(3):
            self.restart(process)
        if numbers := segment_numbers(self.folder):
            with segment_path(self.folder, numbers[-1]).open("r+b") as file:
                file.seek(0, 2)
                file.write(torn[: int(keep * len(torn))])
                file.seek(COMMITTED_AT)
                file.write(WORD.pack(RECORDS_AT))

    @rule(process=PROCESSES, through=st.integers(0, 30))
    def prune(self, process: int, through: int) -> None:
        first = self.logs[process].prune(through)
        assert self.first <= first <= max(self.first, min(through, len(self.model)) + 1)
        self.first = first
        self.model[: first - 1] = [("", payload) for _, payload in self.model[: first - 1]]  # forgotten keys may be reused

    @rule(process=PROCESSES, after=st.integers(0, 30), limit=st.integers(1, 5))
    def read(self, process: int, after: int, limit: int) -> None:
        after = min(after, len(self.model))
        if after < self.first - 1:
            with pytest.raises(RecordsPruned):
                self.logs[process].read(after, limit)
            return
        records = self.logs[process].read(after, limit)
        expected = self.model[after : after + len(records)]
        assert [record.payload for record in records] == [payload for _, payload in expected]
        assert [record.sequence for record in records] == list(range(after + 1, after + 1 + len(records)))
        assert records or after == len(self.model)

    @rule(process=PROCESSES, key=st.sampled_from("abc"))
    def find(self, process: int, key: str) -> None:
        record = self.logs[process].find(key)
        found = None if record is None else (record.sequence, record.payload)
        assert found == next(((n, p) for n, (k, p) in enumerate(self.model, 1) if k == key), None)

    @invariant()
    def all_processes_agree(self) -> None:
        if hasattr(self, "logs"):
            assert len({log.position() for log in self.logs}) == 1
            assert self.logs[0].position().sequence == len(self.model)

    def teardown(self) -> None:
        for log in getattr(self, "logs", ()):
            log.close()
        shutil.rmtree(self.folder.parent, ignore_errors=True)


TestLogAsList = LogAsList.TestCase
TestLogAsList.settings = settings(max_examples=settings().max_examples // 4, stateful_step_count=30)
