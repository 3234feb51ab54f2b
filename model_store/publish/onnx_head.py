"""`model.onnx`: the request-time part of a model, rows and sums in, embeddings and logits out.

It is what `InferenceModel.answer_from` and `AttentionSums.attend_each_added` compute, in operations that ONNX has: no branch
looks at values. The sums are inputs and not constants, so one file serves known rows and new ones.

Written down rather than traced: tracing some forty steps took torch four seconds of every publishing.
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
from sgformer.request_time.inference import NORM_EPSILON, ROW_EPSILON

if TYPE_CHECKING:
    import onnx

    from sgformer import Summary  # it loads torch, and a worker that serves does without

OPSET = 20
IR_VERSION = 9
"""The one that came with this opset: older runtimes read it, too."""
ROW_INPUTS = ("inputs", "graph_states", "added")
SUM_INPUTS = ("key_value", "key", "query_square", "key_square", "count")
OUTPUTS = ("embeddings", "logits")


def export_request_head(config: ModelConfig, weights: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Writes `model.onnx` for any number of rows. Needs the `train` extra (onnx)."""
    path.write_bytes(request_head(config, weights).SerializeToString())


def request_head(config: ModelConfig, weights: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """Z0 rows (n, d), the GCN's output rows (n, d) and the sums, to embeddings and logits.

    `added` (n,) is 0 for a row that is in the sums, and 1 for a new one, answered as if it alone had been added to them.
    """
    import onnx.parser
    from onnx.numpy_helper import from_array

    d, heads, width = config.hidden, config.heads, config.hidden * (2 if config.combine == "cat" else 1)
    model = onnx.parser.parse_model(f"""
        <ir_version: {IR_VERSION}, opset_import: ["": {OPSET}], producer_name: "sgformer-serving">
        request_head (float[n, {d}] inputs, float[n, {d}] graph_states, float[n] added, double[{heads}, {d}, {d}] key_value,
                      double[{heads}, {d}] key, double query_square, double key_square, double count)
            => (float[n, {width}] embeddings, float[n, {config.out_features}] logits)
            <double one = {{1}}, int64[3] by_row = {{-1, 1, 1}}, int64[3] by_head = {{-1, {heads}, {d}}},
             int64[1] second = {{1}}, int64[1] third = {{2}}>
        {{ {_projected(config)} {_scale(config)} {ATTENDED} {_answered(config)} }}
    """)
    used = {name for node in model.graph.node for name in node.input}
    named = {name.replace(".", "_"): array for name, array in weights.items()}
    tensors = [from_array(named[name].astype(np.float32), name) for name in sorted(used & set(named))]
    model.graph.initializer.extend(tensors)
    return model


def _projected(config: ModelConfig) -> str:
    """Rows by head, (n, H, d): q, k, and v, which is (n, 1, d) where values are not mapped. In float64 as the sums are."""
    steps = []
    for letter, name in (("q", "query"), ("k", "key"), ("v", "value")):
        bias = f", {name}_bias" if config.qkv_bias else ""
        mapped = f"""
            {letter}_flat = Gemm <transB = 1> (inputs, {name}_weight{bias})
            {letter}_rows = Reshape ({letter}_flat, by_head)
        """
        steps.append(mapped if name != "value" or config.value_map else "v_rows = Unsqueeze (inputs, second)")
        if config.normalization == "row" and name != "value":
            steps.append(f"""
                {letter}_zero = Constant <value_float = 0.0> ()
                {letter}_tiny = Constant <value_float = {ROW_EPSILON:.9f}> ()
                {letter}_empty = Equal ({letter}_rows, {letter}_zero)
                {letter}_filled = Where ({letter}_empty, {letter}_tiny, {letter}_rows)
                {letter}_squares = ReduceSumSquare ({letter}_filled, third)
                {_none_of_overflow(f"{letter}_finite", f"{letter}_filled", f"{letter}_squares")}
                {letter}_length = Sqrt ({letter}_squares)
                {letter}_unit = Div ({letter}_finite, {letter}_length)
                {letter} = Cast <to = 11> ({letter}_unit)
            """)
        else:
            steps.append(f"{letter} = Cast <to = 11> ({letter}_rows)")
    return " ".join(steps)


def _scale(config: ModelConfig) -> str:
    """`scale` (n, 1, 1): one over the nodes in the sums and the norms of their rows; `own` is 1 for a row that joins."""
    nodes = """
        added_double = Cast <to = 11> (added)
        own = Reshape (added_double, by_row)
        nodes = Add (count, own)
    """
    if config.normalization != "frobenius":
        return nodes + "scale = Div (one, nodes)"
    return f"""
        {nodes}
        both = Constant <value_ints = [1, 2]> ()
        zero = Constant <value = double {{0}}> ()
        q_square = ReduceSumSquare (q, both)
        k_square = ReduceSumSquare (k, both)
        q_own = Mul (own, q_square)
        k_own = Mul (own, k_square)
        q_norm = Add (query_square, q_own)
        k_norm = Add (key_square, k_own)
        norms = Mul (q_norm, k_norm)
        is_some = Greater (norms, zero)
        norms_or_one = Where (is_some, norms, one)
        root = Sqrt (norms_or_one)
        divisor = Mul (nodes, root)
        scale_of_some = Div (one, divisor)
        scale = Where (is_some, scale_of_some, zero)
    """


ATTENDED = """
    itself = Mul (q, k)
    itself_sum = ReduceSum (itself, third)
    self_weight = Mul (own, itself_sum)
    from_sums = Einsum <equation = "nhd,hde->nhe"> (q, key_value)
    from_itself = Mul (self_weight, v)
    mixed = Add (from_sums, from_itself)
    total_of_sums = Einsum <equation = "nhd,hd->nh"> (q, key)
    total_by_head = Unsqueeze (total_of_sums, third)
    total = Add (total_by_head, self_weight)
    mixed_scaled = Mul (mixed, scale)
    total_scaled = Mul (total, scale)
    numerator = Add (v, mixed_scaled)
    denominator = Add (one, total_scaled)
    by_heads = Div (numerator, denominator)
    mean = ReduceMean <keepdims = 0> (by_heads, second)
    attended = Cast <to = 1> (mean)
"""
"""A row's share of the sums is of order 1/N: products in float64, as the sums are, then one rounding."""


def _answered(config: ModelConfig) -> str:
    steps, rows = [], "attended"
    if (residual := config.attention_residual) is not None:
        steps.append(_mixed("attended_residual", rows, "inputs", 1 - residual))
        rows = "attended_residual"
    if config.attention_layer_norm:
        steps.append(f"""
            attended_squares = ReduceSumSquare ({rows}, second)
            {_none_of_overflow("attended_finite", rows, "attended_squares")}
            attended_normed = LayerNormalization <epsilon = {NORM_EPSILON:.9f}>
                (attended_finite, attention_norm_weight, attention_norm_bias)
        """)
        rows = "attended_normed"
    if config.attention_activation:
        steps.append(f"attended_active = Relu ({rows})")
        rows = "attended_active"
    if config.combine == "cat":
        steps.append(f"embeddings = Concat <axis = 1> ({rows}, graph_states)")
    else:
        steps.append(_mixed("embeddings", rows, "graph_states", config.alpha))
    return " ".join(steps) + " logits = Gemm <transB = 1> (embeddings, output_weight, output_bias)"


def _none_of_overflow(name: str, rows: str, squares: str) -> str:
    """The rows, or NaN where their squares overflow: over an infinite length they would be zeros, and pass for an answer."""
    return f"""
        {name}_or_nan = Sub ({squares}, {squares})
        {name} = Add ({rows}, {name}_or_nan)
    """


def _mixed(name: str, first: str, second: str, share: float) -> str:
    """`share` of the second, the rest of the first."""
    return f"""
        {name}_rest = Constant <value_float = {1 - share:.17f}> ()
        {name}_share = Constant <value_float = {share:.17f}> ()
        {name}_first = Mul ({first}, {name}_rest)
        {name}_second = Mul ({second}, {name}_share)
        {name} = Add ({name}_first, {name}_second)
    """


def describe(
    path: Path, config: ModelConfig, weights: Mapping[str, NDArray[Any]], summary: Summary, probes: Probes
) -> dict[str, Any]:
    """What the manifest says of `model.onnx`, once ONNX Runtime has answered with it: the known-node probe, and the same
    rows as if they were new.

    Raises:
        ProbeError: ONNX Runtime answers something else.
    """
    checked = ["CPUExecutionProvider"] if find_spec("onnxruntime") else []
    if checked:
        _check_on_runtime(path, checked, InferenceModel(config, weights), summary, probes)
    return {
        "opset": OPSET,
        "inputs": [*ROW_INPUTS, *SUM_INPUTS],
        "outputs": list(OUTPUTS),
        "checked_on": checked,
        "note": "Rows are float32, sums float64: providers without float64 products leave those to the CPU.",
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
        found = Answers(*session.run(list(OUTPUTS), rows | sum_feeds(summary.sums)))
        error = probes.error(expected, found)
        if not error <= 1e-5:
            raise ProbeError(f"{path.name} answers differently on ONNX Runtime, by {error:.1e}")


def sum_feeds(sums: AttentionSums) -> dict[str, NDArray[np.float64]]:
    """The sums by the names of their inputs in `model.onnx`."""
    return {name: np.asarray(getattr(sums, name), dtype=np.float64) for name in SUM_INPUTS}
