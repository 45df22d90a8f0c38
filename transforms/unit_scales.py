"""Passes that save operations on each result of a convolution.

``unit-scales``      multiplication by the scale of the quantizer after it
``separate-limits``  rounding before limits
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import clip_limits, constant_expression
from qgraph.graph.edit import Editor, Operand, Region
from qgraph.graph.opset.versions import only_float_type
from qgraph.graph.schema import code_type
from qgraph.graph.scopes import input_of, producer_of
from qgraph.inventory.layers import convolution_before, quantized_layers
from qgraph.model import Model
from qgraph.reasons import NOT_ABSORBED, explained
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import Transform, exact_option, option, selects, transform
from qgraph.transforms.drafts.choice import SAME, entry, label, refused
from qgraph.transforms.drafts.rebuilding import carry_over, replace_node
from qgraph.transforms.weights.output_scale import Scaling, Stuck, scaling, title
from qgraph.transforms.weights.scaled_weights import present

_BOUND = "results are rounded elsewhere; bound the difference with 'qgraph prove --within'"
_LEAST = 2.0**-64
"""Least scale; parts of sums that are divided by a smaller one may become infinite."""

_LAYERS = "names of convolutions, such as *conv*|!*last"


@transform("unit-scales", preserves=Exactness.VALUES)
class UnitScales(Transform):
    """Divide weights and biases of convolutions by the scale of the quantizer after them.

    For a QuantizeLinear with one scale ``s``, and codes of integers,

    1. ``QuantizeLinear(f(x), s) -> QuantizeLinear(g(x), 1)``, where ``g(x)`` is ``f(x) / s``: ``f``
       with the scale of the quantized weights and the bias of its Conv divided by ``s``. Relu,
       LeakyRelu, Clip and other operators that a factor passes may lie after the Conv.

    The DequantizeLinear after it keeps ``s``. Without this pass OpenVINO multiplies each result by
    ``1 / s``. Codes are equal if ``s`` is a power of two, and nothing overflows or becomes
    subnormal; for other scales the constants are rounded, and codes near ties may change.
    """

    nodes: str = option("*", help=_LAYERS)
    exact: Exactness = exact_option(
        "minimum level of equality to accept; near: also scales that are not powers of two"
    )

    def apply(self, model: Model, report: Report) -> None:
        """Move the scale of each quantizer after a convolution, and report it."""
        editor = Editor(model.ir)
        layers = {layer.node for layer in quantized_layers(model.ir)}
        for encode in list(model.nodes("QuantizeLinear")):
            layer = convolution_before(encode)
            if layer not in layers or not _is_quantizer(encode):
                continue
            if not selects(self.nodes, label(layer)):
                continue
            try:
                report.sites.append(self._moved(encode, editor))
            except Stuck as stuck:
                report.sites.append(refused(encode, explained(stuck.reason, NOT_ABSORBED)))

    def _moved(self, encode: ir.Node, editor: Editor) -> SiteReport:
        data, scale = present(encode, 0), constant_expression(encode.inputs[1])
        if scale is None or scale.size != 1 or scale.dtype != np.float32:
            raise Stuck("it has no constant float32 scale for all data; quantize it per tensor")
        if scale.reshape(()) == 1:
            return entry(encode, SiteStatus.KEPT, "its scale is 1")
        if not (np.isfinite(scale).all() and scale.min() > 0):
            raise Stuck("its scale is not above 0; export a positive scale")
        moved = scaling(data, encode, 1 / scale.astype(np.float64).reshape(()), {})
        if any(_underflows(moved)):
            raise Stuck(f"constants of {title(moved.absorbers[0])} would become subnormal")
        if scale.min() < _LEAST:
            raise Stuck(f"sums of {title(moved.absorbers[0])} might exceed the range of float32")
        verdict = Verdict(reason=_BOUND)
        if moved.exact:
            verdict = Verdict(Exactness.VALUES, Method.CONGRUENCE)
        if moved.exact and self.exact > Exactness.VALUES:
            raise Stuck("zeros may get another sign; exact=values accepts that")
        if not moved.exact and self.exact > Exactness.NEAR:
            raise Stuck(f"its scale is no power of two, so {_BOUND}; exact=near accepts that")
        moved.settle(editor)
        data = present(encode, 0)  # its operators were replaced
        draft = editor.draft(Region(data, encode.outputs[0], (encode,)))
        one = draft.constant(np.ones_like(scale), "scale")
        draft.giving(draft.copy(encode, [draft.x, one, *encode.inputs[2:]])).commit()
        carry_over(encode, draft.nodes[-1])
        return entry(encode, SiteStatus.CHANGED, None if moved.exact else _BOUND, verdict=verdict)


@transform("separate-limits", preserves=Exactness.VALUES)
class SeparateLimits(Transform):
    """Prevent a runtime from limiting results of a convolution after their rounding.

    1. ``QuantizeLinear(Clip(x, a, b)) -> QuantizeLinear(Abs(Clip(x, max(a, 0), b)))`` for results
       ``x`` of a Conv with quantized weights and a limit ``b`` of at least 0, if ``a`` is not
       negative, or the lowest code stands for 0.

    The Abs changes no code. Without it, OpenVINO joins Clip and quantizer, and scales, rounds and
    limits each result in three operations, instead of one before the conversion to codes.
    """

    nodes: str = option("*", help=_LAYERS)

    def apply(self, model: Model, report: Report) -> None:
        """Insert an Abs after each of these Clips, and report it."""
        editor = Editor(model.ir)
        layers = {layer.node for layer in quantized_layers(model.ir)}
        kind = only_float_type(model.ir) or ir.DataType.FLOAT
        for encode in list(model.nodes("QuantizeLinear")):
            layer, clip = convolution_before(encode), producer_of(encode.inputs[0], "Clip")
            if layer not in layers or not _is_quantizer(encode):
                continue
            if not selects(self.nodes, label(layer)):
                continue
            if clip is None or not _is_separable(clip, encode):
                continue
            draft = editor.draft(
                Region(clip.inputs[0] or ir.Value(name=""), clip.outputs[0], (clip,))
            )
            operands: list[Operand | None] = [draft.x, *clip.inputs[1:]]
            limits = clip_limits(clip) or (0.0, 0.0)
            if limits[0] < 0:
                dtype = clip.outputs[0].dtype or kind
                operands[1] = draft.constant(np.zeros((), dtype.numpy()), "lowest")
            limited = draft.copy(clip, operands)
            draft.giving(draft.node("Abs", [limited], dtype=limited.dtype))
            replace_node(clip, draft, SAME, report, heirs=("Clip",))


def _is_quantizer(encode: ir.Node) -> bool:
    """Return whether codes of a QuantizeLinear are integers."""
    codes = code_type(encode)
    return encode.domain == "" and codes is not None and codes.is_integer()


def _is_separable(clip: ir.Node, encode: ir.Node) -> bool:
    """Return whether results of a Clip that is read by a QuantizeLinear alone may be made absolute.

    Negative results may be, if they and 0 have the same code.
    """
    y, limits = clip.outputs[0], clip_limits(clip)
    if limits is None or not 0 <= limits[1] < np.inf or clip.attributes:
        return False
    if len(y.uses()) != 1 or y.is_graph_output() or encode.inputs[0] is not y:
        return False
    return limits[0] >= 0 or _has_lowest_zero(encode)


def _has_lowest_zero(encode: ir.Node) -> bool:
    """Return whether the lowest code of a QuantizeLinear with positive scales stands for 0."""
    codes, scale = code_type(encode), constant_expression(encode.inputs[1])
    stated = input_of(encode, 2)
    point = np.zeros(1) if stated is None else constant_expression(stated)
    if codes is None or scale is None or point is None:
        return False
    return bool((scale > 0).all() and (point.astype(np.int64) == codes.min).all())


def _underflows(moved: Scaling) -> Iterator[bool]:
    """Yield, for each new constant, whether a number other than 0 became subnormal."""
    least = np.finfo(np.float32).tiny
    for node, constants in moved.constants.items():
        for index, array in constants.items():
            before = constant_expression(node.inputs[index])
            yield bool(((np.abs(array) < least) & (before != 0)).any())
