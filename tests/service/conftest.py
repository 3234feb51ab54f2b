from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from model_store import Snapshot, Store
from tests.service.serving import CONTENTS, in_thread


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One version, live: a model of three layers with ONNX."""
    root = tmp_path_factory.mktemp("served")
    Store(root).publish("demo", CONTENTS, activate=True)
    return root


@pytest.fixture(scope="session")
def snapshot(store: Path) -> Iterator[Snapshot]:
    with Store(store).model("demo").open() as opened:
        yield opened


@pytest.fixture(scope="session")
def client(store: Path) -> Iterator[httpx.Client]:
    with in_thread(store) as found:
        yield found


@pytest.fixture
def features() -> list[float]:
    return [round(float(one), 3) for one in np.random.default_rng(3).normal(size=5)]
