"""All models of one store: a folder with a subfolder per model (`model_store/versions/`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_store.errors import DataError, UnknownModel
from model_store.format.layout import checked_model, is_model
from model_store.suggestions import did_you_mean
from model_store.versions.durable import make_folder
from model_store.versions.locks import WRITER_SECONDS
from model_store.versions.model_versions import ModelVersions, is_real_folder

if TYPE_CHECKING:
    from model_store.publish.writer import Contents


class Store:
    """All models below one folder, which may not exist yet."""

    def __init__(self, root: Path | str, lock_seconds: float = WRITER_SECONDS, redis: dict[str, Any] | None = None) -> None:
        """`lock_seconds` and `redis`: see `ModelVersions`."""
        self.root, self.lock_seconds, self.redis = Path(root), lock_seconds, redis

    def models(self) -> list[str]:
        """Returns the names of the models that have a version."""
        return [versions.name for versions in self.folders() if versions.versions()]

    def folders(self) -> list[ModelVersions]:
        """Returns all model folders, including empty ones, which a failed first publication leaves."""
        if not self.root.is_dir():
            return []
        paths = sorted(path for path in self.root.iterdir() if is_model(path.name) and is_real_folder(path))
        return [self._versions(path) for path in paths]

    def model(self, name: str) -> ModelVersions:
        """Returns the versions of one model.

        Raises:
            UnknownModel: the model does not exist or has no versions.
        """
        folder = self.root / checked_model(name)
        if not is_real_folder(folder) or not ModelVersions(folder).versions():
            names = self.models()
            existing = f"existing models: {', '.join(names) or 'none'}"
            raise UnknownModel(f"there is no model {name} in this store ({existing}){did_you_mean(name, names)}")
        return self._versions(folder)

    def only_model(self) -> str:
        """Returns the name of the only model, for commands without --model.

        Raises:
            DataError: the store has several models, or none.
        """
        names = self.models()
        if not names:
            raise DataError("the store has no model yet: publish one with `sgf-train` or `sgf-models import`")
        if len(names) > 1:
            raise DataError(f"say which model with --model: the store has {', '.join(names)}")
        return names[0]

    def publish(self, name: str, contents: Contents, *, activate: bool = False, **options: Any) -> int:
        """Publishes a new version of a model and returns its number. `options` are those of `write_snapshot`.

        The version appears complete and flushed to the disk, or not at all.
        """
        folder = self.root / checked_model(name)
        make_folder(folder)
        if folder.is_symlink():
            raise UnknownModel(f"{name} is a symbolic link, which could point outside the store")
        versions = self._versions(folder)
        version = versions.publish(contents, **options)
        if activate:
            versions.activate(version)
        return version

    def _versions(self, folder: Path) -> ModelVersions:
        return ModelVersions(folder, self.lock_seconds, self.redis)
