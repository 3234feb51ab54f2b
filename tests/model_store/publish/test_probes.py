"""The expected answers of the probes are those of full-graph forwards over the graphs with the new nodes added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.publish import probe_writer
from model_store.publish.probe_writer import full_forward_probes
from sgformer import NewNodes, summarize
from sgformer.full_graph.reference import reference_answers
from tests.model_store.samples import small_contents


@pytest.mark.parametrize("block_rows", [3, 65_536])
@pytest.mark.parametrize(
    "settings",
    [
        *({"layers": layers} for layers in (0, 1, 2, 3, 5)),
        {"layers": 3, "gnn_input": "own", "gnn_residual": True},
        {"layers": 4, "gnn_layer_residual": True},
        {"layers": 2, "gnn_input": "features", "normalization": "row"},
    ],
)
def test_probe_answers_equal_a_full_forward_with_the_new_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], block_rows: int
) -> None:
    monkeypatch.setattr(probe_writer, "BLOCK_ROWS", block_rows)
    contents = small_contents(3, config=settings)
    config, weights, graph = contents.config, contents.weights, contents.graph
    probes = full_forward_probes(config, weights, graph, summarize(config, weights, graph), tmp_path)
    for probe in probes.probes[1:]:
        new = probe.question
        assert isinstance(new, NewNodes)
        owners = graph.num_nodes + np.repeat(np.arange(len(new)), new.counts)
        edges = np.concatenate([[owners, new.neighbors], new.edges + graph.num_nodes], axis=1)
        grown = graph.with_nodes(np.asarray(new.features), edges)
        rows = np.arange(graph.num_nodes, grown.num_nodes)
        expected = reference_answers(config, weights, summarize(config, weights, grown), rows)
        np.testing.assert_allclose(probe.answers.embeddings, expected.embeddings, atol=1e-5)
        np.testing.assert_allclose(probe.answers.logits, expected.logits, atol=1e-5)
