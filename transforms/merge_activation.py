"""The pass ``merge-activation``: write Relu and Clip before a quantizer as a Clip of its codes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qgraph.errors import Choice
from qgraph.exactness import Exactness
from qgraph.graph.constants import clip_limits, constant_expression
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.inference.rules import UNKNOWN
from qgraph.graph.inference.walk import Facts, infer
from qgraph.graph.opset.versions import ceiling
from qgraph.graph.schema import LINEAR_DOMAINS, code_type
from qgraph.graph.scopes import inputs_of, producer_of
from qgraph.model import Model
from qgraph.numerics import Float32
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.dialects.parts import CLIPPABLE, clip_codes
from qgraph.quantizers.quantizer import Unnamed
from qgraph.reasons import NO_OPERATOR, UNSUITED_RANGE, USED_ELSEWHERE, ExplainedReason
from qgraph.records import dataclass
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import Transform, exact_option, opset_option, option, transform
from qgraph.transforms.drafts.choice import Decision, carry_out, choose, entry, refused
from qgraph.transforms.weights.output_scale import title

_NONE = np.asarray(np.inf, np.float32)
_SINCE_OPERANDS = 11
"""Opset since which the bounds of Clip are operands."""


class ActivationForm(Choice):
    """Form in which codes are limited."""

    CODES = "codes"
    FLOATS = "floats"
    UNITS = "units"


@transform("merge-activation", preserves=Exactness.VALUES)
class MergeActivation(Transform):
    """Limit the codes of a quantizer instead of its data.

    QuantizeLinear ``Q`` is monotone, so for a positive scale

    1. ``Q(Clip(x, lo, hi)) -> Clip(Q(x), Q(lo), Q(hi))``, also for Relu, Max and Min of a constant,
       Abs of what is not negative, chains of them, and following Clips of codes; without a Clip if
       ``Q`` saturates at the same codes.
    2. ``form=floats``: ``Clip(Q(x), a, b) -> Q(Clip(x, (a - z) * s, (b - z) * s))``, for runtimes
       that do not clip codes.
    3. ``form=units``: ``Clip(Q(x), a, b) -> Q(Clip(DQ(Q(x)), (a - z) * s, (b - z) * s))``, for
       runtimes that accept only operators between quantizers: layer and Clip have one each.

    Limits between two pairs with other parameters stay, because runtimes merge pairs in a row. Each
    replacement is compared over all inputs. NaN is not kept: only the float Clip passes it on.
    """

    form: ActivationForm = option(
        ActivationForm.CODES,
        help="codes: limit codes; floats: limit the data before the quantizer; units: limit data "
        "between two quantizers",
    )
    exact: Exactness = exact_option()
    opset: int | None = opset_option()

    def apply(self, model: Model, report: Report) -> None:
        """Draft the limits of each quantizer, compare, and replace."""
        carry_out(model, lambda editor: self._plan(model, editor), report)

    def _plan(self, model: Model, editor: Editor) -> Iterator[Decision | SiteReport]:
        facts = infer(model.ir)
        offers: list[tuple[Site, Iterator[Draft]]] = []
        for encode in model.nodes("QuantizeLinear"):
            limited = _Limited.of(encode, facts) if encode.domain in LINEAR_DOMAINS else None
            if isinstance(limited, ExplainedReason):
                yield refused(encode, limited)
            elif limited is None or limited.is_written(self.form):
                yield entry(encode, SiteStatus.KEPT)
            elif (reason := limited.obstacle(self.form)) is not None:
                yield refused(encode, reason)
            else:
                offers.append((limited.site, iter([limited.draft(editor, self.form)])))
        yield from choose(offers, self.exact, ceiling(model.ir, self.opset), Comparer(model.ir))


@dataclass(frozen=True, eq=False)
class _Limited:
    """A QuantizeLinear with the operators that limit its data and its codes.

    Attributes:
        kind: the type of its codes.
        before, behind: the nodes that limit its data and its codes.
        lo, hi: the lowest and the highest resulting code, one for all or one per channel.
    """

    site: Site
    encode: ir.Node
    kind: str
    before: tuple[ir.Node, ...]
    behind: tuple[ir.Node, ...]
    lo: Float32
    hi: Float32
    scale: Float32
    zero_point: Float32

    @classmethod
    def of(cls, encode: ir.Node, facts: Facts) -> _Limited | ExplainedReason | None:
        """Return a QuantizeLinear with its limits, or why it is unchanged; None without limits."""
        behind = tuple(_behind(encode))
        before, sharing = _before(encode)
        if not before and not behind:
            return sharing
        type_name = (code_type(encode) or ir.DataType.UINT8).name
        form = FORMATS.get(type_name)
        operands = [constant_expression(value) for value in inputs_of(encode, 3)[1:]]
        scale, zero = operands[0], operands[1]
        if not isinstance(form, IntFormat) or scale is None:
            return NO_OPERATOR(
                f"its codes are {type_name} or its scale is no constant; only codes of integers "
                "with a known scale have an order"
            )
        steps = scale.astype(np.float32)
        blocks = encode.attributes.get_int("block_size", 0)
        if blocks or not (np.isfinite(steps) & (steps > 0)).all():
            return UNSUITED_RANGE("its scale is not above 0, or belongs to blocks; codes are not "
                                  "ordered as the data are; export one positive scale")  # fmt: skip
        point = np.zeros_like(steps) if zero is None else zero.astype(np.float32)
        lo, hi = (np.full(steps.shape, end, np.float32) for end in (form.lo, form.hi))
        for node in (*before, *behind):
            ends = _bounds(node)
            if node in before:
                with np.errstate(all="ignore"):
                    ends = [np.rint(end / steps) + point for end in ends]
            ends = [np.clip(end, form.lo, form.hi) for end in ends]
            lo, hi = (np.minimum(np.maximum(code, ends[0]), ends[1]) for code in (lo, hi))
        nodes = (*before, encode, *behind)
        x, y = nodes[0].inputs[_data(nodes[0])], nodes[-1].outputs[0]
        if x is None:
            return None
        shape = facts.get(x, UNKNOWN).shape or ()
        sizes = tuple(size if isinstance(size, int) else None for size in shape)
        site = Site(x, y, nodes, encode, "qdq", Unnamed(), sizes)
        return cls(site, encode, type_name, before, behind, lo, hi, steps, point)

    @property
    def ends(self) -> tuple[Float32 | None, Float32 | None]:
        """The limits of the codes that are narrower than the type."""
        form = FORMATS[self.kind]
        lo = None if (self.lo <= form.lo).all() else self.lo
        return lo, None if (self.hi >= form.hi).all() else self.hi

    @property
    def is_limited(self) -> bool:
        return any(end is not None for end in self.ends)

    def is_written(self, form: ActivationForm) -> bool:
        used, unused = self.before, self.behind
        if form is ActivationForm.CODES:
            if used and self._decoder is not None and not self._follows_a_pair:
                return True  # runtimes merge two pairs in a row
            used, unused = unused, used
        is_unit = form is not ActivationForm.UNITS or not used or self._follows_a_pair
        return not unused and len(used) == self.is_limited and is_unit

    @property
    def _decoder(self) -> ir.Node | None:
        """The node that decodes the limited data from codes, if one does."""
        return producer_of(self.before[0].inputs[_data(self.before[0])], "DequantizeLinear")

    @property
    def _follows_a_pair(self) -> bool:
        """Whether the limited data are decoded from codes with the same parameters."""
        decode = self._decoder
        if decode is None:
            return False
        scale, zero = (constant_expression(each) for each in inputs_of(decode, 3)[1:])
        zero = np.zeros_like(self.zero_point) if zero is None else zero
        pairs = (scale, self.scale), (zero, self.zero_point)
        return all(a is not None and np.array_equal(a, b) for a, b in pairs)

    def obstacle(self, form: ActivationForm) -> ExplainedReason | None:
        """Return why the form cannot be written, or None."""
        if self.is_limited and self.kind not in CLIPPABLE:
            return NO_OPERATOR(f"runtimes have no Clip of codes of type {self.kind}")
        if any(end is not None and np.unique(end).size > 1 for end in self._limits(form)):
            return UNSUITED_RANGE(
                f"its limits are other {form} in each channel, and Clip has one for all; give it "
                "one scale first, with -p move-channel-scales"
            )
        return None

    def _limits(self, form: ActivationForm) -> list[Float32 | None]:
        if form is ActivationForm.CODES:
            return list(self.ends)
        ends = self.ends
        return [None if end is None else (end - self.zero_point) * self.scale for end in ends]

    def draft(self, editor: Editor, form: ActivationForm) -> Draft:
        """Return the QuantizeLinear with limits in the given form."""
        draft = editor.draft(self.site)
        x: ir.Value = draft.x
        limits = [None if end is None else end.reshape(-1)[0] for end in self._limits(form)]
        encode, whole = self.encode, FORMATS[self.kind]
        if form is not ActivationForm.CODES and self.is_limited:
            if form is ActivationForm.UNITS:
                x = self._linear(draft, "QuantizeLinear", x)
                x = self._linear(draft, "DequantizeLinear", x)
            bounds = [None if end is None else draft.constant(end, "bound") for end in limits]
            draft.needs(_SINCE_OPERANDS)
            x = draft.node("Clip", [x, *bounds], dtype=ir.DataType.FLOAT)
        codes = self._linear(draft, encode.op_type, x)
        if form is ActivationForm.CODES and self.is_limited:
            ends = zip(limits, (whole.lo, whole.hi), strict=True)
            lo, hi = (float(end if limit is None else limit) for limit, end in ends)
            codes = clip_codes(draft, codes, lo, hi, self.kind)
        return draft.giving(codes)

    def _linear(self, draft: Draft, name: str, x: ir.Value) -> ir.Value:
        """Append the QuantizeLinear, or a DequantizeLinear with its parameters."""
        node, gives_codes = self.encode, name == "QuantizeLinear"
        dtype = ir.DataType[self.kind] if gives_codes else ir.DataType.FLOAT
        attributes = dict(node.attributes)
        if not gives_codes:
            attributes = {key: each for key, each in attributes.items() if key == "axis"}
        operands = [x, *node.inputs[1:]]
        return draft.node(name, operands, attributes, domain=node.domain, dtype=dtype)


def _before(encode: ir.Node) -> tuple[tuple[ir.Node, ...], ExplainedReason | None]:
    """Return the nodes that limit the data, in order, and why the first one is excluded."""
    nodes: list[ir.Node] = []
    value = encode.inputs[0]
    while value is not None and (node := value.producer()) is not None and _bounds(node):
        if len(value.uses()) > 1 or value.is_graph_output():
            users = {user.op_type for user in value.consumers()} - {"QuantizeLinear"}
            return tuple(nodes), USED_ELSEWHERE(
                f"what {title(node)} gives is also used by "
                f"{', '.join(sorted(users)) or 'another quantizer or an output'}, so it stays"
            )
        nodes.insert(0, node)
        value = node.inputs[_data(node)]
    return tuple(nodes), None


def _behind(encode: ir.Node) -> Iterator[ir.Node]:
    """Yield the Clips of codes after a QuantizeLinear."""
    value = encode.outputs[0]
    while len(users := value.consumers()) == 1 and not value.is_graph_output():
        (node,) = users
        if node.op_type not in ("Clip", "Relu") or not _bounds(node) or node.inputs[0] is not value:
            return
        yield node
        value = node.outputs[0]


def _data(node: ir.Node) -> int:
    """Return the index of the operand that is not constant."""
    return int(node.op_type in ("Max", "Min") and constant_expression(node.inputs[0]) is not None)


def _bounds(node: ir.Node) -> list[Float32]:
    """Return the constant limits of a node's result; none if it does more than limit data."""
    if node.domain:
        return []
    if node.op_type in ("Relu", "Clip"):
        return [np.asarray(end, np.float32) for end in clip_limits(node) or ()]
    if node.op_type == "Abs":
        before = producer_of(node.inputs[0])
        ends = [] if before is None else _bounds(before)
        return [-_NONE, _NONE] if ends and min(ends) >= 0 else []  # as separate-limits writes it
    if node.op_type in ("Max", "Min") and len(node.inputs) == 2:
        end = constant_expression(node.inputs[1 - _data(node)])
        if end is None or end.size != 1 or np.isnan(end).any():
            return []
        if constant_expression(node.inputs[_data(node)]) is not None:
            return []
        single = np.asarray(end, np.float32).reshape(())
        return [single, _NONE] if node.op_type == "Max" else [-_NONE, single]
    return []
