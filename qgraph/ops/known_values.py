"""Constant values of a model: stored ones, and those that nodes compute from constants alone.

Operands determine the results of some nodes to the last bit, with the sign of zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import QGraphError
from qgraph.graph.constants import constant, constant_tensor
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import graphs_of, input_of, is_control, nodes_of
from qgraph.numerics import Array
from qgraph.numerics.correct_rounding import FUNCTIONS, is_rounded_once
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.dispatch import SUMMING, Imports, NodeStep, is_any_order_exact, kernel_for
from qgraph.ops.operator import is_defined

_EXACT = frozenset(NUMPY) - {"Pow"} | {
    *("ArgMax", "ArgMin", "CastLike", "Clip", "Compress", "Concat", "ConstantOfShape"),
    *("DepthToSpace", "DynamicQuantizeLinear", "Expand", "EyeLike", "Flatten", "GatherElements"),
    *("GatherND", "IsInf"),
    *("MaxPool", "Mod", "NonZero", "OneHot", "Pad", "ReduceMax", "ReduceMin", "Reshape"),
    *("ScatterElements", "ScatterND", "Shape", "Size", "Slice", "SpaceToDepth", "Split"),
    *("Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Xor"),
}
"""Operators whose results IEEE 754 and ONNX determine to the last bit."""

_RANDOM = {
    "": frozenset(
        {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"}
        | {"RandomUniformLike"}
    ),
    "com.microsoft": frozenset({"Sampling"}),
}

_DROPOUT_FOR_INFERENCE = 7
"""Before this version, Dropout is in training mode unless an attribute turns it off."""

_TRAINING_INPUT = {
    OpKey("", "Dropout"): 2,
    OpKey("com.microsoft", "BiasDropout"): 4,
    OpKey("com.microsoft", "BitmaskBiasDropout"): 4,
    OpKey("com.microsoft", "BitmaskDropout"): 2,
}
"""Index of the input for training mode, by operator."""


def is_exact(node: ir.Node) -> bool:
    """Return whether IEEE 754 and ONNX determine the results of a node to the last bit."""
    return (node.domain == "" and node.op_type in _EXACT) or is_defined(node)


def is_random(node: ir.Node, imports: Imports) -> bool:
    """Return whether a node may compute different results from equal operands."""
    index = _TRAINING_INPUT.get(OpKey.of(node))
    if index is None:
        return node.op_type in _RANDOM.get(node.domain, ())
    if node.domain == "" and imports.get("", _DROPOUT_FOR_INFERENCE) < _DROPOUT_FOR_INFERENCE:
        return not node.attributes.get_int("is_test", 0)
    mode = input_of(node, index)
    array = constant(mode)
    return mode is not None and (array is None or bool(array.any()))


CHOOSING = frozenset({"Clip", "Max", "Min", "Relu"})
"""Operators that choose between -0 and +0."""


def meets_both_zeros(node: ir.Node, known: Mapping[ir.Value, Any]) -> bool:
    """Return whether a node, such as Max, selects -0 or +0; ONNX does not define which."""
    if node.domain != "" or node.op_type not in CHOOSING:
        return False
    arrays = [np.asarray(known[value]) for value in node.inputs if value is not None]
    if any(array.dtype.kind in "iub" for array in arrays):
        return False
    if node.op_type == "Relu":
        arrays.append(np.zeros((), arrays[0].dtype))
    zeros = [array == 0 for array in arrays]
    signs = [np.signbit(array.astype(np.float32)) for array in arrays]
    minus = [np.asarray(zero & sign).any() for zero, sign in zip(zeros, signs, strict=True)]
    plus = [np.asarray(zero & ~sign).any() for zero, sign in zip(zeros, signs, strict=True)]
    return any(
        (minus[one] and plus[other]) or (plus[one] and minus[other])
        for one in range(len(arrays))
        for other in range(one)
    )


_ROUNDED_ONCE = frozenset(FUNCTIONS) | {"Pow"}
"""Operators whose kernels give the exact results, rounded once, for types narrower than float64."""

_KEPT_BYTES = 1 << 16
"""Maximum size of results that are kept in memory; larger ones are computed again."""


class KnownValues:
    """Computes constants by the kernels of the operators.

    A floating-point constant whose bits depend on the processor, such as most sums, is unknown.
    Results of functions such as Exp are known if ``has_functions``.

    Attributes:
        imports: domains of the model and their versions.
        inexact: operators such as Exp that computed requested constants, and whose last bits ONNX
            does not define. The constants are the exact results, rounded once.
    """

    def __init__(self, imports: Imports, *, has_functions: bool = True) -> None:
        self._has_functions = has_functions
        self.inexact: set[str] = set()
        self.imports = imports
        self._is_known: dict[ir.Value, bool] = {}
        self._kept: dict[ir.Value, Array] = {}
        self._open: dict[ir.Value, frozenset[str]] = {}

    @classmethod
    def of(cls, body: ir.Graph | ir.Function) -> KnownValues:
        """Return the constant values of a graph or function, and of the graphs in it."""
        known = cls(body.opset_imports)
        known.enter(nodes_of(body))
        return known

    def enter(self, nodes: Iterable[ir.Node]) -> None:
        """Find the constant outputs of nodes in topological order.

        Results that may depend on the processor are computed here, to find out whether they do.
        """
        for node in nodes:
            used = [value for value in node.inputs if value is not None]
            computed = bool(used) and all(map(self.has, used)) and not self._is_opaque(node)
            for value in node.outputs:
                stored = constant_tensor(value) is not None
                self._is_known[value] = stored or computed
                if computed and not stored and not is_exact(node):
                    self._is_known[value] = self._array(value) is not None

    def has(self, value: ir.Value) -> bool:
        """Return whether ``value`` is constant."""
        is_known = self._is_known.get(value)
        return constant_tensor(value) is not None if is_known is None else is_known

    def array(self, value: ir.Value) -> Array | None:
        """Return the array of a constant; None for other values, or without a kernel.

        Raises:
            ModelError: the data of a constant cannot be read.
        """
        array = self._array(value)
        self.inexact |= self._open.get(value, frozenset())
        return array

    def _array(self, value: ir.Value) -> Array | None:
        if not self.has(value):
            return None
        if value in self._kept:
            return self._kept[value]
        array = constant(value)
        return self._computed(value) if array is None else array

    def _computed(self, value: ir.Value) -> Array | None:
        node = value.producer()
        if node is None:
            return None
        operands = [None if operand is None else self._array(operand) for operand in node.inputs]
        arrays = dict(zip(node.inputs, operands, strict=True))
        if any(operand is not None and array is None for operand, array in arrays.items()):
            return None
        array = self._run(node, value, operands)
        used = (self._open.get(operand, frozenset()) for operand in arrays if operand is not None)
        self._open[value] = self._open.get(value, frozenset()).union(*used)
        if array is None:
            self._is_known[value] = False
        elif array.nbytes <= _KEPT_BYTES:
            self._kept[value] = array
        return array

    def _run(
        self, node: ir.Node, value: ir.Value, operands: Sequence[Array | None]
    ) -> Array | None:
        """Return an output of a node; None if it fails or depends on the processor."""
        known = zip(node.inputs, operands, strict=True)
        results: dict[ir.Value, Any] = {v: array for v, array in known if v is not None}
        try:
            kernel = kernel_for(node, self.imports)
            with np.errstate(all="ignore"):
                NodeStep(node, kernel).run(results)
        except QGraphError:
            return None
        array = results.get(value)
        if not isinstance(array, np.ndarray):
            return None
        if array.dtype.kind in "iubOSU" or is_exact(node):
            return array
        if node.domain != "":
            return None
        if node.op_type in SUMMING:
            exact = is_any_order_exact(node, kernel, operands)
            return (
                np.asarray(array + array.dtype.type(0)) if exact else None
            )  # the sign of a zero sum is not defined
        is_function = self._has_functions and node.op_type in _ROUNDED_ONCE
        if is_function and is_rounded_once(array.dtype):
            self._open[value] = frozenset({node.op_type})
            return array
        return None

    def _is_opaque(self, node: ir.Node) -> bool:
        return is_control(node) or is_random(node, self.imports) or bool(graphs_of(node))
