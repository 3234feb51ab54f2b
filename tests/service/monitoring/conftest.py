from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from model_store import Store
from service.engines.served_model import ServedModel, load
from service.settings import Settings
from tests.service.monitoring import planted


@pytest.fixture(scope="session")
def planted_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("planted")
    Store(root).publish("demo", planted.contents(), onnx=False, activate=True)
    return root


@pytest.fixture(scope="session")
def planted_model(planted_store: Path) -> Iterator[ServedModel]:
    model = load(Store(planted_store).model("demo"), 1, Settings(store=planted_store))
    yield model
    model.retire()
