"""Rules about quantized models; the package itself is the function ``qgraph.lint``."""

from __future__ import annotations

import sys
from types import ModuleType

from qgraph.lint.engine import lint


class _CallablePackage(ModuleType):
    """Lets ``qgraph.lint(model)`` work once the package is imported, which hides the function."""

    __call__ = staticmethod(lint)


sys.modules[__name__].__class__ = _CallablePackage
