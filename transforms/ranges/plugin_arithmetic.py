"""FakeQuantize as OpenVINO's CPU plugin computes it, for ``convert{fake_quantize=plugin}``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import array_of
from qgraph.graph.edit import Draft, Editor, Operand, Region
from qgraph.numerics import Array
from qgraph.numerics.formats import holding, numpy_dtype
from qgraph.numerics.rounding import Rounding
from qgraph.ops.definitions.fake_quantize import (
    SCHEMA,
    PluginSteps,
    define_plugin,
    level_of,
    limit,
    plugin_codes,
    plugin_constant,
    plugin_steps,
)
from qgraph.ops.dispatch import evaluate
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.dialect import Refusal, Site
from qgraph.quantizers.dialects.openvino import REMOVED
from qgraph.quantizers.dialects.parts import (
    CODE_TYPES,
    ONE,
    SCALAR,
    ZERO,
    clip,
    dequantize,
    quantize,
)
from qgraph.quantizers.dialects.qonnx_forms import codes_holding, quant
from qgraph.quantizers.quantizer import Ranged
from qgraph.reasons import UNSUITED_RANGE, UNSUPPORTED_TYPE
from qgraph.records import dataclass


@dataclass(frozen=True, eq=False)
class PluginSite(Site):
    """A FakeQuantize with the arithmetic of the plugin.

    Attributes:
        computed: the operations of the plugin, outside of the graph.
    """

    computed: Draft | None = None

    @cached_property
    def values(self) -> Array | None:
        """The plugin's result for ``weight``."""
        return self.of_plugin.values

    @property
    def of_plugin(self) -> Site:
        """The site with the plugin's operations instead of its own."""
        if self.computed is None:
            raise ValueError("the operations of the plugin are not defined for it")
        fields = (self.computed.x, self.computed.y, tuple(self.computed.nodes))
        return Site(*fields, self.root, self.dialect, self.quantizer, self.shape, self.weight)


def as_plugin(site: Site, editor: Editor) -> Site | Refusal:
    """Return the site with the plugin's arithmetic; the same site if it has no FakeQuantize."""
    if site.x.dtype not in (None, ir.DataType.FLOAT):
        text = f"its data is {site.x.dtype.name}; the plugin's arithmetic is known for float32 only"
        return Refusal(site.root, UNSUPPORTED_TYPE(f"{text}; use fake_quantize=reference"))
    try:
        computed = _computed(site.nodes, site.x, site.y, editor.draft(site), _array(site))
    except ValueError as error:
        reason = f"FakeQuantize {site.root.name!r}: {error}."
        return Refusal(site.root, UNSUITED_RANGE(reason))
    if computed is None:
        return site
    fields = (site.x, site.y, site.nodes, site.root, site.dialect, site.quantizer, site.shape)
    return PluginSite(*fields, site.weight, computed=computed)


class PluginComparer(Comparer):
    """Compares sites, with the plugin's arithmetic for every FakeQuantize on either side.

    Args:
        model: the model, as for :class:`Comparer`.
    """

    def __init__(self, model: ir.Model) -> None:
        super().__init__(model)
        self._editor = Editor(model)  # what it makes comes into no graph

    def compare_all(
        self, drafts: Sequence[tuple[Site, Draft]], *, at_least: Exactness | None = None
    ) -> list[Verdict]:
        """Return the verdict on each draft and its site."""
        pairs: list[tuple[Site, Draft]] = []
        verdicts: list[Verdict | None] = []
        for site, draft in drafts:
            try:
                meaning = self._editor.draft(Region(draft.x, draft.y, tuple(draft.nodes)))
                computed = _computed(draft.nodes, draft.x, draft.y, meaning, _array(site))
                own = site.of_plugin if isinstance(site, PluginSite) else site
                pair = own, computed or draft
            except ValueError as error:
                verdicts.append(Verdict(None, Method.NONE, reason=str(error)))
                continue
            pairs.append(pair)
            verdicts.append(None)
        compared = iter(super().compare_all(pairs, at_least=at_least))
        return [verdict or next(compared) for verdict in verdicts]


def _array(site: Site) -> Array | None:
    return None if site.weight is None else site.weight.array()


def _computed(
    nodes: Iterable[ir.Node], x: ir.Value, y: ir.Value, draft: Draft, weight: Array | None
) -> Draft | None:
    """Return the nodes with the plugin's operations for each FakeQuantize; None if there is none.

    For a constant ``weight`` the result of a FakeQuantize is a constant too.

    Raises:
        ValueError: the plugin computes NaN, or removes the node.
    """
    if not any(SCHEMA.accepts(node) for node in nodes):
        return None
    copies: dict[ir.Value, ir.Value] = {x: draft.x}
    for node in nodes:
        operands = [copies[v] if v in copies else _copied(v, draft) for v in node.inputs]
        if SCHEMA.accepts(node):
            y_copy = _plugin(node, operands[0], draft, weight)
        else:
            attributes = {name: value.value for name, value in node.attributes.items()}
            dtype = node.outputs[0].dtype
            y_copy = draft.node(node.op_type, operands, attributes, domain=node.domain, dtype=dtype)
        copies[node.outputs[0]] = y_copy
    return draft.giving(copies[y])


def _copied(value: ir.Value | None, draft: Draft) -> ir.Value | None:
    """Return a copy of a constant, so that the constant of the graph gets no new user."""
    array = None if value is None else array_of(value)
    return value if array is None else draft.constant(array)


def _plugin(node: ir.Node, x: ir.Value | None, draft: Draft, weight: Array | None) -> ir.Value:
    levels = SCHEMA.attributes_of(node)["levels"]
    ends = [array_of(value) for value in node.inputs[1:]]
    arrays = [np.asarray(end, np.float32) for end in ends if end is not None]
    if x is None or len(arrays) != len(ends):
        raise ValueError("its ranges are not constant, expected constants. Freeze them")
    low, high, below, above = arrays
    if levels == REMOVED and np.array_equal(low, below) and np.array_equal(high, above):
        raise ValueError(
            f"OpenVINO takes a FakeQuantize of {levels} levels and equal ranges out of the model, "
            f"expected another number of levels. Use the definition"
        )
    steps = plugin_steps(low, high, below, above, levels)
    if weight is None:
        result: ir.Value = define_plugin(draft.op, x, steps)
        return result
    data = draft.constants[x] if x in draft.constants else evaluate(draft.nodes, draft.x, x, weight)
    values = plugin_constant(np.asarray(data, np.float32), steps)
    return draft.node("Identity", [draft.constant(values)], dtype=ir.DataType.FLOAT)


def plugin_drafts(site: Site, target: str, editor: Editor) -> Iterator[Draft]:
    """Yield the plugin's operations, with the rounding written in the dialect ``target``."""
    if not isinstance(site, PluginSite) or not isinstance(site.quantizer, Ranged):
        return
    meaning = site.quantizer
    ends = (meaning.input_low, meaning.input_high, meaning.output_low, meaning.output_high)
    steps = plugin_steps(*ends, meaning.levels)
    type_name = holding(steps.first, steps.last, CODE_TYPES)
    if target not in ("onnx", "qonnx", "qdq") or (target == "qdq" and type_name is None):
        return
    if site.weight is not None:
        yield from _stored(site, steps, target, type_name, editor)
        return
    decode = _decoding(editor.draft(site), steps, fused=True)
    draft = editor.draft(site)
    if decode is level_of:
        # A table has no entry for NaN, so NaN is replaced by the plugin's result for it.
        y = limit(draft.op, draft.x, steps)
    else:
        y = clip(draft, draft.x, steps.low, steps.high)
    y = draft.op.Mul(y, steps.rate) if (steps.rate != 1).any() else y
    y = draft.op.Add(y, steps.shift) if steps.shift.any() else y
    yield draft.giving(decode(draft.op, _rounded(draft, y, steps, target, type_name), steps))


def _rounded(
    draft: Draft, y: Operand, steps: PluginSteps, target: str, type_name: str | None
) -> Operand:
    """Append the rounding to whole numbers by the operator of a dialect."""
    if target == "qonnx":
        return quant(draft, y, ONE, ZERO, codes_holding(steps.first, steps.last), Rounding.ROUND)
    if target == "qdq" and type_name is not None:
        codes = quantize(draft, y, ONE, ZERO, type_name, SCALAR)
        return dequantize(draft, codes, ONE, ZERO, type_name, SCALAR)
    return draft.op.Round(y)


def _stored(
    site: PluginSite, steps: PluginSteps, target: str, type_name: str | None, editor: Editor
) -> Iterator[Draft]:
    """Yield a constant stored as codes, then the plugin's operations from code to value."""
    with np.errstate(all="ignore"):
        q, fused = plugin_codes(np.asarray(_array(site), np.float32), steps)
    if not ((q >= steps.first) & (q <= steps.last)).all():
        return
    decode = _decoding(editor.draft(site), steps, fused=fused)
    draft = editor.draft(site)
    codes: Operand
    if target == "qdq" and type_name is not None:
        stored = draft.constant(q.astype(np.int32).astype(numpy_dtype(type_name)), "codes")
        codes = dequantize(draft, stored, ONE, ZERO, type_name, SCALAR)
    else:
        codes = draft.constant(q.astype(np.float32), "codes")
        codes = _rounded(draft, codes, steps, target, type_name) if target == "qonnx" else codes
    yield draft.giving(decode(draft.op, codes, steps))


Decode = Callable[[Any, Any, PluginSteps], Any]


def _decoding(draft: Draft, steps: PluginSteps, *, fused: bool) -> Decode:
    """Return the shortest decoding of codes that gives every level exactly."""
    levels = steps.levels(fused=fused)
    codes = np.arange(steps.first, steps.last + 1, dtype=np.float32)
    codes = codes.reshape(-1, *(1 for _ in levels.shape[1:]))
    zero_point = np.rint(-steps.bottom / steps.step)
    decodings: tuple[Decode, ...] = (
        lambda op, q, steps: op.Mul(q, steps.step),
        lambda op, q, steps: op.Mul(op.Sub(q, zero_point), steps.step),
        lambda op, q, steps: op.Add(op.Mul(q, steps.step), steps.bottom),
    )
    for decode in decodings:
        with np.errstate(all="ignore"):
            values = np.asarray(decode(draft.op, codes, steps))
        if np.array_equal(np.broadcast_to(values, levels.shape), levels):
            return decode
    return level_of
