"""The interface for plugins: names that plugins may import, and that stay stable.

Each decorator registers its function or class when the module is imported. A package names these
modules in its entry points::

    [project.entry-points."qgraph.passes"]
    drop-identities = "my_package.passes"

The groups are ``qgraph.dialects``, ``operators``, ``passes``, ``rules`` and ``targets``.
"""

from __future__ import annotations

import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import constant, constant_stream
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.schema import Attribute, OpKey, OpSchema
from qgraph.lint.facts import ModelFacts
from qgraph.lint.rule import Found, LintFix, LintLevel, rule
from qgraph.model import Model
from qgraph.numerics.rounding import Rounding
from qgraph.ops.composite import composite
from qgraph.ops.operator import operator, operator_of
from qgraph.quantizers.dialects.dialect import Refusal, Site, data_of, dialect, parameter, shape_of
from qgraph.quantizers.quantizer import Affine, Bipolar, Floating, Ranged, Recipe
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.targets.reader import add_target
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.drafts.choice import entry

FLOAT = ir.DataType.FLOAT

__all__ = [
    "FLOAT",
    "Affine",
    "Attribute",
    "Bipolar",
    "Draft",
    "Editor",
    "Exactness",
    "Floating",
    "Found",
    "LintFix",
    "LintLevel",
    "Method",
    "Model",
    "ModelFacts",
    "OpKey",
    "OpSchema",
    "Ranged",
    "Recipe",
    "Refusal",
    "Report",
    "Rounding",
    "Site",
    "SiteReport",
    "SiteStatus",
    "Transform",
    "Verdict",
    "add_target",
    "composite",
    "constant",
    "constant_stream",
    "data_of",
    "dialect",
    "entry",
    "operator",
    "operator_of",
    "option",
    "parameter",
    "rule",
    "shape_of",
    "transform",
]
