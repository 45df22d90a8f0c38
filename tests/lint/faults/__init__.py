"""Faults that are planted in real models: how, and at which node each has to be found.

Each family of rules has a module, which registers its faults here.
"""

from __future__ import annotations

import importlib

from tests.lint.faults.register import FAULTS, NO_FAULT, Fault, places

for _family in ("correctness", "silent", "speed", "size", "portability", "hygiene", "data"):
    importlib.import_module(f"tests.lint.faults.{_family}")

__all__ = ["FAULTS", "NO_FAULT", "Fault", "places"]
