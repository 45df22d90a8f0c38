"""Constant values of a model: stored ones, and those that nodes compute from constants alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import ExecutionError, ModelError, OperatorError, UnsupportedError
from qgraph.graph.constants import constant, constant_tensor
from qgraph.graph.scopes import graphs_of, is_control, nodes_of
from qgraph.numerics import Array
from qgraph.ops.determined import is_exact, is_random
from qgraph.ops.dispatch import SUMMING, Imports, NodeStep, is_any_order_exact, kernel_for
from qgraph.ops.kernels.functions import FUNCTIONS, is_rounded_once

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
