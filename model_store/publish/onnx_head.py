"""`model.onnx`: the output head of a model as an ONNX graph, from rows and sums to embeddings and logits.

The graph is recorded from the code that serves on numpy: `InferenceModel` and `AttentionSums` run on arrays that record each
operation (`sgformer/arrays/onnx_operations.py`). The sums are inputs of the graph: one file serves known and new rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import ProbeError
from model_store.format.probes import Probe, Probes
from sgformer import Answers, AttentionSums, InferenceModel, ModelConfig
from sgformer.sums import SUM_NAMES

if TYPE_CHECKING:
    import onnx

    from sgformer import Summary  # loads torch, which a worker of the service does not need

OPSET = 20
IR_VERSION = 9
"""The ONNX IR version of the release that introduced this opset: older runtimes can read the file."""
ROW_INPUTS = ("inputs", "graph_states", "added")
SUM_INPUTS = (*SUM_NAMES, "count")
OUTPUTS = ("embeddings", "logits")
TOLERANCE = 1e-5


def export_request_head(config: ModelConfig, weights: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Writes `model.onnx` for any number of rows. Needs the `train` extra (onnx)."""
    path.write_bytes(request_head(config, weights).SerializeToString())


def write(
    path: Path, config: ModelConfig, weights: Mapping[str, NDArray[Any]], summary: Summary, probes: Probes
) -> dict[str, Any]:
    """Writes `model.onnx`, checks it, and returns its entry of the manifest. Raises as `describe` does."""
    export_request_head(config, weights, path)
    return describe(path, config, weights, summary, probes)


def request_head(config: ModelConfig, weights: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """Returns an ONNX graph that computes embeddings and logits from Z0 rows (n, d), output rows of the GCN (n, d) and sums.

    `added` (n,) is 0 for a row that the sums include, and 1 for a new row, answered as if it alone had been added to them.
    """
    from onnx import TensorProto, helper

    from sgformer.arrays.onnx_operations import OnnxArray, OnnxRecorder

    recorder = OnnxRecorder()
    model = InferenceModel(config, weights, place=recorder.constant)
    inputs, graph_states, added = (OnnxArray(recorder, name, np.dtype(np.float32)) for name in ROW_INPUTS)
    parts: list[Any] = [OnnxArray(recorder, name, np.dtype(np.float64)) for name in SUM_INPUTS]
    sums = AttentionSums(config.normalization, *parts)
    query, key, value = model.project(inputs, "query", "key", "value")
    answers = model.answer(inputs, sums.attend_each_added(query, key, value, added[:, None, None]), graph_states)
    outputs = [helper.make_node("Identity", [getattr(answers, name).name], [name]) for name in OUTPUTS]
    shapes: dict[str, list[Any]] = {
        "inputs": ["n", config.hidden],
        "graph_states": ["n", config.hidden],
        "added": ["n"],
        "key_value": [config.heads, config.hidden, config.hidden],
        "key": [config.heads, config.hidden],
        "embeddings": ["n", config.embedding_size],
        "logits": ["n", config.out_features],
    }

    def declare(name: str) -> onnx.ValueInfoProto:
        kind = TensorProto.DOUBLE if name in SUM_INPUTS else TensorProto.FLOAT
        return helper.make_tensor_value_info(name, kind, shapes.get(name, []))

    graph = helper.make_graph(
        recorder.nodes + outputs,
        "request_head",
        [declare(name) for name in (*ROW_INPUTS, *SUM_INPUTS)],
        [declare(name) for name in OUTPUTS],
        recorder.used_constants(),
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets, producer_name="sgformer-serving")


def describe(
    path: Path, config: ModelConfig, weights: Mapping[str, NDArray[Any]], summary: Summary, probes: Probes
) -> dict[str, Any]:
    """Returns the entry of the manifest for `model.onnx`.

    If ONNX Runtime is installed, first checks its answers: for known nodes against the probe, and for the same rows as new
    nodes against the answers of numpy.

    Raises:
        ProbeError: the answers of ONNX Runtime differ.
    """
    checked = ["CPUExecutionProvider"] if find_spec("onnxruntime") else []
    if checked:
        _check_on_runtime(path, checked, InferenceModel(config, weights), summary, probes)
    return {
        "opset": OPSET,
        "inputs": [*ROW_INPUTS, *SUM_INPUTS],
        "outputs": list(OUTPUTS),
        "checked_on": checked,
        "note": "Rows are float32, sums float64: providers without float64 leave the scaling of the sums to the CPU.",
    }


def _check_on_runtime(path: Path, providers: list[str], model: InferenceModel, summary: Summary, probes: Probes) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=providers)
    known = probes.probes[0]
    inputs, graph_states = (array[known.question] for array in (summary.states.inputs, summary.states.layers[-1]))
    attended = summary.sums.attend_each_added(*model.project(inputs, "query", "key", "value"))
    as_new = Probe(known.name, known.question, model.answer(inputs, attended, graph_states))
    for added, expected in ((0, known), (1, as_new)):
        rows = {"inputs": inputs, "graph_states": graph_states, "added": np.full(len(inputs), added, dtype=np.float32)}
        answers = Answers(*session.run(list(OUTPUTS), rows | sum_feeds(summary.sums)))
        error = probes.error(expected, answers)
        if not error <= TOLERANCE:
            raise ProbeError(
                f"{path.name} answers differently on ONNX Runtime, by {error:.1e} (at most {TOLERANCE:.0e} is allowed): "
                "publish again, with another version of onnx or onnxruntime"
            )


def sum_feeds(sums: AttentionSums) -> dict[str, NDArray[np.float64]]:
    """The sums as the inputs of `model.onnx`, by name."""
    return {name: np.asarray(getattr(sums, name), dtype=np.float64) for name in SUM_INPUTS}
