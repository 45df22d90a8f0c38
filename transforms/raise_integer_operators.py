"""The pass ``raise-integer-operators``: products between Q and DQ as operators on codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.dialect import Refusal
from qgraph.errors import OperatorError
from qgraph.exactness import Exactness, Verdict
from qgraph.foreign.kernels import MICROSOFT
from qgraph.foreign.operands import Operand, Parameter
from qgraph.foreign.products import Product, Result
from qgraph.foreign.sums import conv_attributes
from qgraph.graph.edit import Draft
from qgraph.graph.edit import Operand as Drafted
from qgraph.model import Model
from qgraph.report import Report
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.integers.integer_sums import given
from qgraph.transforms.integers.real_pairs import raise_pair
from qgraph.transforms.integers.real_products import read_coded, read_sums
from qgraph.transforms.operand_shapes import inferred_operands
from qgraph.transforms.rebuilding import Found, Rebuild, rebuild
from qgraph.transforms.spelling import check_level

Array = npt.NDArray[Any]


@transform("raise-integer-operators")
class RaiseIntegerOperators(Transform):
    """Write products of decoded codes as QLinearMatMul and QLinearConv.

    DequantizeLinear, MatMul or Conv, QuantizeLinear become one operator; so does the exact form
    that ``lower-integer-operators`` writes, also as MatMulInteger and ConvInteger. Equality is
    proved for exact forms, and for scales of the data and the weights that are powers of two, where
    all sums can be tried out, as all pairs of codes are for Add and Mul. Anything else takes
    ``exact=near``.

    A bias is int32 codes in units of the product of both scales, or real numbers, which become
    such. A Relu or Clip before the QuantizeLinear goes where saturation does the same.
    """

    microsoft: bool = option(
        False,
        help="write Gemm, Add and Mul too, in operators of com.microsoft such as QGemm",
    )
    exact: Exactness = option(Exactness.VALUES, help="lowest rung of equality that is accepted")

    preserves: ClassVar[Exactness] = Exactness.VALUES

    def check_options(self) -> None:
        """Raise an OptionError for options that do not go together."""
        check_level(self.exact)

    def apply(self, model: Model, report: Report) -> None:
        """Find products and replace them."""
        opset = model.ir.opset_imports.get("", 0)
        with inferred_operands(model, lambda node: node.op_type == "DequantizeLinear"):
            rebuild(model, list(self._found(model)), self.exact, report, limit=max(opset, 10))

    def _found(self, model: Model) -> Iterator[Found]:
        for node in model.nodes("QuantizeLinear", "Cast"):
            if node.domain or node.op_identifier() in model.ir.functions:
                continue
            try:
                pair = self._pair(node)
                if pair is not None:
                    yield pair
                    continue
                read = read_coded(node) if node.op_type == "QuantizeLinear" else read_sums(node)
                if read is not None:
                    yield self._raised(*read)
            except OperatorError as error:
                yield Refusal(node, str(error))

    def _pair(self, node: ir.Node) -> Rebuild | None:
        return raise_pair(node) if self.microsoft and node.op_type == "QuantizeLinear" else None

    def _raised(
        self, product: Product, nodes: tuple[ir.Node, ...], verdict: Verdict
    ) -> Rebuild | Refusal:
        if product.kind == "Gemm" and not self.microsoft:
            return Refusal(
                nodes[0],
                "only com.microsoft has an operator for Gemm; allow it with microsoft=true",
            )

        def write(draft: Draft) -> Drafted:
            return _write(draft, product, nodes[-1].outputs[0].dtype)

        return Rebuild(nodes[0], nodes, verdict, write, 10)


def _write(draft: Draft, product: Product, kind: ir.DataType | None) -> Drafted:
    conv = conv_attributes(product.node) if product.kind == "Conv" else {}
    if product.result is Result.SUMS:
        zeros: list[Drafted | None] = [_flat(p.zero_point) for p in (product.a, product.b)]
        while zeros and zeros[-1] is None:
            zeros.pop()
        name = f"{product.kind}Integer"
        return draft.node(name, [product.a.codes, product.b.codes, *zeros], conv, dtype=kind)
    operands: list[Drafted | None] = []
    for each in (product.a, product.b):
        operands += [each.codes, *_scale_and_zero(each)]
    bias = product.bias_codes if product.bias is None else product.bias
    result: list[Drafted | None] = [given(product.y_scale), given(product.y_zero_point)]
    if product.kind == "Gemm":
        trans = {k: product.node.attributes.get_int(k, 0) for k in ("transA", "transB")}
        attributes: dict[str, Any] = trans | {"alpha": float(product.alpha)}
        operands += [bias, *result]
        return draft.node("QGemm", operands, attributes, domain=MICROSOFT, dtype=kind)
    operands += result
    if bias is not None:
        operands.append(bias)
    return draft.node(f"QLinear{product.kind}", operands, conv, dtype=kind)


def _scale_and_zero(operand: Operand) -> tuple[Drafted, Drafted]:
    """Return scale and zero point in one shape."""
    scale, zero = _flat(operand.scale), _flat(operand.zero_point)
    if not isinstance(scale, np.ndarray):
        raise OperatorError("a scale is known at run time only")
    points = np.zeros((), operand.dtype) if zero is None else zero
    if not isinstance(points, np.ndarray):
        raise OperatorError("a zero point is known at run time only")
    shape = np.broadcast_shapes(scale.shape, points.shape)
    return np.broadcast_to(scale, shape).copy(), np.broadcast_to(points, shape).copy()


def _flat(parameter: Parameter | None) -> Parameter | None:
    if isinstance(parameter, np.ndarray) and parameter.size > 1:
        return parameter.reshape(-1)
    return parameter
