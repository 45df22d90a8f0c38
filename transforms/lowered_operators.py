"""Operators of vendors and operators on codes, written in standard operators and back.

The passes ``lower-vendor-operators``, ``lower-microsoft``, ``raise-microsoft``,
``lower-integer-operators`` and ``raise-integer-operators``. The domain of Microsoft defines
QuantizeLinear and DequantizeLinear by the same formula as ONNX. They differ in attributes, and in
the opset from which each type of codes is allowed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import Choice, where
from qgraph.exactness import Exactness
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.opset.rewrites import SIGNED_CODES_SINCE, meets_add
from qgraph.graph.opset.versions import ceiling, lower_opset
from qgraph.graph.schema import MICROSOFT, code_type, element_type
from qgraph.graph.scopes import input_of, nodes_of
from qgraph.model import Model
from qgraph.ops.integer.kernels import is_on_codes, is_unknown_on_codes
from qgraph.ops.integer.products import Product, Result, read_product
from qgraph.quantizers.dialects.dialect import Refusal
from qgraph.reasons import NO_OPERATOR, UNKNOWN_TYPE
from qgraph.reports import Report, SiteStatus
from qgraph.transforms.base import Transform, opset_option, option, transform
from qgraph.transforms.drafts.choice import SAME, entry
from qgraph.transforms.drafts.rebuilding import (
    Found,
    Rebuild,
    inferred_operands,
    lower_composites,
    no_operator,
    read_all,
    rebuild,
)
from qgraph.transforms.integers.products import (
    lower_exactly,
    lower_pair,
    lower_to_reals,
    raise_pair,
    raise_product,
)
from qgraph.transforms.integers.tables import lower_function


@transform("lower-vendor-operators", preserves=Exactness.BITS)
class LowerVendorOperators(Transform):
    """Write operators of ONNX Runtime, QONNX, Quark and TensorRT in standard operators.

    Each node is replaced by the graph that defines its operator: one standard operator for each
    rounding, in the order of the definition. These are MatMulBnb4 and GatherBlockQuantized of
    com.microsoft, MultiThreshold of QONNX, and others that the documentation lists. Packed weights
    stay as they are; the graph unpacks them.
    """

    opset: int | None = opset_option()

    def apply(self, model: Model, report: Report) -> None:
        """Raise the opset once as far as needed, and replace every operator that has a graph."""
        lower_composites(model, report, ceiling(model.ir, self.opset))


_PAIR = ("QuantizeLinear", "DequantizeLinear")
_OPSET_OF_AXES, _OPSET_OF_HALVES, _OPSET_OF_BLOCKS = 13, 19, 21
_OPSET_OF_NARROW, _OPSET_OF_PRECISION = 21, 23
_CODES_OF_MICROSOFT = ("INT8", "UINT8", "INT16", "UINT16", "INT4", "UINT4", "INT32")
_ONLY_STANDARD = ("block_size", "saturate", "precision")
"""Attributes that com.microsoft does not have."""


@transform("lower-microsoft", preserves=Exactness.BITS)
class LowerMicrosoft(Transform):
    """Write QuantizeLinear and DequantizeLinear of com.microsoft in the standard domain.

    The opset is raised if codes of 16 or 4 bits, scales along an axis, or 16-bit floats need it.
    """

    opset: int | None = opset_option()

    def apply(self, model: Model, report: Report) -> None:
        """Find the nodes, raise the opset once if needed, and replace them."""
        nodes = model.nodes(*(f"{MICROSOFT}::{name}" for name in _PAIR))
        limit = ceiling(model.ir, self.opset)
        with inferred_operands(model, lambda node: node.op_type in _PAIR):
            results = read_all(
                model, nodes, lambda node: _other_division(model, node) or _lowered(node)
            )
            rebuild(model, results, Exactness.BITS, report, limit=limit)


@transform("raise-microsoft", preserves=Exactness.BITS)
class RaiseMicrosoft(Transform):
    """Write QuantizeLinear and DequantizeLinear with codes of 16 and 4 bits in com.microsoft.

    ONNX Runtime supports these codes there below opset 21, which added them to the standard domain.
    Codes of 8 bits stay, unless ``all`` is given. With ``opset`` the model is lowered to that
    version afterwards, if all nodes exist there with the meaning and the types that they have.
    Nodes in functions are kept, because ONNX infers no types after operators of com.microsoft
    there, and later operators may need these types.
    """

    opset: int | None = option(None, help="opset to lower the standard operators to afterwards")
    all: bool = option(False, help="also write codes of 8 bits in com.microsoft")

    def apply(self, model: Model, report: Report) -> None:
        """Replace the nodes, then lower the opset."""
        nodes = (node for node in model.nodes(*_PAIR) if not node.domain)
        now = model.ir.opset_imports.get("", 0)
        with inferred_operands(model, lambda node: node.op_type in _PAIR):
            functions = model.ir.functions.values()
            inner = {node for function in functions for node in nodes_of(function)}
            results = read_all(
                model,
                nodes,
                lambda node: _other_division(model, node) or self._raised(node, inner),
            )
            rebuild(model, results, Exactness.BITS, report, limit=now)
        if self.opset is not None:
            report.notes += lower_opset(model.ir, ceiling(model.ir, self.opset))

    def _raised(self, node: ir.Node, inner: Container[ir.Node]) -> Found:
        codes = code_type(node)
        if codes is None:
            text = "the type of its codes is unknown; run shape inference"
            return Refusal(node, UNKNOWN_TYPE(f"{where(node)}: {text}"))
        if codes.name not in _CODES_OF_MICROSOFT:
            return no_operator(
                node,
                f"com.microsoft has no codes of type {codes.name}; keep it in the standard domain, "
                f"which has them since opset {QDQ_SINCE.get(codes.name, 21)}",
            )
        if not self.all and QDQ_SINCE[codes.name] < _OPSET_OF_NARROW:
            reason = f"codes of type {codes.name} are standard below opset {_OPSET_OF_NARROW}"
            return entry(node, SiteStatus.KEPT, reason)
        if node in inner:
            return no_operator(
                node,
                "it is in a function, in which ONNX infers no types behind operators of "
                "com.microsoft; inline the functions first, as onnx.inliner does",
            )
        others = [name for name in _ONLY_STANDARD if _is_set(node, name)]
        if others:
            way = "keep it in the standard domain"
            if others[0] == "block_size":
                way += ", or give each row one scale first with -p repack{blocks=rows}"
            return no_operator(node, f"com.microsoft has no attribute {others[0]!r}; {way}")
        zero = None
        if (
            input_of(node, 2) is None
            and node.op_type == "QuantizeLinear"
            and codes is not ir.DataType.UINT8
        ):
            scale = constant_expression(node.inputs[1])
            if scale is None:
                text = "its output_dtype becomes a zero point of the scale's shape, which is "
                text += "unknown before run time; make the scale a constant"
                return Refusal(node, f"{where(node)}: {text}")
            zero = np.zeros(scale.shape, codes.numpy())
        return Rebuild(node, (node,), SAME, _moved(node, MICROSOFT, zero))


def _other_division(model: Model, node: ir.Node) -> Refusal | None:
    """Return a refusal of a QuantizeLinear that divides otherwise in the other domain, or None.

    ONNX Runtime divides float16 data in float32, since opset 23 of the standard domain in float16.
    """
    is_half = element_type(node.inputs[1], model.ir.opset_imports) is ir.DataType.FLOAT16
    if node.op_type != "QuantizeLinear" or not is_half:
        return None
    if model.ir.opset_imports.get("", 0) < _OPSET_OF_PRECISION:
        return None
    text = "it divides float16 data in float32 in com.microsoft, and in float16 in the standard "
    return no_operator(node, f"{text}domain since opset {_OPSET_OF_PRECISION}; leave it as it is")


def _lowered(node: ir.Node) -> Found:
    codes = code_type(node)
    if codes is None or codes.name not in QDQ_SINCE:
        what = "unknown; run shape inference first"
        if codes is not None:
            what = f"{codes.name}, which the standard domain does not have; leave it as it is"
        cause = UNKNOWN_TYPE if codes is None else NO_OPERATOR
        return Refusal(node, cause(f"{where(node)}: the type of its codes is {what}"))
    return Rebuild(node, (node,), SAME, _moved(node, ""), _opset(node, codes))


def _moved(
    node: ir.Node, domain: str, zero_point: Operand | None = None
) -> Callable[[Draft], Operand]:
    """Return a drafting function for ``node`` in another domain; it adds a missing zero point."""
    attributes: dict[str, Any] = dict(node.attributes)
    if not domain and _is_single(node):
        # Per tensor the axis has no meaning, and below opset 13 there is no axis.
        attributes.pop("axis", None)
    if domain:
        attributes.pop("output_dtype", None)

    def write(draft: Draft) -> Operand:
        operands: list[Operand | None] = list(node.inputs)
        if zero_point is not None:
            operands = [*operands[:2], zero_point]
        dtype = node.outputs[0].dtype
        return draft.node(node.op_type, operands, attributes, domain=domain, dtype=dtype)

    return write


def _is_single(node: ir.Node) -> bool:
    """Return whether the scale of a node is known to be one number for the whole tensor."""
    scale = node.inputs[1]
    return scale is not None and scale.shape is not None and len(scale.shape) == 0


def _opset(node: ir.Node, codes: ir.DataType) -> int:
    needed = [QDQ_SINCE[codes.name]]
    if not _is_single(node):
        needed.append(_OPSET_OF_AXES)
    data = node.inputs[0] if node.op_type == "QuantizeLinear" else None
    if ir.DataType.FLOAT16 in (element_type(node.inputs[1]), element_type(data)):
        needed.append(_OPSET_OF_HALVES)
    if "block_size" in node.attributes:
        needed.append(_OPSET_OF_BLOCKS)
    return max(needed)


def _is_set(node: ir.Node, name: str) -> bool:
    attribute = node.attributes.get(name)
    default = 1 if name == "saturate" else 0
    return attribute is not None and (attribute.is_ref() or attribute.as_int() != default)


class SumForm(Choice):
    """Form of sums of products."""

    EXACT = "exact"
    QDQ = "qdq"


_WHY_NONE = (
    ". For batches of several rows its result depends on the number of threads, so that no graph "
    "is equal; quantize again without LSTM for one that converts"
)
"""A remark on DynamicQuantizeLSTM, which has no form."""


@transform("lower-integer-operators", preserves=Exactness.VALUES)
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

    def apply(self, model: Model, report: Report) -> None:
        """Read and replace operators on codes until no more can be replaced.

        Types and shapes after operators of com.microsoft are inferred once these are replaced.
        """
        limit = ceiling(model.ir)
        original = frozenset(model.nodes())
        while True:
            round_ = Report()
            is_new = model.ir.opset_imports.get("", 0) >= SIGNED_CODES_SINCE
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
    has_add = product.added is not None or meets_add(product.node.outputs[0])
    return signed and has_add


@transform("raise-integer-operators", preserves=Exactness.VALUES)
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
