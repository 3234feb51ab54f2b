"""Where a run comes from: the version that was live when it began, and the weights that it takes from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from model_store import Store
from sgformer import ConfigError, ModelConfig
from training.fit import warm_start


@dataclass(frozen=True)
class Lineage:
    parent: int | None
    """The live version's number; None where none was live."""
    start: dict[str, NDArray[Any]] | None = None
    """What a warm start begins with."""
    fresh: tuple[str, ...] = ()
    """Tensors of a warm start that did not fit, and begin at random."""

    @classmethod
    def of(cls, store: Store, name: str, config: ModelConfig, warm: bool) -> Lineage:
        versions = store.model(name) if name in store.models() else None
        parent = None if versions is None else versions.live()
        if not warm:
            return cls(parent)
        if versions is None or parent is None:
            raise ConfigError(f"--warm-start: no version of {name} is live to start from")
        with versions.open(parent) as snapshot:
            start = warm_start.fitting(config, snapshot.weights)
        return cls(parent, start, tuple(warm_start.fresh(config, start)))

    def to_dict(self) -> dict[str, Any]:
        warm = None if self.start is None else {"tensors": len(self.start), "fresh": list(self.fresh)}
        return {"parent": self.parent, "warm_start": warm}
