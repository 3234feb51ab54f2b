"""`states/logits.npy`: what the full-graph forward says of every node, so that nobody has to compute it again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import StoreError
from model_store.format import npy
from model_store.format.layout import ArraySpec
from sgformer import InferenceModel, ModelConfig, Summary

CHUNK_ROWS = 8192


def write_logits(
    path: Path, spec: ArraySpec, config: ModelConfig, weights: Mapping[str, NDArray[Any]], summary: Summary
) -> None:
    """From states that were not rounded: these logits are float32, whatever type the states are stored in."""
    model, target = InferenceModel(config, weights), npy.create(path, spec)
    for start in range(0, len(target), CHUNK_ROWS):
        rows = np.arange(start, min(start + CHUNK_ROWS, len(target)))
        with np.errstate(all="ignore"):  # what overflows is named below, with the node
            logits = model.known(summary.states, summary.sums, rows).logits
        bad = ~np.isfinite(logits).all(axis=1)
        if bad.any():
            raise StoreError(f"the logits of node {rows[bad.argmax()]} are NaN or infinite: the model has no answer there")
        target[start : start + len(rows)] = logits
