"""A process whose peer is silent ends with a message; one whose peer has done its part goes on."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.multiprocessing import ProcessExitedException

from tests.ranks import run_ranks
from tests.service.serving import free_port
from training.fit import heartbeat

LOST_SECONDS = 2.0


def beat(port: int, is_done: bool, errors: Path) -> bool:
    """Rank 1 stops its heartbeats at once. Rank 0 works for longer than a lost process is waited for."""
    sys.stderr = errors.open("a")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    heartbeat.BEAT_SECONDS, heartbeat.LOST_SECONDS = 0.1, LOST_SECONDS
    rank, kinds = dist.get_rank(), vars(dist)
    store: Any = kinds["TCPStore"]("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    beating = heartbeat.Heartbeat(rank, 2)
    if rank == 1:
        beating.stop(is_done)
        time.sleep(0 if is_done else 600)  # the test ends it
    else:
        time.sleep(3 * LOST_SECONDS)
    return store is not None


def test_a_silent_process_ends_the_others(tmp_path: Path) -> None:
    with pytest.raises(ProcessExitedException, match="process 0 terminated with exit code 1"):
        run_ranks(beat, 2, free_port(), False, tmp_path / "errors")
    message = "sgf-train: rank 0: the connection to another process of the run was lost: rank 1 has not answered for 2 s"
    assert message in (tmp_path / "errors").read_text()


def test_a_process_that_has_done_its_part_may_end(tmp_path: Path) -> None:
    assert run_ranks(beat, 2, free_port(), True, tmp_path / "errors") == [True, True]
