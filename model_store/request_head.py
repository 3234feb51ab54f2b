"""`model.onnx`: the request-time part of a model, rows and sums in, embeddings and logits out.

It is what `InferenceModel.answer_from` and `AttentionSums.attend_each_added` compute, in operations that ONNX has: no branch
looks at values. The sums are inputs and not constants, so one file serves known rows and new ones.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from model_store.errors import ProbeError
from model_store.probes import Probes
from sgformer import Answers, AttentionSums, ModelConfig, Summary
from sgformer.inference import NORM_EPSILON, ROW_EPSILON

OPSET = 20
ROW_INPUTS = ("inputs", "graph_states", "added")
SUM_INPUTS = ("key_value", "key", "query_square", "key_square", "count")
OUTPUTS = ("embeddings", "logits")


class RequestHead(nn.Module):
    """Z0 rows (n, d), the GCN's output rows (n, d) and the sums, to embeddings and logits.

    `added` (n,) is 0 for a row that is in the sums, and 1 for a new one, answered as if it alone had been added to them.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, NDArray[Any]]) -> None:
        super().__init__()
        self.config = config
        names = ["query", "key", "output"] + ["value"] * config.value_map
        names += ["attention_norm"] * config.attention_layer_norm
        for name in names:
            for part in ("weight", "bias"):
                if f"{name}.{part}" in weights:
                    tensor = torch.tensor(np.asarray(weights[f"{name}.{part}"], dtype=np.float32))
                    self.register_buffer(f"{name}_{part}", tensor)

    def forward(
        self,
        inputs: Tensor,
        graph_states: Tensor,
        added: Tensor,
        key_value: Tensor,
        key: Tensor,
        query_square: Tensor,
        key_square: Tensor,
        count: Tensor,
    ) -> tuple[Tensor, Tensor]:
        config = self.config
        q, k = self._unit(self._mapped("query", inputs)), self._unit(self._mapped("key", inputs))  # (n, H, d)
        v = self._mapped("value", inputs) if config.value_map else inputs[:, None, :]  # (n, H or 1, d)
        own = added.double()[:, None]  # (n, 1)
        scale = 1 / (count + own)  # (n, 1), in float64 as the sums are
        if config.normalization == "frobenius":
            both = (query_square + own * _square(q)) * (key_square + own * _square(k))
            scale = torch.where(both > 0, scale / both.clamp(min=1e-300).sqrt(), torch.zeros_like(scale))
        self_weight = own[:, :, None] * (q * k).double().sum(2, keepdim=True)  # (n, H, 1)
        # A row's share of the sums is of order 1/N: products in float64, as the sums are, then one rounding.
        mixed = torch.einsum("nhd,hde->nhe", q.double(), key_value) + self_weight * v.double()
        total = torch.einsum("nhd,hd->nh", q.double(), key)[:, :, None] + self_weight
        attended = (v.double() + mixed * scale[:, :, None]) / (1 + total * scale[:, :, None])
        return self._answer(inputs, attended.mean(1).float(), graph_states)

    def _answer(self, inputs: Tensor, attended: Tensor, graph_states: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        if config.attention_residual is not None:
            attended = config.attention_residual * attended + (1 - config.attention_residual) * inputs
        if config.attention_layer_norm:
            norm = self.get_buffer("attention_norm_weight"), self.get_buffer("attention_norm_bias")
            attended = F.layer_norm(attended, (config.hidden,), *norm, eps=NORM_EPSILON)
        if config.attention_activation:
            attended = F.relu(attended)
        if config.combine == "cat":
            embeddings = torch.cat([attended, graph_states], dim=1)
        else:
            embeddings = (1 - config.alpha) * attended + config.alpha * graph_states
        return embeddings, F.linear(embeddings, self.get_buffer("output_weight"), self.get_buffer("output_bias"))

    def _mapped(self, name: str, rows: Tensor) -> Tensor:
        bias = self.get_buffer(f"{name}_bias") if self.config.qkv_bias else None
        mapped = F.linear(rows, self.get_buffer(f"{name}_weight"), bias)
        return mapped.reshape(-1, self.config.heads, self.config.hidden)

    def _unit(self, rows: Tensor) -> Tensor:
        if self.config.normalization != "row":
            return rows
        filled = torch.where(rows == 0, ROW_EPSILON, rows)
        return filled / filled.square().sum(-1, keepdim=True).sqrt()


def export_request_head(config: ModelConfig, weights: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Writes `model.onnx` for any number of rows. Needs the `train` extra (onnxscript)."""
    hidden, heads = config.hidden, config.heads
    sums = (heads, hidden)
    example = (
        *(torch.zeros(shape) for shape in ((3, hidden), (3, hidden), (3,))),
        *(torch.ones(shape, dtype=torch.float64) for shape in ((*sums, hidden), sums, (), (), ())),
    )
    dynamic = {name: {0: torch.export.Dim.DYNAMIC} for name in ROW_INPUTS} | dict.fromkeys(SUM_INPUTS)
    with _quiet():
        program = torch.onnx.export(
            RequestHead(config, weights).eval(),
            example,
            input_names=[*ROW_INPUTS, *SUM_INPUTS],
            output_names=list(OUTPUTS),
            dynamic_shapes=dynamic,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch exported nothing")
    program.save(str(path), external_data=False)


def describe(path: Path, summary: Summary, probes: Probes) -> dict[str, Any]:
    """What the manifest says of `model.onnx`, once it has answered the known-node probe on ONNX Runtime.

    Raises:
        ProbeError: ONNX Runtime answers something else.
    """
    checked = ["CPUExecutionProvider"] if find_spec("onnxruntime") else []
    if checked:
        _check_on_runtime(path, checked, summary, probes)
    return {
        "opset": OPSET,
        "inputs": [*ROW_INPUTS, *SUM_INPUTS],
        "outputs": list(OUTPUTS),
        "checked_on": checked,
        "note": "Rows are float32, sums float64: providers without float64 products leave those to the CPU.",
    }


def _check_on_runtime(path: Path, providers: list[str], summary: Summary, probes: Probes) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=providers)
    known = probes.probes[0]
    rows = {"inputs": summary.states.inputs[known.question], "graph_states": summary.states.layers[-1][known.question]}
    rows["added"] = np.zeros(len(known.question), dtype=np.float32)
    embeddings, logits = session.run(list(OUTPUTS), rows | sum_feeds(summary.sums))
    error = probes.error(known, Answers(embeddings, logits))
    if not error <= 1e-5:
        raise ProbeError(f"{path.name} answers differently on ONNX Runtime, by {error:.1e}")


def sum_feeds(sums: AttentionSums) -> dict[str, NDArray[np.float64]]:
    """The sums by the names of their inputs in `model.onnx`."""
    return {name: np.asarray(getattr(sums, name), dtype=np.float64) for name in SUM_INPUTS}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps back two remarks of torch about itself; whatever else it says about our model is heard."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")  # "torchvision is not installed"
    level = registration.level
    registration.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)` is deprecated")
            yield
    finally:
        registration.setLevel(level)


def _square(rows: Tensor) -> Tensor:
    return rows.double().square().sum((1, 2))[:, None]
