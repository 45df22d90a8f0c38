"""Prepare two models and pair their roundings, and the ends that a proof shows equal.

A Relu or Clip after a DequantizeLinear maps all codes beyond a limit to one number. So these codes
can be clipped first, without a change of the result::

    QuantizeLinear, DequantizeLinear, Relu  =  QuantizeLinear, Clip, DequantizeLinear, Relu

Likewise, codes can be clipped before data movement in place of behind it. The clipped codes can be
compared with codes that the other model clips before it rounds. If the result is quantized to the
same codes again, it may be limited once more; then both limits hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import onnx_ir as ir

from qgraph.bound import Bounding
from qgraph.exactness import Exactness
from qgraph.graph.constants import array_of, clip_limits, freeze_inputs
from qgraph.graph.inference.rules import Unknown, given, require
from qgraph.graph.inference.walk import Interface as Shapes, infer, size_limits, with_facts
from qgraph.graph.interface import common_domain, interface
from qgraph.graph.schema import OpKey, versions_of
from qgraph.graph.scopes import remove_unused
from qgraph.numerics import Array
from qgraph.ops.static_parameters import freeze_static_parameters
from qgraph.proof.bounds.closure import EqualEnds
from qgraph.proof.bounds.evaluate import written_out
from qgraph.proof.bounds.segments import Ends, Pairing
from qgraph.proof.certify import Proof
from qgraph.proof.discharge import Shown, discharge
from qgraph.proof.forced import adds_bias, fact_of
from qgraph.proof.matching.match import Matching
from qgraph.proof.matching.normalise import fix_static_values, flat
from qgraph.proof.regions import Decided


def paired(
    models: tuple[ir.Model, ir.Model],
    request: Bounding,
    *,
    keep_inputs: bool = False,
    ends: Callable[[Pairing], Ends] | None = None,
) -> Pairing:
    """Return the segments of two models, without comparison to limits.

    If ``keep_inputs``, initializers that are also graph inputs stay inputs. Raises OptionError if a
    range or a limit names no input or output.
    """
    copies = [flat(model) for model in models]
    for copy in copies:
        if not keep_inputs:
            freeze_inputs(copy)
        freeze_static_parameters(copy)
        remove_unused(reversed(list(copy.graph)))
    domain = common_domain(*copies)
    for copy, each in zip(copies, domain.interfaces, strict=True):
        if fix_static_values(copy.graph, infer(copy, each)):
            remove_unused(reversed(list(copy.graph)))
    copies = [with_facts(copy, each) for copy, each in zip(copies, domain.interfaces, strict=True)]
    if sum(written_out(copy) for copy in copies):
        faces = domain.interfaces
        copies = [with_facts(copy, each) for copy, each in zip(copies, faces, strict=True)]
    limits = _limits(copies[0], domain.interfaces[0])
    face = interface(copies[0].graph, copies[1].graph)
    Bounding.of(request, *([a for a, _ in pairs] for pairs in (face.inputs, face.outputs)))
    limited = with_limited_codes(copies)
    segments = partial(Pairing, request=request, ends=ends, limits=limits)
    pairing = segments(copies)
    if limited is None or not _unlike(pairing):
        return pairing
    return min(pairing, segments(limited), key=_unlike)


def _limits(reference: ir.Model, shapes: Shapes) -> dict[str, int]:
    """Return upper bounds of open sizes; the reference cannot run with larger sizes."""
    if all(isinstance(size, int) for shape in shapes.values() for size in shape):
        return {}
    return size_limits(reference, shapes)


def _unlike(pairing: Pairing) -> int:
    """Return the number of segments without a bound, or whose codes have different limits."""
    return sum(s.reason is not None or bool(s.extra.any()) for s in pairing.segments)


_CLIP = OpKey("", "Clip")
_LIMITING = frozenset({OpKey("", "Relu"), _CLIP})
_MOVING = frozenset(OpKey("", name) for name in ("MaxPool", "Reshape", "Transpose"))
"""Operators that can be exchanged with a limit of all elements."""
_DECODING = OpKey("", "DequantizeLinear")
_ROUNDING = frozenset({"QuantizeLinear", "QLinearConv", "QLinearMatMul"})
_TYPES = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
_FIRST_VERSION = 12
"""First version of Clip that accepts integers."""


def with_limited_codes(models: Sequence[ir.Model]) -> list[ir.Model] | None:
    """Return copies with a Clip of codes before each decoder that a Relu or Clip follows, or None.

    Likewise before data movement that a Clip of codes follows. Nothing is inserted if other nodes
    use the codes or their decoded values.
    """
    if all(next(_places(model), None) is None for model in models):
        return None
    copies = [model.clone() for model in models]
    for copy in copies:
        for reader, ends in list(_places(copy)):
            _insert(copy.graph, reader, ends)
    return copies


def _places(model: ir.Model) -> Iterator[tuple[ir.Node, Sequence[Array]]]:
    """Yield nodes that decode or move codes, and the limits to which their codes can be clipped."""
    if versions_of(model.opset_imports).get("", 0) < _FIRST_VERSION:
        return
    for node in list(model.graph):
        with suppress(Unknown):
            require(OpKey.of(node) in _LIMITING)
            decode = _producer(node)
            require(OpKey.of(decode) == _DECODING and _producer(decode).op_type in _ROUNDING)
            yield decode, _limits_of_codes(node, decode)
        with suppress(Unknown):
            require(OpKey.of(node) == _CLIP and given(node.inputs[0]).dtype in _TYPES)
            moving, ends = _producer(node), given(clip_limits(node))
            require(OpKey.of(moving) in _MOVING and len(moving.outputs) == 1)
            while OpKey.of(before := _producer(moving)) in _MOVING and len(before.outputs) == 1:
                moving = before
            require(before.op_type in _ROUNDING)
            kind = given(moving.inputs[0]).dtype
            yield moving, _as_codes(ends, given(kind))


def _producer(node: ir.Node) -> ir.Node:
    """Return the node that computes the data of a node, if nothing else uses the data."""
    data = given(node.inputs[0])
    require(len(data.uses()) == 1 and not data.is_graph_output())
    return given(data.producer())


def _limits_of_codes(node: ir.Node, decode: ir.Node) -> list[Array]:
    """Return the codes beyond which a node has a constant result, if they are known."""
    dtype, ends = given(given(decode.inputs[0]).dtype), given(clip_limits(node))
    parameters = [given(array_of(given(value))) for value in decode.inputs[1:]]
    scale, zero = (*parameters, np.zeros((), dtype.numpy()))[:2]
    require(dtype in _TYPES and ends[0] <= ends[1] and zero.size)
    require(given(decode.outputs[0].dtype).numpy() == scale.dtype)
    require((scale > 0).all() and np.isfinite(scale).all())
    require((zero == zero.reshape(-1)[0]).all())
    kind = np.iinfo(dtype.numpy())
    codes = np.arange(kind.min, kind.max + 1)
    steps = (codes - int(zero.reshape(-1)[0])).astype(scale.dtype)
    # As executed: a limit that is the decoded value of a code need not be its real value.
    values = np.clip(steps * scale.reshape(-1, 1), *ends)
    first, last = ((values == values[:, [end]]).all(axis=0) for end in (0, -1))
    outer = codes[first].max(), codes[last].min()
    low, high = _limits_behind(node, decode)
    return _as_codes((max(outer[0], low), min(outer[1], high)), dtype)


def _as_codes(ends: tuple[float, float], dtype: ir.DataType) -> list[Array]:
    """Return limits as codes of a type."""
    require(ends[0] <= ends[1])
    kind = np.iinfo(dtype.numpy())
    return [np.array(np.clip(end, kind.min, kind.max), kind.dtype) for end in ends]


def _limits_behind(node: ir.Node, decode: ir.Node) -> tuple[float, float]:
    """Return limits of the codes to which a limited result is quantized again, or no limits."""
    with suppress(Unknown):
        quantize = _only_reader(node)
        decode_again = _only_reader(quantize)
        limit = _only_reader(decode_again)
        require(quantize.op_type == "QuantizeLinear" and OpKey.of(limit) in _LIMITING)
        codes = given(decode.inputs[0]), given(quantize.outputs[0])
        require(codes[0].dtype == codes[1].dtype and OpKey.of(decode_again) == _DECODING)
        require(all(_parameters(decode) == _parameters(n) for n in (quantize, decode_again)))
        low, high = _limits_of_codes(limit, decode_again)
        return float(low), float(high)
    return -np.inf, np.inf


def _only_reader(node: ir.Node) -> ir.Node:
    """Return the only node that uses the result of a node, as its data."""
    value = node.outputs[0]
    require(len(value.uses()) == 1 and not value.is_graph_output())
    reader = next(iter(value.uses())).node
    require(reader.inputs[0] is value)
    return reader


def _parameters(node: ir.Node) -> tuple[float, float]:
    """Return the scale and the zero point of a quantizer or decoder with one of each."""
    scale, zero = [*(given(array_of(given(value))) for value in node.inputs[1:]), np.zeros(())][:2]
    require(scale.size == zero.size == 1)
    require(scale.dtype in (np.float32, np.float16))  # bfloat16 gives other codes again
    return float(scale.item()), float(zero.item())


def _insert(graph: ir.Graph, reader: ir.Node, ends: Sequence[Array]) -> None:
    codes = reader.inputs[0]
    if codes is None:
        raise AssertionError("a node that reads codes has codes")
    constants = []
    for name, end in zip(("low", "high"), ends, strict=True):
        value = ir.Value(name=f"{codes.name}_{name}", const_value=ir.tensor(end))
        graph.register_initializer(value)
        constants.append(value)
    limited = ir.Value(name=f"{codes.name}_limited", type=codes.type, shape=codes.shape)
    graph.insert_before(reader, ir.Node("", "Clip", [codes, *constants], outputs=[limited]))
    reader.replace_input_with(0, limited)


def shown_ends(
    proof: Proof, level: Exactness, decided: Decided | None = None
) -> Callable[[Pairing], EqualEnds]:
    """Return what decides which segments end in equal values; ``decided`` are known outcomes."""
    named = _named(proof.matching, level, Decided() if decided is None else decided)
    facts = [fact_of(s) for s in (*proof.shown, *named) if s.verdict.reaches(level)]
    return partial(EqualEnds, proof.matching, facts)


def _named(matching: Matching, level: Exactness, decided: Decided) -> Iterator[Shown]:
    """Yield claims about values of equal names, if the matching does not use names.

    A matching without names has fewer claims, of larger regions: a difference in one of them hides
    that most of its values are equal. Claims that depend on conditions are left out.
    """
    named = matching.named()
    for s in () if named is None else discharge(named, level, decided):
        if named is not None and not (s.loses_zero_sign or adds_bias(named, s)):
            yield s
