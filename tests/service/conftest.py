from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from model_store import Snapshot, Store
from tests.model_store.samples import publish
from tests.service.serving import CONTENTS, in_thread


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one live version: a model of three layers with ONNX."""
    root = tmp_path_factory.mktemp("served")
    Store(root).publish("demo", CONTENTS, activate=True)
    return root


@pytest.fixture(scope="session")
def snapshot(store: Path) -> Iterator[Snapshot]:
    with Store(store).model("demo").open() as opened:
        yield opened


@pytest.fixture(scope="session")
def client(store: Path) -> Iterator[httpx.Client]:
    with in_thread(store) as connected:
        yield connected


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A store with two versions of `demo`, the first one live."""
    root = tmp_path / "store"
    publish(Store(root), seed=1, activate=True)
    publish(Store(root), seed=2)
    return root


@pytest.fixture
def features() -> list[float]:
    return [round(float(value), 3) for value in np.random.default_rng(3).normal(size=5)]
