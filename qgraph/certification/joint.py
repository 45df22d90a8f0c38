"""Deciding a region with two inputs, both of which quantizers leave few values.

There are too many pairs of floats to try, but not of codes: all inputs on which the quantizers at
the entries have one value each are one case. A case is run once, by the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.certification.certificate import Cases
from qgraph.certification.regions import Nodes, Outcome, all_values, run_nodes
from qgraph.exactness import Exactness, Method, Witness
from qgraph.graph.topology import gates
from qgraph.matching.elementwise import is_reshape, joined, operands
from qgraph.matching.match import Pair
from qgraph.matching.zero_sight import sees
from qgraph.numerics.values import compare_values, is_nan
from qgraph.proof.cone import lower
from qgraph.proof.expression import Builder, Undecidable
from qgraph.proof.keys import from_keys
from qgraph.proof.plateaus import Plateaus, plateaus

Array = npt.NDArray[Any]

_CASES = 1 << 22
_BOXES = 1 << 20
_NARROW_BITS = 8
_SPECIAL = np.array([-np.inf, np.inf, np.nan], np.float32)


@dataclass(frozen=True, eq=False)
class JointCut:
    """A region between two entries and an exit on both sides.

    Attributes:
        entries: two pairs of equal values.
        exit: the pair of values to compare.
    """

    entries: tuple[Pair, ...]
    exit: Pair


def between(
    end: ir.Value, starts: Sequence[ir.Value], is_known: Callable[[ir.Value], bool]
) -> list[ir.Node] | None:
    """Return the nodes that make ``end`` of ``starts``, operands first; None if others take part.

    Args:
        end: the result.
        starts: values at which the way back ends.
        is_known: whether a value is constant.
    """
    found: dict[ir.Node, None] = {}
    stack: list[tuple[ir.Value, bool]] = [(end, False)]
    while stack:
        value, ready = stack.pop()
        node = value.producer()
        if any(value is start for start in starts):
            continue
        sources = joined(value, is_known)
        if node is None or not sources:
            return None
        if ready:
            found[node] = None
        elif node not in found:
            stack.append((value, True))
            stack += [(source, False) for source in sources]
    return list(found)


def decide_joint(models: tuple[Nodes, Nodes], region: JointCut) -> Outcome:
    """Compare both sides for every case; counts are of cases.

    Raises:
        Undecidable: an entry has too many values, or parameters vary by channel.
    """
    parts = []
    for place, model in enumerate(models):
        starts = [pair[place] for pair in region.entries]
        nodes = between(region.exit[place], starts, model.known.has)
        if nodes is None:
            raise Undecidable("it does not only depend on two values")
        _check_parameters(model, nodes)
        parts.append(nodes)
    (first, one), (second, other) = (_cases(models, parts, entry) for entry in region.entries)
    if first.size * second.size > _CASES:
        raise Undecidable(f"there are {first.size} x {second.size} cases, too many to try")
    x, z = np.repeat(first, second.size), np.tile(second, first.size)
    results = [
        run_nodes(
            model,
            nodes,
            {region.entries[0][place]: x, region.entries[1][place]: z},
            region.exit[place],
        )
        for place, (model, nodes) in enumerate(zip(models, parts, strict=True))
    ]
    if results[0].dtype != results[1].dtype or results[0].shape != results[1].shape:
        raise Undecidable("the results are of different types or shapes")
    special = is_nan(x) | is_nan(z)
    numbers = [result[~special] for result in results]
    found = compare_values(*numbers)
    at_nan = compare_values(*(result[special] for result in results))
    witness = None
    if found.differing and found.place is not None:
        at = (array[found.place] for array in (x[~special], *numbers))
        witness = Witness(*map(float, at))
    return Outcome(
        # zeros of both signs are one case, so nothing is said about them
        min(found.rung, Exactness.VALUES),
        Method.EXHAUSTIVE,
        differing=found.differing,
        zero_sign=max(1, found.zero_sign),
        witness=witness,
        nan_differs=at_nan.rung < Exactness.BITS,
        reason=f"{np.count_nonzero(~special)} pairs of values of two inputs were tried",
        cases=(one, other),
    )


def _check_parameters(model: Nodes, nodes: Sequence[ir.Node]) -> None:
    for node in nodes:
        if is_reshape(node):
            raise Undecidable("it has two inputs, and reshapes data")
        data = []
        for value in node.inputs:
            array = None if value is None else model.known.array(value)
            if array is not None and array.size > 1:
                raise Undecidable("it has two inputs, and parameters that vary by channel")
            if array is None and value is not None:
                data.append(value)
        if sees(node, data):
            # zeros of both signs are one case
            raise Undecidable(f"it has two inputs, and {node.op_type} sees the sign of zeros")


def _cases(
    models: tuple[Nodes, Nodes], parts: Sequence[Sequence[ir.Node]], entry: Pair
) -> tuple[Array, Cases]:
    """Return values of an entry so that every value has the results of one of them, and why."""
    dtype = entry[0].dtype or entry[1].dtype
    if dtype is None:
        raise Undecidable("the type of one of its two inputs is not known")
    if dtype is not ir.DataType.FLOAT:
        if dtype.bitwidth > _NARROW_BITS or not dtype.is_integer():
            raise Undecidable(f"one of its two inputs is {dtype.name}")
        return all_values(dtype), Cases(None, None)
    for name, model, value in zip(("reference", "candidate"), models, entry, strict=True):
        found = _levels(name, model, value)
        if found is not None:
            return found
    keys: list[Array] = []
    for model, nodes, value in zip(models, parts, entry, strict=True):
        for end in _quantized(model, nodes, value):
            chain = between(end, [value], model.known.has) or []
            keys.append(_steps(model, chain, value, end).lo)
    starts = np.unique(np.concatenate(keys))
    return np.concatenate([from_keys(starts), _SPECIAL]), Cases(None, None, tuple(starts.tolist()))


def _levels(name: str, model: Nodes, value: ir.Value) -> tuple[Array, Cases] | None:
    """Return the values that a quantizer of the model ``name`` lets a value have, and their inputs.

    None is returned where no quantizer does.
    """
    chain = gates(value, lambda v: operands(v, model.known.has))
    for start in chain[1:]:
        if start.dtype is not ir.DataType.FLOAT:
            # other types compute otherwise than the real numbers of the steps
            continue
        nodes = between(value, [start], model.known.has)
        try:
            found = _steps(model, nodes or [], start, value)
        except Undecidable:
            continue
        beyond = run_nodes(model, nodes or [], {start: _SPECIAL}, value)
        levels = np.unique(np.concatenate([found.value, beyond, _SPECIAL[-1:]]))
        return levels, Cases(name, str(start.name), tuple(found.lo.tolist()))
    return None


def _quantized(model: Nodes, nodes: Sequence[ir.Node], entry: ir.Value) -> list[ir.Value]:
    """Return the values made of ``entry`` alone that nodes join with what else there is."""
    alone = {entry}
    for node in nodes:
        sources = joined(node.outputs[0], model.known.has)
        if alone.issuperset(sources):
            alone.add(node.outputs[0])
    ends = []
    for value in alone:
        users = [node for node in nodes if value in node.inputs]
        if any(node.outputs[0] not in alone for node in users):
            ends.append(value)
    return ends


def _steps(model: Nodes, nodes: Sequence[ir.Node], x: ir.Value, y: ir.Value) -> Plateaus:
    _check_parameters(model, nodes)
    return plateaus(
        lower(nodes, x, y, (), Builder(), constants=model.known.array), max_boxes=_BOXES
    )
