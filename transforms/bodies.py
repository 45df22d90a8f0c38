"""Function bodies of quantizers: their definitions, traced into model-local functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import build_function

from qgraph.ops.operator import Operator

LOWEST_OPSET = 11
"""Round, in which most definitions end, is an operator since then."""

MARK = "qgraph.make-portable"
"""Key in the metadata of functions and models that ``make-portable`` wrote something into."""

_OPSET_OF_ORDER = 12
_OPSET_OF_E8M0 = 24

# Powers of two whose products reach from 2**-127, one factor or none of each, up to 2**127.
_HALVINGS = (127, 64, 32, 16, 8, 4, 2, 1)


def body(
    operator: Operator,
    arguments: Mapping[str, Any],
    opset: int,
    domain: str,
    name: str,
    overload: str,
    attributes: Mapping[str, ir.Attr],
) -> ir.Function:
    """Return a function that computes what ``operator`` does, in standard operators of ``opset``.

    The body is the operator's definition after casts of all parameters to float32.

    Args:
        operator: one of ours.
        arguments: keyword arguments of its definition.
        opset: version of the standard operators, :data:`LOWEST_OPSET` or more.
        domain: of the nodes that call the function.
        name: their operator.
        overload: what they name besides.
        attributes: attributes of the nodes, whose values become the defaults of the function.
    """

    def trace(op: Any, x: Any, *parameters: Any) -> Any:
        known = [op.Cast(parameter, to=ir.DataType.FLOAT) for parameter in parameters]
        return operator.define(_Portable(op, opset), x, *known, **arguments)

    data, *others = operator.schema.inputs
    inputs = [
        ir.Value(name=data, type=ir.TensorType(ir.DataType.FLOAT)),
        *(ir.Value(name=other) for other in others),
    ]
    traced = build_function(trace, inputs, domain=domain, name=name, opset_imports={"": opset})
    traced.outputs[0].name = "y"
    function = ir.Function(domain, name, overload, graph=traced.graph, attributes=attributes)
    function.doc_string = f"{operator.schema.name}, version {operator.schema.since}: " + ", ".join(
        f"{key}={value}" for key, value in arguments.items()
    )
    function.metadata_props[MARK] = "function"
    return function


class _Portable:
    """Respells primitives that a runtime lacks at an opset, or alters.

    Args:
        op: onnxscript's builder of the body.
        opset: of the body.
    """

    def __init__(self, op: Any, opset: int) -> None:
        self._op = op
        self._opset = opset
        self._constants: dict[bytes, Any] = {}
        self._power: Any = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return functools.partial(self._call, name)

    def _call(self, name: str, *operands: Any, **attributes: Any) -> Any:
        return getattr(self._op, name)(*map(self._operand, operands), **attributes)

    def _operand(self, given: Any) -> Any:
        """Return a constant of type float32 for a number.

        The builder would put a CastLike on it, which is an operator since opset 15 only.
        """
        if isinstance(given, ir.Value):
            return given
        number = np.float32(given)
        known = self._constants.get(number.tobytes())
        if known is None:
            name = f"constant_{len(self._constants)}"
            known = self._op.initializer(ir.tensor(number, name=name), name)
            self._constants[number.tobytes()] = known
        return known

    def Add(self, a: Any, b: Any) -> Any:  # noqa: N802 - an ONNX operator
        """Write a + b as b - (-a), the same bits, unless b is a number.

        ONNX Runtime drops the Add of a parameter that is zero, so that -0 + 0 would be -0.
        """
        if not isinstance(b, ir.Value):
            return self._call("Add", a, b)
        return self._call("Sub", b, self._call("Neg", a))

    def GreaterOrEqual(self, a: Any, b: Any) -> Any:  # noqa: N802 - an ONNX operator
        """Below the opset that has it, write it as two comparisons; NaN fails both."""
        if self._opset >= _OPSET_OF_ORDER:
            return self._call("GreaterOrEqual", a, b)
        return self._call("Or", self._call("Greater", a, b), self._call("Equal", a, b))

    def LessOrEqual(self, a: Any, b: Any) -> Any:  # noqa: N802 - an ONNX operator
        """Likewise."""
        return self.GreaterOrEqual(b, a)

    def Cast(self, v: Any, **attributes: Any) -> Any:  # noqa: N802 - an ONNX operator
        """Find a power of two by halving the range, below the opset that casts to E8M0."""
        if self._opset >= _OPSET_OF_E8M0:
            return self._call("Cast", v, **attributes)
        if attributes["to"] == ir.DataType.FLOAT8E8M0:
            self._power = self._floor_power_of_two(v)
            return self._power
        return v if v is self._power else self._call("Cast", v, **attributes)

    def _floor_power_of_two(self, v: Any) -> Any:
        """Return ``2 ** floor(log2(v))``, at least 2**-127 and at most 2**127, of v >= 0.

        Each comparison and each product is exact. NaN gives 2**127, which is as good as any number:
        whoever asks for the binade of a NaN computes with the NaN, too.
        """
        power: Any = 2.0**-127
        for exponent in _HALVINGS:
            higher = self._call("Mul", power, 2.0**exponent) if exponent < 127 else 1.0
            power = self._call("Where", self._call("Less", v, higher), power, higher)
        return power
