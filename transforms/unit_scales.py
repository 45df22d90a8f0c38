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
from qgraph.graph.edit import Draft, Editor, Operand, Region
from qgraph.graph.opset.versions import only_float_type
from qgraph.graph.schema import code_type
from qgraph.graph.scopes import input_of, producer_of
from qgraph.inventory.layers import convolution_before, quantized_layers
from qgraph.model import Model
from qgraph.ops.known_values import KnownValues
from qgraph.reasons import NOT_ABSORBED, explained
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import Transform, exact_option, option, selects, transform
from qgraph.transforms.drafts.choice import SAME, entry, label, refused
from qgraph.transforms.drafts.rebuilding import carry_over, replace_nodes
from qgraph.transforms.weights.magnitudes import Magnitudes, magnitudes_before
from qgraph.transforms.weights.output_scale import Scaling, Stuck, scaling, title
from qgraph.transforms.weights.scaled_weights import present

_BOUND = "results are rounded elsewhere; bound the difference with 'qgraph prove --within'"
_MOST = 2.0**64
"""Largest factor for sums of unknown magnitude, which a larger one might make infinite."""

_DIVISIONS = (ir.DataType.UNDEFINED, ir.DataType.FLOAT)
"""Types in which a QuantizeLinear with a float32 scale may divide."""

_LAYERS = "names of convolutions, such as *conv*|!*last"


@transform("unit-scales", preserves=Exactness.VALUES)
class UnitScales(Transform):
    """Divide weights and biases of convolutions by the scale of the quantizer after them.

    For a QuantizeLinear with one scale ``s``, and codes of integers,

    1. ``QuantizeLinear(f(x), s) -> QuantizeLinear(g(x), 1)``, where ``g(x)`` is ``f(x) / s``: ``f``
       with the scale of the quantized weights and the bias of its Conv divided by ``s``. Relu,
       LeakyRelu, Clip and other operators that a factor passes may lie after the Conv.

    The DequantizeLinear after it keeps ``s``. Without this pass OpenVINO multiplies each result by
    ``1 / s``. Codes are equal if ``s`` is a power of two, and the ranges of data and weights show
    that no sum becomes subnormal; for others codes near ties may change. Scales stay where sums
    might overflow, before or after the change.
    """

    nodes: str = option("*", help=_LAYERS)
    exact: Exactness = exact_option(
        "minimum level of equality to accept; near: also scales that are not powers of two"
    )

    def apply(self, model: Model, report: Report) -> None:
        """Move the scale of each quantizer after a convolution, and report it."""
        editor, known = Editor(model.ir), KnownValues.of(model.ir.graph)
        layers = {layer.node for layer in quantized_layers(model.ir)}
        drafts: dict[ir.Node, Draft] = {}
        for encode in list(model.nodes("QuantizeLinear")):
            layer = convolution_before(encode)
            if layer is None or layer not in layers or not _is_quantizer(encode):
                continue
            if not selects(self.nodes, label(layer)):
                continue
            try:
                site = self._moved(encode, layer, known, editor, drafts)
            except Stuck as stuck:
                site = refused(encode, explained(stuck.reason, NOT_ABSORBED))
            report.sites.append(site)
        replace_nodes(drafts, editor)

    def _moved(
        self,
        encode: ir.Node,
        layer: ir.Node,
        known: KnownValues,
        editor: Editor,
        drafts: dict[ir.Node, Draft],
    ) -> SiteReport:
        """Add the drafts that move the scale of a quantizer, and return its entry."""
        data, scale = present(encode, 0), constant_expression(encode.inputs[1])
        if scale is None or scale.size != 1 or scale.dtype != np.float32:
            raise Stuck("it has no constant float32 scale for all data; quantize it per tensor")
        if scale.reshape(()) == 1:
            return entry(encode, SiteStatus.KEPT, "its scale is 1")
        if not (np.isfinite(scale).all() and scale.min() > 0):
            raise Stuck("its scale is not above 0; export a positive scale")
        if encode.attributes.get_int("precision", 0) not in _DIVISIONS:
            raise Stuck("it divides in another type than float32; remove its precision")
        factor = 1 / float(scale.reshape(()))
        moved = scaling(data, encode, np.asarray(factor), {})
        if any(_underflows(moved)):
            raise Stuck(f"constants of {title(layer)} would become subnormal")
        numbers = magnitudes_before(encode, layer, known)
        is_far = factor > _MOST if numbers is None else numbers.may_overflow(factor)
        if is_far:
            raise Stuck(f"sums of {title(layer)} might exceed the range of float32")
        why = _inequality(moved, layer, numbers, factor)
        if why is None and self.exact > Exactness.VALUES:
            raise Stuck("zeros may get another sign; exact=values accepts that")
        if why is not None and self.exact > Exactness.NEAR:
            raise Stuck(f"{why}, so {_BOUND}; exact=near accepts that")
        drafts |= moved.drafts(editor)
        draft = editor.draft(Region(data, encode.outputs[0], (encode,)))
        one = draft.constant(np.ones_like(scale), "scale")
        drafts[encode] = draft.giving(draft.copy(encode, [draft.x, one, *encode.inputs[2:]]))
        if why is not None:
            return entry(encode, SiteStatus.CHANGED, _BOUND, verdict=Verdict(reason=_BOUND))
        verdict = Verdict(Exactness.VALUES, Method.CONGRUENCE)
        return entry(encode, SiteStatus.CHANGED, verdict=verdict)


def _inequality(
    moved: Scaling, layer: ir.Node, numbers: Magnitudes | None, factor: float
) -> str | None:
    """Return why codes may change; None if they do not."""
    if not moved.exact:
        return "its scale is no power of two"
    if numbers is None:
        return f"the range of the data or weights of {title(layer)} is not known"
    if numbers.may_underflow(factor):
        return f"sums of {title(layer)} may become subnormal"
    return None


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
        drafts: dict[ir.Node, Draft] = {}
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
            drafts[clip] = draft.giving(draft.node("Abs", [limited], dtype=limited.dtype))
            spelling = draft.spelling
            site = entry(clip, SiteStatus.CHANGED, spelling=spelling, verdict=SAME)
            report.sites.append(site)
        editor.replace_all(drafts.values())
        for clip, draft in drafts.items():
            carry_over(clip, draft.nodes[0])


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
