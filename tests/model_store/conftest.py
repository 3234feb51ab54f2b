from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from model_store import ModelVersions, Store
from tests.model_store.samples import publish

pytest.register_assert_rewrite("tests.model_store.format.abuse")  # so that its asserts show their values


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture(scope="session")
def _published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("published")
    publish(Store(root), seed=1, activate=True)
    publish(Store(root), seed=2)
    return root


@pytest.fixture
def versions(_published: Path, tmp_path: Path) -> ModelVersions:
    """A separate store with two versions of `demo`; version 1 is live."""
    shutil.copytree(_published, tmp_path / "store")
    return Store(tmp_path / "store").model("demo")


@pytest.fixture
def folder(versions: ModelVersions) -> Path:
    """Version 1 of `versions`, to be damaged."""
    return versions.folder / "1"
