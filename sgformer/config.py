"""The configuration of a model: all settings that decide what the forward pass computes.

The switches cover the three published variants of SGFormer, which are not interchangeable:

    ============================  ============  ==================  ===================
    switch                        paper         PyG, authors large  authors medium
    ============================  ============  ==================  ===================
    normalization                 frobenius     row / frobenius     frobenius
    gnn_input                     shared        own                 features
    attention_activation          no            yes                 no
    gnn_residual                  no            yes                 no
    gnn_plain_last                no            no                  yes
    ============================  ============  ==================  ===================
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from sgformer.errors import ConfigError

Normalization = Literal["frobenius", "row"]
GnnInput = Literal["shared", "own", "features"]
Combine = Literal["add", "cat"]
FeatureTransform = Literal["none", "row", "standard"]
Task = Literal["multiclass", "multilabel", "regression"]

ADDED: dict[str, Any] = {"gnn_layer_norm": False, "gnn_layer_residual": False}
"""Settings that older snapshots do not have, with their defaults."""
_CHOICES = {
    "normalization": Normalization,
    "gnn_input": GnnInput,
    "combine": Combine,
    "feature_transform": FeatureTransform,
    "task": Task,
}


@dataclass(frozen=True)
class ModelConfig:
    """An SGFormer: an attention layer beside a GCN.

    Raises:
        ConfigError: a value is out of range, of the wrong type, or contradicts another value.
    """

    in_features: int
    out_features: int
    hidden: int = 64
    heads: int = 1
    layers: int = 2
    """GCN layers; with 0 the output of the GCN is its input."""
    alpha: float = 0.5
    """The share of the graph branch in the embedding (1 - alpha) AN + alpha GN, where AN is the output of the attention and
    GN the output of the GCN. With 1 the model is a GCN. Not used by `combine="cat"`."""
    normalization: Normalization = "frobenius"
    """How queries and keys are scaled: by the norm of the matrix (the paper), or of each row and head (PyG)."""
    gnn_input: GnnInput = "shared"
    """What the GCN reads: Z0 (the paper), its own input layer (PyG, authors' large), or the features (authors' medium)."""
    value_map: bool = True
    """Whether the values are a linear map of Z0; without it they are Z0."""
    qkv_bias: bool = True
    attention_residual: float | None = 0.5
    """The `a` in a AN + (1 - a) Z0; None means no residual."""
    input_layer_norm: bool = True
    attention_layer_norm: bool = True
    attention_activation: bool = False
    gnn_weight: bool = True
    gnn_batch_norm: bool = True
    gnn_layer_norm: bool = False
    """Layer norms in place of the batch norms; none of the three published variants has them."""
    gnn_activation: bool = True
    gnn_residual: bool = False
    """Adds the GCN's input, not the output of the previous layer, after every layer, as the published code does."""
    gnn_layer_residual: bool = False
    """Adds the output of the previous layer after every layer; none of the three published variants does. With
    `gnn_input="features"` the first layer adds nothing."""
    gnn_init: bool = False
    """`use_init` of the authors' code: every layer also reads the GCN's input."""
    gnn_plain_last: bool = False
    """The last layer has no norm, activation or residual (authors' medium-graph GCN)."""
    combine: Combine = "add"
    feature_transform: FeatureTransform = "none"
    task: Task = "multiclass"
    attention_dropout: float = 0.0
    gnn_dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("in_features", "out_features", "hidden", "heads"):
            self._need_integer(name, at_least=1)
        self._need_integer("layers", at_least=0)
        for name in ("attention_dropout", "gnn_dropout"):
            self._need_share(name)
        self._need_share("alpha", closed=True)
        if self.attention_residual is not None:
            self._need_share("attention_residual", closed=True)
        for name, kind in _CHOICES.items():
            if getattr(self, name) not in get_args(kind):
                raise ConfigError(f"{name} must be one of {', '.join(get_args(kind))}, got {getattr(self, name)!r}")
        for field in fields(self):
            if field.type == "bool" and not isinstance(getattr(self, field.name), bool):
                raise ConfigError(f"{field.name} must be true or false, got {getattr(self, field.name)!r}")
        self._check_graph_branch()

    @property
    def embedding_size(self) -> int:
        return self.hidden * (2 if self.combine == "cat" else 1)

    def to_dict(self) -> dict[str, Any]:
        """All settings. `ADDED` settings with their default are left out: old manifests keep their hashes."""
        return {name: value for name, value in asdict(self).items() if name not in ADDED or value != ADDED[name]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """The inverse of `to_dict`. Unknown names are errors, and missing names except those in `ADDED`."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ConfigError(f"unknown model setting(s): {', '.join(unknown)}")
        if missing := sorted(known - set(values) - set(ADDED)):
            raise ConfigError(f"missing model setting(s): {', '.join(missing)}")
        return cls(**values)

    def _check_graph_branch(self) -> None:
        if self.gnn_batch_norm and self.gnn_layer_norm:
            raise ConfigError("gnn_layer_norm takes the place of the batch norms: it needs gnn_batch_norm=False")
        if self.gnn_layer_residual and (self.gnn_residual or self.gnn_init):
            raise ConfigError("gnn_layer_residual takes the place of gnn_residual and gnn_init: it needs both to be false")
        if self.gnn_init and not self.gnn_weight:
            raise ConfigError("gnn_init reads the GCN's input through each layer's weight: it needs gnn_weight")
        if self.gnn_input != "features":
            return
        if self.layers == 0:
            raise ConfigError("gnn_input='features' needs at least one GCN layer to bring the features to hidden size")
        # Features and layers differ in width, so they cannot be added or concatenated.
        for name, wanted in (("gnn_weight", True), ("gnn_residual", False), ("gnn_init", False)):
            if getattr(self, name) is not wanted:
                raise ConfigError(f"gnn_input='features' needs {name}={wanted}")

    def _need_integer(self, name: str, at_least: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise ConfigError(f"{name} must be a whole number of at least {at_least}, got {value!r}")

    def _need_share(self, name: str, closed: bool = False) -> None:
        value = getattr(self, name)
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not (0 <= value < 1 or (closed and value == 1)):
            raise ConfigError(f"{name} must lie in [0, 1{']' if closed else ')'}, got {value!r}")
