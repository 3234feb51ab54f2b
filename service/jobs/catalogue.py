"""The recipes, data sets and paths below the data root that a retraining may use.

Recipes and data sets are read from the files of the installed training package, which is not imported: it needs torch.
"""

from __future__ import annotations

import tomllib
from importlib.util import find_spec
from pathlib import Path

from service.http.errors import Refusal


class Catalogue:
    def __init__(self, data_root: Path) -> None:
        self._root = data_root
        spec = find_spec("training")
        package = Path(next(iter(spec.submodule_search_locations or [""]))) if spec else Path()
        self.recipes = sorted(path.stem for path in (package / "recipes").glob("*.toml"))
        listed = package / "data" / "datasets" / "datasets.toml"
        self.datasets = list(tomllib.loads(listed.read_text())) if listed.is_file() else []

    def check_recipe(self, name: str) -> None:
        if name not in self.recipes:
            expected = ", ".join(self.recipes)
            raise Refusal("invalid", f"there is no recipe {name!r}, expected one of {expected}", field="recipe")

    def check_dataset(self, name: str) -> None:
        if name not in self.datasets:
            expected = ", ".join(self.datasets)
            raise Refusal("invalid", f"there is no data set {name!r}, expected one of {expected}", field="dataset")

    def path_of(self, data: str) -> Path:
        """The file or folder below the data root. Raises Refusal for a path outside of it."""
        wanted = Path(data)
        if wanted.is_absolute() or ".." in wanted.parts or "\0" in data or not wanted.parts:
            raise Refusal("invalid", "data must be a relative path below the data root, without '..'", field="data")
        root = self._root.resolve()
        try:
            resolved = (root / wanted).resolve(strict=True)
        except (OSError, RuntimeError):  # RuntimeError: a loop of symbolic links
            raise Refusal("invalid", f"there is no {data!r} below the data root", field="data") from None
        try:
            for path in (resolved, *(resolved.iterdir() if resolved.is_dir() else ())):
                if not path.resolve().is_relative_to(root):
                    raise Refusal("invalid", f"{data!r} leads out of the data root", field="data")
                if path.exists() and not (path.is_file() or path.is_dir()):  # reading a pipe would block
                    raise Refusal("invalid", f"{data!r} is, or holds, what is neither a file nor a folder", field="data")
        except (OSError, RuntimeError):
            raise Refusal("invalid", f"{data!r}, or what it holds, cannot be read by the service", field="data") from None
        return resolved
