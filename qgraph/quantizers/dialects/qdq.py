"""The dialect ``qdq``: QuantizeLinear, Clip and DequantizeLinear, with packed weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.graph.constants import constant_stream
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.schema import LINEAR_DOMAINS, OpKey, code_type
from qgraph.graph.scopes import input_of
from qgraph.graph.sizes import fixed_sizes
from qgraph.numerics import Float32, blocks
from qgraph.numerics.formats import FORMATS, IntFormat, Minifloat
from qgraph.ops.operator import operator_of
from qgraph.quantizers.dialects.dialect import Refusal, Site, dialect, parameter, shape_of
from qgraph.quantizers.dialects.onnx import by_definition
from qgraph.quantizers.dialects.qdq_codes import packed
from qgraph.quantizers.dialects.qdq_pairs import pairs
from qgraph.quantizers.quantizer import Affine, Decoding, Floating, Quantizer, Recipe
from qgraph.reasons import NO_PARTNER

_FEW = 1 << 16
"""Maximum number of stored codes for which parameters of blocks are repeated at reading."""


@dialect
class Qdq:
    """Codes between a QuantizeLinear and a DequantizeLinear; constants stored as codes."""

    name: ClassVar[str] = "qdq"
    roots: ClassVar[frozenset[OpKey]] = frozenset(
        OpKey(domain, name)
        for domain in LINEAR_DOMAINS
        for name in ("QuantizeLinear", "DequantizeLinear")
    )

    def read(self, node: ir.Node) -> Site | Refusal | None:
        """Return the quantizer that ends in the DequantizeLinear ``node``."""
        if node.op_type == "QuantizeLinear":
            return _lone_quantize(node)
        nodes = _chain(node)
        x = nodes[0].inputs[0]
        if x is None:
            return None
        if len(nodes) == 1 and constant_stream(x) is None:
            source = x.producer()
            if source is not None and source.op_type == "DynamicQuantizeLinear":
                return None
            origin = "a graph input" if source is None else f"the output of {source.op_type}"
            reason = f"its codes are {origin}, not of a QuantizeLinear"
            return Refusal(node, NO_PARTNER(reason + _way_out(source)))
        stream = constant_stream(x)
        few = stream is None or stream.size <= _FEW
        repeats = None if few else _repeats(nodes, x)
        meaning, shape = _meaning(nodes, x, expands=repeats is None)
        return Site(x, node.outputs[0], nodes, node, self.name, meaning, shape, stream, repeats)

    def spellings(self, site: Site, editor: Editor) -> Iterator[Draft]:
        """Yield codes of a constant; then pairs, from the pair alone to float operators."""
        if site.weight is not None:
            yield from packed(site, editor)
        yield from pairs(site, editor)
        if site.dialect != "onnx":
            yield from by_definition(site, editor)

    def reason(self, site: Site) -> str:
        """Return why no form is equal."""
        return "neither a pair nor a form with the same float operations is equal"


def _chain(node: ir.Node) -> tuple[ir.Node, ...]:
    """Return the nodes QuantizeLinear, Clip and DequantizeLinear, as far as present."""
    nodes = [node]
    while (value := nodes[0].inputs[0]) is not None and (producer := value.producer()) is not None:
        if producer.op_type == "QuantizeLinear" and producer.domain in LINEAR_DOMAINS:
            nodes.insert(0, producer)
            break
        if producer.op_type != "Clip" or len(nodes) > 1 or producer.domain != "":
            break
        nodes.insert(0, producer)
    if nodes[0].op_type == "Clip" and nodes[0].inputs[0] is not None:
        # A Clip on stored codes belongs to the weight; other Clips are not part of the quantizer.
        return tuple(nodes) if constant_stream(nodes[0].inputs[0]) is not None else tuple(nodes[1:])
    return tuple(nodes)


def _lone_quantize(node: ir.Node) -> Refusal | None:
    users = [use.node for use in node.outputs[0].uses()]
    users += [
        use.node for user in users if user.op_type == "Clip" for use in user.outputs[0].uses()
    ]
    if any(user.op_type == "DequantizeLinear" for user in users):
        return None
    names = ", ".join(sorted({user.op_type for user in users})) or "an output of the graph"
    reason = f"its codes go to {names}, not to a DequantizeLinear"
    return Refusal(node, NO_PARTNER(reason + _way_out(*users)))


def _way_out(*others: ir.Node | None) -> str:
    """Return a remedy for codes without a pair, such as the pass that lowers operators on codes."""
    from qgraph.ops.integer.kernels import is_on_codes

    if others and all(node is not None and is_on_codes(node) for node in others):
        return (
            "; apply -p lower-integer-operators first, with {form=qdq,exact=near} if that operator "
            "has no exact form"
        )
    return "; leave it if codes are meant there, or add the other node of the pair"


def _repeats(nodes: tuple[ir.Node, ...], x: ir.Value) -> blocks.Repeats | None:
    """Return how parameters of blocks are repeated; None without blocks, or with several kinds."""
    kinds = {
        (node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0))
        for node in nodes
        if node.op_type != "Clip"
    }
    axis, size = kinds.pop()
    sizes = fixed_sizes(x)
    if kinds or not size or sizes is None or not -len(sizes) <= axis < len(sizes):
        return None
    lengths = tuple(length for length in sizes if length is not None)
    return blocks.Repeats(lengths, axis % len(sizes), size) if len(lengths) == len(sizes) else None


def _meaning(
    nodes: tuple[ir.Node, ...], x: ir.Value, *, expands: bool
) -> tuple[Quantizer, tuple[int | None, ...]]:
    """Return the quantizer and the shape of its data.

    Without ``expands`` everything is checked, but parameters of blocks are not repeated.
    """
    decode = nodes[-1]
    scale, zero_point, storage = _parameters(decode, x, expands=expands)
    shape = shape_of(x, scale)
    decoding = None
    encode = nodes[0]
    if encode.op_type == "QuantizeLinear" and len(nodes) > 1 and not _is_like(encode, decode):
        decoding = Decoding(scale, zero_point)
        scale, zero_point, storage = _parameters(encode, x, expands=expands)
        parameters = zip((scale, zero_point), vars(decoding).values(), strict=True)
        if all(np.array_equal(one, other) for one, other in parameters):
            decoding = None
    form = FORMATS.get(storage)
    if decoding is not None and not isinstance(form, IntFormat):
        raise OperatorError(
            f"{where(decode)}: its scale differs from that of {nodes[0].name!r}, so the pair is "
            f"not a quantizer to a minifloat. Give both the same scale, or remove the scales."
        )
    if not isinstance(form, IntFormat):
        if not isinstance(form, Minifloat):
            raise OperatorError(f"{where(decode)}: codes of type {storage} are not a number format")
        saturates = nodes[0].attributes.get_int("saturate", 1) != 0
        return Floating(scale, form, saturating=saturates), shape
    lo, hi = _clip_bounds(nodes, form)
    return Affine(scale, zero_point, lo, hi, recipe=Recipe.ROUND_FIRST, decoding=decoding), shape


def _is_like(one: ir.Node, other: ir.Node) -> bool:
    """Return whether two nodes read one scale and one zero point, without attributes."""
    has_zero, is_same = input_of(one, 2) is not None, one.inputs[1:] == other.inputs[1:]
    return has_zero and is_same and not (one.attributes or other.attributes)


def _parameters(node: ir.Node, x: ir.Value, *, expands: bool) -> tuple[Float32, Float32, str]:
    """Return scale and zero point, broadcastable to the data, and the type of the codes."""
    operator = operator_of(node)
    if operator is None:
        raise OperatorError(f"{where(node)}: the operator is unknown")
    attributes = operator.schema.attributes_of(node)
    _, scale_value, zero_value = operator.schema.values(node)
    scale = parameter(node, scale_value, "scale")
    zero = np.zeros_like(scale) if zero_value is None else parameter(node, zero_value, "zero point")
    sizes: list[int] = []
    if scale.size > 1 or attributes["block_size"]:
        sizes = _sizes(node, x, scale, attributes)
    try:
        blocks.expect_one_shape(scale, zero)
        scale, zero = (
            blocks.align(each, sizes, attributes["axis"], attributes["block_size"], expands=expands)
            for each in (scale, zero)
        )
    except ValueError as error:
        raise OperatorError(f"{where(node)}: {error}") from error
    return scale, zero, (code_type(node) or ir.DataType.UINT8).name


def _sizes(node: ir.Node, x: ir.Value, scale: Float32, attributes: dict[str, Any]) -> list[int]:
    """Return the sizes of the data to which a scale is aligned."""
    axis, is_blocked = attributes["axis"], bool(attributes["block_size"])
    shape = None if x.shape is None else tuple(x.shape)
    if shape is not None and not -len(shape) <= axis < len(shape):
        raise OperatorError(
            f"{where(node)}: axis {axis} does not exist in data of {len(shape)} axes, expected "
            f"{-len(shape)} to {len(shape) - 1}. Correct the model's exporter."
        )
    if is_blocked:
        if shape is None or len(shape) != scale.ndim or not isinstance(shape[axis], int):
            raise OperatorError(
                f"{where(node)}: the size of {x.name!r} along axis {axis} is unknown, so blocks "
                f"cannot be placed. Give this axis a fixed size."
            )
        # Along the other axes each element has its own scale.
        pairs = zip(shape, scale.shape, strict=True)
        return [size if isinstance(size, int) else count for size, count in pairs]
    if shape is None and axis < 0:
        return [scale.size, *[1] * (-axis - 1)]
    if shape is None:
        raise OperatorError(
            f"{where(node)}: the rank of {x.name!r} is unknown and cannot be inferred, so axis "
            f"{axis} cannot be placed. State its shape in the model."
        )
    sizes = [size if isinstance(size, int) else None for size in shape]
    sizes[axis] = sizes[axis] or scale.size
    return [size or 1 for size in sizes]


def _clip_bounds(nodes: tuple[ir.Node, ...], form: IntFormat) -> tuple[Float32, Float32]:
    lo, hi = np.asarray(form.lo, np.float32), np.asarray(form.hi, np.float32)
    for node in nodes:
        if node.op_type != "Clip":
            continue
        bounds = [
            None if value is None else parameter(node, value, "bound")
            for value in (*node.inputs[1:], None, None)[:2]
        ]
        if wrong := [each.shape for each in bounds if each is not None and each.size != 1]:
            raise OperatorError(
                f"{where(node)}: a bound has shape {list(wrong[0])}, expected a scalar. Use Min "
                "and Max."
            )
        lo = lo if bounds[0] is None else np.asarray(np.maximum(lo, bounds[0].reshape(())))
        hi = hi if bounds[1] is None else np.asarray(np.minimum(hi, bounds[1].reshape(())))
    return lo, hi
