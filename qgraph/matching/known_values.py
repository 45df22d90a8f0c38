"""What the constant values of a model are, also those that nodes compute from constants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import ExecutionError, ModelError, OperatorError, UnsupportedError
from qgraph.execution.control import is_control
from qgraph.execution.executor import Imports, kernel_for
from qgraph.execution.plan import NodeStep
from qgraph.graph.constants import constant
from qgraph.graph.scopes import subgraphs
from qgraph.kernels.elementary import FUNCTIONS, is_rounded_once
from qgraph.matching.known_sums import SUMMING, is_any_order_exact
from qgraph.matching.randomness import is_random
from qgraph.ops.operator import operator_of
from qgraph.primitives import NUMPY

Array = npt.NDArray[Any]

_EXACT = frozenset(NUMPY) - {"Pow"} | frozenset(
    {
        "ArgMax",
        "ArgMin",
        "CastLike",
        "Clip",
        "Compress",
        "Concat",
        "ConstantOfShape",
        "DepthToSpace",
        "Expand",
        "EyeLike",
        "Flatten",
        "GatherElements",
        "GatherND",
        "IsInf",
        "MaxPool",
        "Mod",
        "NonZero",
        "OneHot",
        "Pad",
        "ReduceMax",
        "ReduceMin",
        "Reshape",
        "ScatterElements",
        "ScatterND",
        "Shape",
        "Size",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "TopK",
        "Transpose",
        "Trilu",
        "Unsqueeze",
        "Xor",
    }
)
"""Operators whose results IEEE 754 and ONNX determine to the last bit."""

_ROUNDED_ONCE = frozenset(FUNCTIONS) | {"Pow"}
"""Operators whose kernels give the exact results, rounded once, for types narrower than float64."""

_KEPT_BYTES = 1 << 16
"""Larger results are computed again when they are asked for again, rather than kept."""


class KnownValues:
    """Computes constants by the kernels of the operators.

    Args:
        imports: domains of the model and their versions.

    Attributes:
        imports: as given.
        inexact: operators that computed floating-point constants whose last bits ONNX leaves open,
            as it does for functions such as Exp. The constants are the exact results, rounded once.

    A floating-point constant whose bits depend on the processor, such as most sums, is not known.
    """

    def __init__(self, imports: Imports) -> None:
        self.inexact: set[str] = set()
        self.imports = imports
        self._is_known: dict[ir.Value, bool] = {}
        self._kept: dict[ir.Value, Array] = {}

    def enter(self, nodes: Iterable[ir.Node]) -> None:
        """Take note of nodes, in their order: which of their outputs are constant.

        Results that may depend on the processor are computed here, to know whether they do.
        """
        for node in nodes:
            used = [value for value in node.inputs if value is not None]
            computed = bool(used) and all(map(self.has, used)) and not self._is_opaque(node)
            for value in node.outputs:
                stored = self._is_constant(value)
                self._is_known[value] = stored or computed
                if computed and not stored and not is_exact(node):
                    self._is_known[value] = self.array(value) is not None

    def has(self, value: ir.Value) -> bool:
        """Return whether ``value`` is constant."""
        found = self._is_known.get(value)
        return self._is_constant(value) if found is None else found

    def array(self, value: ir.Value) -> Array | None:
        """Return the array of a constant, None for another value, or one without kernel.

        Raises:
            ModelError: the data of a constant cannot be read.
        """
        if not self.has(value):
            return None
        if value in self._kept:
            return self._kept[value]
        found = constant(value)
        return self._computed(value) if found is None else found

    @staticmethod
    def _is_constant(value: ir.Value) -> bool:
        if value.is_initializer():
            return not value.is_graph_input()
        node = value.producer()
        spelled = node is not None and node.op_type == "Constant" and node.domain == ""
        return spelled and constant(value) is not None

    def _computed(self, value: ir.Value) -> Array | None:
        node = value.producer()
        if node is None:
            return None
        operands = [None if operand is None else self.array(operand) for operand in node.inputs]
        known = dict(zip(node.inputs, operands, strict=True))
        if any(operand is not None and array is None for operand, array in known.items()):
            return None
        array = self._run(node, value, operands)
        if array is None:
            self._is_known[value] = False
        elif array.nbytes <= _KEPT_BYTES:
            self._kept[value] = array
        return array

    def _run(
        self, node: ir.Node, value: ir.Value, operands: Sequence[Array | None]
    ) -> Array | None:
        """Return an output of a node; None where it fails, or other processors compute others."""
        known = zip(node.inputs, operands, strict=True)
        results: dict[ir.Value, Any] = {v: array for v, array in known if v is not None}
        try:
            kernel = kernel_for(node, self.imports)
            with np.errstate(all="ignore"):
                NodeStep(node, kernel).run(results, frozenset())
        except (ExecutionError, ModelError, OperatorError, UnsupportedError):
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
            return np.asarray(array + array.dtype.type(0)) if exact else None  # -0 may be 0 too
        if node.op_type in _ROUNDED_ONCE and is_rounded_once(array.dtype):
            self.inexact.add(node.op_type)
            return array
        return None

    def _is_opaque(self, node: ir.Node) -> bool:
        if is_control(node) or is_random(node, self.imports):
            return True
        return any(subgraphs(attribute) for attribute in node.attributes.values())


def is_exact(node: ir.Node) -> bool:
    """Return whether IEEE 754 and ONNX determine the results of a node to the last bit."""
    if node.domain == "" and node.op_type in _EXACT:
        return True
    try:
        return operator_of(node) is not None
    except OperatorError:
        return False
