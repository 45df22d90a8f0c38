"""How the checker ends where it cannot decide a statement, or finds it false."""

from __future__ import annotations

from qgraph.errors import EquivalenceError, OperatorError, UnsupportedError
from qgraph.reasons import Undecidable

FAILURES = (UnsupportedError, Undecidable, OperatorError, ValueError, TypeError, IndexError)
"""What is raised about models that the checker does not know enough of."""


def need(condition: object, reason: str) -> None:
    """Raise UnsupportedError unless a condition holds, without which nothing is decided."""
    if not condition:
        raise UnsupportedError(reason)


def confirm(statement: object, problem: str) -> None:
    """Raise EquivalenceError unless a statement of a certificate holds."""
    if not statement:
        raise EquivalenceError(problem)
