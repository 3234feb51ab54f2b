"""Operations that record an ONNX graph instead of computing.

Code that runs on `OnnxArray`s leaves the nodes of an equivalent graph in their `OnnxRecorder`. Only the operations of the
output head are here. Sizes and values are unknown while a graph is recorded, so no branch may depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from sgformer.arrays.operations import Array


def _operator(operation: str) -> Callable[[OnnxArray, Array], OnnxArray]:
    return lambda array, other: array.ops.node(operation, array, other)


class OnnxArray:
    """The name and type of a value in the graph that `ops` records. An operator adds a node and returns its output."""

    shape = (None, None, None)
    """Unknown sizes: code that has a shortcut for size 1 takes the general path."""
    __array_ufunc__ = None  # numpy scalars then use the operators of this class

    def __init__(self, ops: OnnxRecorder, name: str, dtype: np.dtype[Any]) -> None:
        self.ops, self.name, self.dtype = ops, name, dtype

    __add__, __mul__, __truediv__, __pow__ = (_operator(name) for name in ("Add", "Mul", "Div", "Pow"))

    def __rtruediv__(self, other: Array) -> OnnxArray:
        return self.ops.constant(np.asarray(other, self.dtype)) / self

    def __gt__(self, other: Array) -> OnnxArray:
        """1 or 0, in the type of this array: ONNX has no arithmetic on booleans."""
        return self.ops.cast(self.ops.node("Greater", self, other), like=self)

    def __eq__(self, other: object) -> OnnxArray:  # type: ignore[override]  # elementwise, as in numpy
        return self.ops.cast(self.ops.node("Equal", self, other), like=self)

    __hash__ = object.__hash__

    def __getitem__(self, key: tuple[slice | None, ...]) -> OnnxArray:
        """New axes only: every part of the key is `:` or None."""
        axes = [axis for axis, part in enumerate(key) if part is None]
        return self.ops.node("Unsqueeze", self, np.array(axes))

    def reshape(self, *sizes: int) -> OnnxArray:
        return self.ops.node("Reshape", self, np.array(sizes))

    def sum(self, axes: int | tuple[int, ...]) -> OnnxArray:
        return self.ops.node("ReduceSum", self, np.atleast_1d(axes), keepdims=0)

    def mean(self, axis: int) -> OnnxArray:
        return self.ops.node("ReduceMean", self, np.array([axis]), keepdims=0)

    def double(self) -> OnnxArray:
        return self.ops.cast(self, like=np.float64())


class OnnxRecorder:
    """The graph so far, and the operations of `Ops` that the output head needs."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def node(self, operation: str, *inputs: Array, dtype: Any = None, **attributes: Any) -> OnnxArray:
        """Adds a node. Its output, and numbers among its inputs, have the type `dtype`, or the type of the first input."""
        dtype, output = dtype or inputs[0].dtype, f"{operation.lower()}_{len(self.nodes)}"
        names = [self._name_of(part, dtype) for part in inputs]
        self.nodes.append(helper.make_node(operation, names, [output], **attributes))
        return OnnxArray(self, output, dtype)

    def constant(self, array: NDArray[Any]) -> OnnxArray:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(array, name)
        return OnnxArray(self, name, array.dtype)

    def used_constants(self) -> list[onnx.TensorProto]:
        """The constants that some node reads: a model has more weights than its output head."""
        used = {name for node in self.nodes for name in node.input}
        return [tensor for name, tensor in self.constants.items() if name in used]

    def product(self, rows: Array, matrix: Array) -> OnnxArray:
        return self.node("MatMul", rows, matrix)

    def affine(self, rows: Array, matrix: Array, bias: Array) -> OnnxArray:
        return self.node("Gemm", rows, matrix, bias)

    def layer_norm(self, rows: Array, weight: Array, bias: Array, epsilon: float) -> OnnxArray:
        rows = self._nan_on_overflow(rows, self.node("ReduceSumSquare", rows, np.array([-1])))
        return self.node("LayerNormalization", rows, weight, bias, epsilon=epsilon)

    def unit(self, rows: Array, filler: float) -> OnnxArray:
        filled = self.node("Where", self.node("Equal", rows, 0), filler, rows)
        squares = self.node("ReduceSumSquare", filled, np.array([-1]))
        return self._nan_on_overflow(filled, squares) / self.node("Sqrt", squares)

    def head_product(self, rows: Array, matrices: Array) -> OnnxArray:
        return self.node("Einsum", rows, matrices, equation="nhi,hio->nho")

    def concat(self, parts: list[Array], axis: int = 0) -> OnnxArray:
        return self.node("Concat", *parts, axis=axis)

    def relu(self, rows: Array) -> OnnxArray:
        return self.node("Relu", rows)

    def mix(self, rows: Array, others: Array, share: float) -> OnnxArray:
        return rows * (1 - share) + others * share  # type: ignore[no-any-return]  # arrays of any library are Any

    def cast(self, array: Array, like: Array) -> OnnxArray:
        if not isinstance(array, OnnxArray):
            return self.constant(np.asarray(array, like.dtype))
        return self.node("Cast", array, dtype=like.dtype, to=helper.np_dtype_to_tensor_dtype(like.dtype))

    def _nan_on_overflow(self, rows: Array, squares: Array) -> OnnxArray:
        """NaN for rows whose squares overflow: divided by an infinite length, they would be zeros, a finite wrong answer."""
        return self.node("Add", rows, self.node("Sub", squares, squares))

    def _name_of(self, part: Array, dtype: np.dtype[Any]) -> str:
        if isinstance(part, OnnxArray):
            return part.name
        return self.constant(part if isinstance(part, np.ndarray) else np.asarray(part, dtype)).name
