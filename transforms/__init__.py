"""Passes, and what runs them on files.

Each pass is a frozen dataclass whose fields are its options; :func:`parse_spec` makes one from text
such as ``convert{to=qdq}``, and :func:`rewrite` applies passes to a model file. Names are imported
at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qgraph.transforms.base import TRANSFORMS, Transform
    from qgraph.transforms.convert import ConvertDialect
    from qgraph.transforms.fold_weights import FoldWeights
    from qgraph.transforms.make_portable import MakePortable
    from qgraph.transforms.pipeline import describe, parse_spec
    from qgraph.transforms.rewriting import rewrite
    from qgraph.transforms.strip_functions import StripFunctions

__all__ = [
    "TRANSFORMS",
    "ConvertDialect",
    "FoldWeights",
    "MakePortable",
    "StripFunctions",
    "Transform",
    "describe",
    "parse_spec",
    "rewrite",
]

_HOMES = {
    "ConvertDialect": "convert",
    "FoldWeights": "fold_weights",
    "MakePortable": "make_portable",
    "StripFunctions": "strip_functions",
    "TRANSFORMS": "base",
    "Transform": "base",
    "describe": "pipeline",
    "parse_spec": "pipeline",
    "rewrite": "rewriting",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'qgraph.transforms' has no attribute {name!r}")
    return getattr(importlib.import_module(f"qgraph.transforms.{_HOMES[name]}"), name)
