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
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from qgraph.version import __version__

if TYPE_CHECKING:
    from qgraph.api import (
        check_lock,
        convert,
        diff,
        explain,
        fold,
        info,
        lint,
        lock,
        passes,
        plot,
        report,
        targets,
        transform,
        verify,
    )
    from qgraph.bound import Bounding
    from qgraph.certificate import Certificate
    from qgraph.comparison.bench import BenchReport, Timing, bench
    from qgraph.comparison.check import Inputs, check
    from qgraph.comparison.prove import prove
    from qgraph.comparison.reduce import reduce
    from qgraph.comparison.report import CheckReport
    from qgraph.comparison.tolerance import Scoring, Tolerances
    from qgraph.comparison.why.report import WhyReport
    from qgraph.comparison.why.why import why
    from qgraph.effort import time_limit
    from qgraph.errors import QGraphError
    from qgraph.exactness import Exactness, Verification
    from qgraph.inventory.differences import ModelDifferences
    from qgraph.inventory.overview import Overview
    from qgraph.lint.engine import LintReport
    from qgraph.model import Model, load
    from qgraph.reports import Report
    from qgraph.transforms.deployment.deploy import deploy
    from qgraph.transforms.deployment.lint_fixes import LintFixes, fix
    from qgraph.transforms.deployment.report import Deployment

__all__ = [
    "BenchReport",
    "Bounding",
    "Certificate",
    "CheckReport",
    "Deployment",
    "Exactness",
    "Inputs",
    "LintFixes",
    "LintReport",
    "Model",
    "ModelDifferences",
    "Overview",
    "QGraphError",
    "Report",
    "Scoring",
    "Timing",
    "Tolerances",
    "Verification",
    "WhyReport",
    "__version__",
    "bench",
    "check",
    "check_lock",
    "convert",
    "deploy",
    "diff",
    "explain",
    "fix",
    "fold",
    "info",
    "lint",
    "load",
    "lock",
    "passes",
    "plot",
    "prove",
    "reduce",
    "report",
    "targets",
    "time_limit",
    "transform",
    "verify",
    "why",
]

_ELSEWHERE = {
    "BenchReport": "qgraph.comparison.bench",
    "Bounding": "qgraph.bound",
    "Certificate": "qgraph.certificate",
    "CheckReport": "qgraph.comparison.report",
    "Deployment": "qgraph.transforms.deployment.report",
    "Exactness": "qgraph.exactness",
    "Inputs": "qgraph.comparison.check",
    "LintFixes": "qgraph.transforms.deployment.lint_fixes",
    "LintReport": "qgraph.lint.engine",
    "Model": "qgraph.model",
    "ModelDifferences": "qgraph.inventory.differences",
    "Overview": "qgraph.inventory.overview",
    "QGraphError": "qgraph.errors",
    "Report": "qgraph.reports",
    "Scoring": "qgraph.comparison.tolerance",
    "Timing": "qgraph.comparison.bench",
    "Tolerances": "qgraph.comparison.tolerance",
    "Verification": "qgraph.exactness",
    "WhyReport": "qgraph.comparison.why.report",
    "bench": "qgraph.comparison.bench",
    "check": "qgraph.comparison.check",
    "deploy": "qgraph.transforms.deployment.deploy",
    "fix": "qgraph.transforms.deployment.lint_fixes",
    "load": "qgraph.model",
    "prove": "qgraph.comparison.prove",
    "reduce": "qgraph.comparison.reduce",
    "time_limit": "qgraph.effort",
    "why": "qgraph.comparison.why.why",
}

_HOMES = {name: _ELSEWHERE.get(name, "qgraph.api") for name in __all__ if name != "__version__"}


class _Callable(ModuleType):
    """A package that has the name of a function in ``qgraph``, and hides it once imported."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        function: Any = __getattr__(self.__name__.rpartition(".")[2])
        return function(*arguments, **options)


class _Package(ModuleType):
    """This package; one in it can be called as the function of its name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _HOMES and isinstance(value, ModuleType):
            value.__class__ = _Callable
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'qgraph' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    submodules = (name for name in globals() if f"qgraph.{name}" in sys.modules)
    return sorted({*__all__, *submodules, *(n for n in globals() if n[:2] == n[-2:] == "__")})


def _checkout(init: str) -> list[str]:
    """Return the root of the checkout that ``init``, this file, lies in; nothing if installed.

    An installation puts the folders ``transforms`` and ``cli`` of the checkout into this package.
    Python that starts in the root of a checkout imports this package from there, without them.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(init)))
    parts = [os.path.join(root, folder, "__init__.py") for folder in ("transforms", "cli")]
    try:
        with open(os.path.join(root, "pyproject.toml"), encoding="utf-8") as project:
            is_ours = 'name = "qgraph"' in map(str.strip, project)
    except (OSError, ValueError):
        return []
    return [root] if is_ours and all(map(os.path.isfile, parts)) else []


__path__ += _checkout(__file__)
