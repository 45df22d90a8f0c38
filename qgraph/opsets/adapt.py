"""What to do to a node of the standard domain when the opset around it is raised.

Operators get new versions all the time, most of which only take more types or spell a text anew;
:mod:`qgraph.opsets.history` lists those, :mod:`qgraph.opsets.rewrites` the others. A version that
stands in neither is unknown, and nodes are not raised over it.
"""

from __future__ import annotations

import onnx_ir as ir

from qgraph.errors import UnsupportedError, where
from qgraph.graph.edit import Editor
from qgraph.graph.inference.walk import Facts
from qgraph.opsets.change import Change
from qgraph.opsets.history import SAME, first_version, is_known, versions_between
from qgraph.opsets.rewrites import ADAPTERS, CONCERNS, SHAPED

OLDEST = 9
"""The lowest opset that can be raised."""

LATEST = 28
"""The highest opset whose operators are known here."""


def adapt(
    node: ir.Node,
    source: int,
    target: int,
    editor: Editor,
    float_type: ir.DataType | None,
    facts: Facts | None,
) -> None:
    """Rewrite ``node``, which means what opset ``source`` says, for opset ``target``.

    Args:
        node: a node of the standard domain.
        source: opset of the graph or function, now.
        target: a higher one.
        editor: gives names and places constants.
        float_type: the only floating type of the model; None if there are several.
        facts: inferred types and shapes, needed where :func:`asks_for_shapes`.

    Raises:
        UnsupportedError: what it computes cannot be said in opset ``target``.
    """
    change = Change(node, source, target, editor, float_type, facts, source)
    if source < OLDEST:
        raise UnsupportedError(
            f"{where(node)}: the opset is {source}; one below {OLDEST} cannot be raised. "
            f"Export the model with opset {target}."
        )
    if not is_known(node.op_type, source):
        first = first_version(node.op_type)
        raise change.refuse(f"the operator came with opset {first} and means nothing before")
    while steps := changes_of(node, change.reached, target):
        change.reached = steps[0]
        rewrite = ADAPTERS.get((node.op_type, steps[0]))
        if rewrite is None:
            raise change.refuse(f"what its version {steps[0]} changed is not known here")
        rewrite(change)


def changes(name: str, source: int, target: int) -> list[int]:
    """Return the opsets after ``source`` up to ``target`` that changed the operator ``name``.

    Versions that are not known here count; the one that introduced the operator does not.
    """
    same = (first_version(name), *SAME.get(name, ()))
    return [step for step in versions_between(name, source, target) if step not in same]


def changes_of(node: ir.Node, source: int, target: int) -> list[int]:
    """Return the opsets after ``source`` up to ``target`` that may have changed a standard node.

    A change that only concerns other attributes or types than those of ``node`` does not count.
    """
    return [
        step
        for step in changes(node.op_type, source, target)
        if (concerns := CONCERNS.get((node.op_type, step))) is None or concerns(node)
    ]


def stays(node: ir.Node, source: int, target: int) -> bool:
    """Return whether a standard node means the same in two opsets as it stands."""
    return is_known(node.op_type, source) and not changes_of(node, source, target)


def asks_for_shapes(node: ir.Node, source: int, target: int) -> bool:
    """Return whether the shapes or types of values matter for raising a standard node."""
    return node.op_type in SHAPED and bool(changes_of(node, source, target))
