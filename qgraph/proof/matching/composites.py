"""Operators that a graph of standard operators defines, replaced by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx_ir as ir

from qgraph.errors import OperatorError, UnsupportedError
from qgraph.graph.edit import Editor
from qgraph.graph.opset.versions import require
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import nodes_of
from qgraph.ops.composite import composite_of, region_of


def unfold(models: Sequence[ir.Model]) -> bool:
    """Replace such operators in all models, in place, if the models differ in them.

    Operators that all models have alike stay: equal operands give equal results. So do nodes that
    their definition does not describe.

    Args:
        models: values have types and shapes.

    Returns:
        Whether a model was changed.
    """
    found = [[node for node in nodes_of(model.graph) if composite_of(node)] for model in models]
    counts = [Counter(map(OpKey.of, nodes)) for nodes in found]
    differing = {key for each in counts for key in each if any(c[key] != each[key] for c in counts)}
    for model, nodes in zip(models, found, strict=True):
        _unfold(model, [node for node in nodes if OpKey.of(node) in differing])
    return bool(differing)


def _unfold(model: ir.Model, nodes: Sequence[ir.Node]) -> None:
    editor = Editor(model)
    drafts = []
    for node in nodes:
        entry, draft = composite_of(node), editor.draft(region_of(node))
        try:
            if entry is not None:
                drafts.append(draft.giving(entry.write(draft, node)))
        except OperatorError:
            continue  # compared as an operator that is not known
    try:
        if drafts:
            require(model, max(draft.opset for draft in drafts))
            editor.replace_all(drafts)
    except UnsupportedError:
        return
