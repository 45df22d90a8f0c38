"""The passes ``lower-integer-operators`` and ``raise-integer-operators``."""

from __future__ import annotations

import functools
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.errors import Choice
from qgraph.exactness import Exactness
from qgraph.graph.opset import versions
from qgraph.graph.opset.versions import ceiling
from qgraph.model import Model
from qgraph.ops.integer.kernels import is_on_codes, is_unknown_on_codes
from qgraph.ops.integer.products import Product, Result, read_product
from qgraph.quantizers.dialects.dialect import Refusal
from qgraph.reasons import NO_OPERATOR
from qgraph.reports import Report, SiteStatus
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.drafts.rebuilding import Found, inferred_operands, read_all, rebuild
from qgraph.transforms.integers.products import (
    lower_exactly,
    lower_pair,
    lower_to_reals,
    raise_pair,
    raise_product,
)
from qgraph.transforms.integers.tables import lower_function


class SumForm(Choice):
    """Form of sums of products."""

    EXACT = "exact"
    QDQ = "qdq"


_WHY_NONE = (
    ". For batches of several rows its result depends on the number of threads, so that no graph "
    "is equal; quantize again without LSTM for one that converts"
)
"""A remark on DynamicQuantizeLSTM, which has no form."""


@transform("lower-integer-operators")
class LowerIntegerOperators(Transform):
    """Write QLinearConv, QLinearMatMul, QGemm and similar operators in standard operators.

    ``form=exact`` keeps every bit: codes minus zero points are whole numbers, whose sums are exact
    in float32 below 2**24 and in float64 up to 2**31. If sums may be larger, or their depth is not
    known, MatMulInteger or ConvInteger is kept, which wraps around. One multiplication and a
    QuantizeLinear with scale 1 follow. A function of single codes becomes a table of its 256
    results if standard operators do not give the same results.

    ``form=qdq`` writes DequantizeLinear, the operator on real numbers, and QuantizeLinear, which
    other tools understand. It is equal if scales of the data and the weights are powers of two and
    a trial of all sums shows no difference. Otherwise float32 rounds, and the form is written with
    ``exact=near`` only.
    """

    form: SumForm = option(
        SumForm.EXACT,
        help="exact: in exact integer sums; qdq: DequantizeLinear, float operators, QuantizeLinear",
    )
    exact: Exactness = option(Exactness.VALUES, help="minimum level of equality to accept")

    preserves: ClassVar[Exactness] = Exactness.VALUES

    def apply(self, model: Model, report: Report) -> None:
        """Read and replace operators on codes until no more can be replaced.

        Types and shapes after operators of com.microsoft are inferred once these are replaced.
        """
        limit = ceiling(model.ir)
        original = frozenset(model.nodes())
        while True:
            round_ = Report()
            is_new = model.ir.opset_imports.get("", 0) >= versions.SIGNED_CODES_SINCE
            read = functools.partial(self._read, is_new=is_new)
            with inferred_operands(model, is_on_codes):
                nodes = (node for node in model.nodes() if node in original)
                rebuild(model, read_all(model, nodes, read), self.exact, round_, limit=limit)
            report.notes += round_.notes
            changed = [site for site in round_ if site.outcome is SiteStatus.CHANGED]
            if not changed or len(changed) == len(round_.sites):
                report.sites += round_.sites
                return
            report.sites += changed

    def _read(self, node: ir.Node, *, is_new: bool) -> Found | None:
        """Return the lowering of a node; None if the node does not work on codes."""
        if is_unknown_on_codes(node):
            reason = (
                f"qgraph has no form of {node.op_type} in standard operators; ONNX Runtime "
                "computes the node, also with --backend numpy"
            )
            reason += _WHY_NONE if node.op_type == "DynamicQuantizeLSTM" else ""
            return Refusal(node, NO_OPERATOR(reason))
        reals = self.form == SumForm.QDQ
        product = read_product(node)
        if product is not None and not reals:
            return lower_exactly(product)
        if product is not None:
            return lower_to_reals(product, subtracts=is_new and _is_refused(product))
        return lower_pair(node, reals=reals) or lower_function(node, reals=reals)


def _is_refused(product: Product) -> bool:
    """Return whether ONNX Runtime refuses the MatMul and Add that a product becomes."""
    if product.kind != "MatMul" or product.result is not Result.REALS:
        return False
    point = product.a.zero_point
    signed = isinstance(point, np.ndarray) and point.dtype == np.int8 and point.size == 1
    has_add = product.added is not None or versions.meets_add(product.node.outputs[0])
    return signed and has_add


@transform("raise-integer-operators")
class RaiseIntegerOperators(Transform):
    """Write products of decoded codes as QLinearMatMul and QLinearConv.

    DequantizeLinear, MatMul or Conv, QuantizeLinear become one operator; likewise the exact form
    that ``lower-integer-operators`` writes, also with MatMulInteger and ConvInteger. Equality is
    proved for exact forms. For scales of the data and the weights that are powers of two, all sums
    are tried, and for Add and Mul all pairs of codes. Anything else needs ``exact=near``.

    A bias is int32 codes in units of the product of both scales, or real numbers, which are rounded
    to such codes. A Relu or Clip before the QuantizeLinear is dropped if saturation has the same
    effect.
    """

    microsoft: bool = option(
        False, help="write Gemm, Add and Mul too, in operators of com.microsoft such as QGemm"
    )
    exact: Exactness = option(Exactness.VALUES, help="minimum level of equality to accept")

    preserves: ClassVar[Exactness] = Exactness.VALUES

    def apply(self, model: Model, report: Report) -> None:
        """Find products and replace them."""
        limit = max(model.ir.opset_imports.get("", 0), 10)
        with inferred_operands(model, lambda node: node.op_type == "DequantizeLinear"):
            nodes = (node for node in model.nodes("QuantizeLinear", "Cast") if not node.domain)
            rebuild(model, read_all(model, nodes, self._read), self.exact, report, limit=limit)

    def _read(self, node: ir.Node) -> Found | None:
        is_pair = self.microsoft and node.op_type == "QuantizeLinear"
        pair = raise_pair(node) if is_pair else None
        return pair or raise_product(node, microsoft=self.microsoft)
