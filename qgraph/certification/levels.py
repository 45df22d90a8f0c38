"""What the entries of a region with two inputs may be: evidence for a checker."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qgraph.certification.certificate import Cases
from qgraph.certification.joint import between
from qgraph.graph.topology import gates
from qgraph.matching.elementwise import joined
from qgraph.matching.match import Pair, Side
from qgraph.proof.cone import lower
from qgraph.proof.expression import Builder, Undecidable
from qgraph.proof.plateaus import Plateaus, plateaus

_MAX_BOXES = 1 << 20


def cases(models: tuple[Side, Side], entries: Sequence[Pair], exit_: Pair) -> tuple[Cases, ...]:
    """Return how the values of each entry divide into cases.

    Args:
        models: the reference and the candidate.
        entries: pairs of equal values.
        exit_: what is made of them.

    Raises:
        Undecidable: the values of an entry are too many.
    """
    return tuple(_cases(models, entries, entry, exit_) for entry in entries)


def _cases(models: tuple[Side, Side], entries: Sequence[Pair], entry: Pair, exit_: Pair) -> Cases:
    if (entry[0].dtype or entry[1].dtype or ir.DataType.FLOAT) is not ir.DataType.FLOAT:
        return Cases(None, None)
    for name, model, value in zip(("reference", "candidate"), models, entry, strict=True):
        for start in gates(value, model.operands)[1:]:
            try:
                if start.dtype is ir.DataType.FLOAT:
                    found = _plateaus(model, start, value)
                    return Cases(name, str(start.name), tuple(found.lo.tolist()))
            except Undecidable:
                continue
    keys = []
    for place, (model, value) in enumerate(zip(models, entry, strict=True)):
        nodes = between(exit_[place], [pair[place] for pair in entries], model.known.has) or []
        keys += [_plateaus(model, value, end).lo for end in _fronts(model, nodes, value)]
    return Cases(None, None, tuple(np.unique(np.concatenate(keys)).tolist()) if keys else ())


def _plateaus(model: Side, x: ir.Value, y: ir.Value) -> Plateaus:
    nodes = between(y, [x], model.known.has) or []
    return plateaus(
        lower(nodes, x, y, (), Builder(), constants=model.known.array), max_boxes=_MAX_BOXES
    )


def _fronts(model: Side, nodes: Sequence[ir.Node], entry: ir.Value) -> list[ir.Value]:
    """Return the values made of ``entry`` alone that nodes join with what else there is."""
    alone = {entry: None}
    for node in nodes:
        if all(value in alone for value in joined(node.outputs[0], model.known.has)):
            alone[node.outputs[0]] = None
    others = [node for node in nodes if node.outputs[0] not in alone]
    return [value for value in alone if any(value in node.inputs for node in others)]
