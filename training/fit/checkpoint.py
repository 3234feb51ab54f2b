"""The state of a run in one file, replaced atomically: a killed run continues from it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from model_store.versions.durable import make_folder, write_durably
from sgformer import SgformerError


class CheckpointError(SgformerError):
    """The checkpoint cannot be read, or belongs to another run."""


@dataclass(frozen=True)
class Checkpoint:
    tensors: dict[str, torch.Tensor]
    """Of the model, the best epoch, the optimiser and the random number generator."""
    about: dict[str, Any]
    """JSON: the identity of the run and its history so far."""

    def write(self, path: Path) -> None:
        make_folder(path.parent)
        write_durably(path, save(self.tensors, metadata={"about": json.dumps(self.about)}))

    @classmethod
    def read(cls, path: Path, identity: dict[str, Any]) -> Checkpoint:
        """Raises CheckpointError if the file is damaged, or belongs to a run with other settings or other data."""
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["about"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            raise CheckpointError(f"{path} is not a checkpoint: {error}") from error
        if different := sorted(name for name, value in identity.items() if about["identity"].get(name) != value):
            raise CheckpointError(f"{path} belongs to a run with another {', '.join(different)}; start without --resume")
        return cls(tensors, about)
