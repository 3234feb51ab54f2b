"""A run that can go on after a kill: model, optimiser, random numbers and history in one file, replaced whole."""

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
    """A checkpoint that cannot be read, or that belongs to another run."""


@dataclass(frozen=True)
class Checkpoint:
    tensors: dict[str, torch.Tensor]
    about: dict[str, Any]
    """JSON: the identity of the run and its history so far."""

    def write(self, path: Path) -> None:
        make_folder(path.parent)
        write_durably(path, save(self.tensors, metadata={"about": json.dumps(self.about)}))

    @classmethod
    def read(cls, path: Path, identity: dict[str, Any]) -> Checkpoint:
        """Raises CheckpointError where the file is of a run with other settings or other data."""
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["about"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            raise CheckpointError(f"{path} is not a checkpoint: {error}") from error
        if different := sorted(name for name, value in identity.items() if about["identity"].get(name) != value):
            raise CheckpointError(f"{path} is of a run with another {', '.join(different)}; start without --resume")
        return cls(tensors, about)
