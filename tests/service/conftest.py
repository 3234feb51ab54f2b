from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from model_store import Snapshot, Store
from tests.model_store.samples import publish
from tests.service.live.rebuilt import KEY
from tests.service.named import named_contents
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
def own_store(store: Path, tmp_path: Path) -> Path:
    """A store whose graph the test may change."""
    return Path(shutil.copytree(store, tmp_path / "store"))


@pytest.fixture
def live(own_store: Path) -> Iterator[httpx.Client]:
    """A service that takes changes of the graph, with the key `KEY`."""
    with in_thread(own_store, write_keys=(KEY,)) as connected:
        yield connected


@pytest.fixture(scope="session")
def named_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a live version whose features, classes and nodes have names."""
    root = tmp_path_factory.mktemp("named")
    Store(root).publish("fans", named_contents(), onnx=False, activate=True)
    return root


@pytest.fixture(scope="session")
def named_client(named_store: Path) -> Iterator[httpx.Client]:
    with in_thread(named_store) as connected:
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
