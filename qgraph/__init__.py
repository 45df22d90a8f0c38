"""Rewrite ONNX graphs that carry quantizers, and show that nothing changed.

    import qgraph
    from qgraph import transforms

    model = qgraph.load("in.onnx")
    report = model.apply(transforms.ConvertDialect(to="qdq"))
    model.save("out.onnx")
    qgraph.check("in.onnx", model).raise_if_different()

Names are imported at first use: ``import qgraph`` alone costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from qgraph.checkout import source_root
from qgraph.lazy import defer

defer("sympy", "onnx_ir._symbolic_shapes")

__path__ += source_root(__file__)

__version__ = "0.1.0"

if TYPE_CHECKING:
    from qgraph.certification.certify import prove
    from qgraph.equivalence.check import check
    from qgraph.equivalence.reduce import reduce
    from qgraph.errors import QGraphError
    from qgraph.exactness import Exactness
    from qgraph.model import Model, load
    from qgraph.report import Report

__all__ = [
    "Exactness",
    "Model",
    "QGraphError",
    "Report",
    "__version__",
    "check",
    "load",
    "prove",
    "reduce",
]

_HOMES = {
    "Exactness": "qgraph.exactness",
    "Model": "qgraph.model",
    "QGraphError": "qgraph.errors",
    "Report": "qgraph.report",
    "check": "qgraph.equivalence.check",
    "load": "qgraph.model",
    "prove": "qgraph.certification.certify",
    "reduce": "qgraph.equivalence.reduce",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'qgraph' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
