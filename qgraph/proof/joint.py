"""Deciding a region with two inputs, both of which quantizers leave few values.

There are too many pairs of floats to try, but not of codes: all inputs on which the quantizers at
the entries have one value each are one case. A case is run once, by the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.certificate import Cases
from qgraph.exactness import Exactness, Method, Verdict, Witness
from qgraph.graph.interface import Pair
from qgraph.graph.slices import between, dominators
from qgraph.numerics.float32 import from_keys
from qgraph.numerics.values import compare_values, is_nan
from qgraph.proof.functions.decide import Outcome, remarks
from qgraph.proof.functions.enumeration import all_values
from qgraph.proof.functions.expression import Builder, Undecidable
from qgraph.proof.functions.lowering import lower
from qgraph.proof.functions.search import Plateaus, plateaus
from qgraph.proof.matching.classes import Side
from qgraph.proof.matching.match import Matching
from qgraph.proof.matching.operators import is_reshape
from qgraph.proof.matching.visible import distinguishes_signed_zeros
from qgraph.proof.regions import run_nodes

Array = npt.NDArray[Any]

_CASES = 1 << 22
_BOXES = 1 << 20
_NARROW_BITS = 8
_SPECIAL = np.array([-np.inf, np.inf, np.nan], np.float32)


def decide_joint(matching: Matching, entries: Sequence[Pair], exit_: Pair) -> Outcome:
    """Compare both sides for every case; counts are of cases.

    Args:
        matching: of the two models.
        entries: two pairs of equal values, from which both sides are computed.
        exit_: the pair of values to compare.

    Raises:
        Undecidable: an entry has too many values, or parameters vary by channel.
    """
    sides = matching.reference, matching.candidate
    parts = []
    for side, end, *starts in zip(sides, exit_, *entries, strict=True):
        nodes = between(end, starts, side.joined)
        if nodes is None:
            raise Undecidable("it does not only depend on two values")
        _check_parameters(side, nodes)
        parts.append(nodes)
    (first, one), (second, other) = (_cases(sides, parts, entry) for entry in entries)
    if first.size * second.size > _CASES:
        raise Undecidable(f"there are {first.size} x {second.size} cases, too many to try")
    x, z = np.repeat(first, second.size), np.tile(second, first.size)
    results = [
        run_nodes(side, nodes, {a: x, b: z}, end)
        for side, nodes, end, a, b in zip(sides, parts, exit_, *entries, strict=True)
    ]
    if results[0].dtype != results[1].dtype or results[0].shape != results[1].shape:
        raise Undecidable("the results are of different types or shapes")
    special = is_nan(x) | is_nan(z)
    numbers = [result[~special] for result in results]
    found = compare_values(*numbers)
    at_nan = compare_values(*(result[special] for result in results))
    nan_differs = Exactness.of(at_nan) < Exactness.BITS
    witness = None
    if found.differing and found.place is not None:
        at = (array[found.place] for array in (x[~special], *numbers))
        witness = Witness(*map(float, at))
    reason = f"{np.count_nonzero(~special)} pairs of values of two inputs were tried"
    verdict = Verdict(
        # zeros of both signs are one case, so nothing is claimed about them
        min(Exactness.of(found), Exactness.VALUES),
        Method.EXHAUSTIVE,
        found.differing,
        max(1, found.zero_sign),
        witness,
        remarks(reason, nan=nan_differs),
        nan_differs=nan_differs,
    )
    return Outcome(verdict, cases=(one, other))


def _check_parameters(side: Side, nodes: Sequence[ir.Node]) -> None:
    for node in nodes:
        if is_reshape(node):
            raise Undecidable("it has two inputs, and reshapes data")
        data = []
        for value in node.inputs:
            array = None if value is None else side.known.array(value)
            if array is not None and array.size > 1:
                raise Undecidable("it has two inputs, and parameters that vary by channel")
            if array is None and value is not None:
                data.append(value)
        if distinguishes_signed_zeros(node, data):
            # zeros of both signs are one case
            raise Undecidable(f"it has two inputs, and {node.op_type} sees the sign of zeros")


def _cases(
    sides: tuple[Side, Side], parts: Sequence[Sequence[ir.Node]], entry: Pair
) -> tuple[Array, Cases]:
    """Return values of an entry so that every value has the results of one of them, and why."""
    dtype = entry[0].dtype or entry[1].dtype
    if dtype is None:
        raise Undecidable("the type of one of its two inputs is not known")
    if dtype is not ir.DataType.FLOAT:
        if dtype.bitwidth > _NARROW_BITS or not dtype.is_integer():
            raise Undecidable(f"one of its two inputs is {dtype.name}")
        return all_values(dtype), Cases(None, None)
    for name, side, value in zip(("reference", "candidate"), sides, entry, strict=True):
        found = _levels(name, side, value)
        if found is not None:
            return found
    keys: list[Array] = []
    for side, nodes, value in zip(sides, parts, entry, strict=True):
        for end in _quantized(side, nodes, value):
            chain = between(end, [value], side.joined) or []
            keys.append(_steps(side, chain, value, end).lo)
    starts = np.unique(np.concatenate(keys))
    return np.concatenate([from_keys(starts), _SPECIAL]), Cases(None, None, tuple(starts.tolist()))


def _levels(name: str, side: Side, value: ir.Value) -> tuple[Array, Cases] | None:
    """Return the values that a quantizer of the model ``name`` lets a value have, and their inputs.

    None is returned where no quantizer does.
    """
    chain = dominators(value, side.operands)
    for start in chain[1:]:
        if start.dtype is not ir.DataType.FLOAT:
            # other types compute otherwise than the real numbers of the steps
            continue
        nodes = between(value, [start], side.joined)
        try:
            found = _steps(side, nodes or [], start, value)
        except Undecidable:
            continue
        beyond = run_nodes(side, nodes or [], {start: _SPECIAL}, value)
        levels = np.unique(np.concatenate([found.value, beyond, _SPECIAL[-1:]]))
        return levels, Cases(name, str(start.name), tuple(found.lo.tolist()))
    return None


def _quantized(side: Side, nodes: Sequence[ir.Node], entry: ir.Value) -> list[ir.Value]:
    """Return the values made of ``entry`` alone that nodes join with what else there is."""
    alone = {entry}
    for node in nodes:
        sources = side.joined(node.outputs[0])
        if alone.issuperset(sources):
            alone.add(node.outputs[0])
    ends = []
    for value in alone:
        users = [node for node in nodes if value in node.inputs]
        if any(node.outputs[0] not in alone for node in users):
            ends.append(value)
    return ends


def _steps(side: Side, nodes: Sequence[ir.Node], x: ir.Value, y: ir.Value) -> Plateaus:
    _check_parameters(side, nodes)
    return plateaus(lower(nodes, x, y, (), Builder(), constants=side.known.array), max_boxes=_BOXES)
