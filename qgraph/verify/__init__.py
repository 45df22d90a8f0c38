"""The checker of certificates, which uses the definitions of operators and no part of the prover.

Functions of this package raise EquivalenceError if a statement of a certificate is false, and
UnsupportedError if the checker cannot decide it.
"""

from __future__ import annotations

from qgraph.errors import EquivalenceError, OperatorError, UnsupportedError
from qgraph.reasons import Undecidable
from qgraph.text import let_call

FAILURES = (UnsupportedError, Undecidable, OperatorError, ValueError, TypeError, IndexError)
"""What is raised about models that the checker does not know enough of."""

let_call(__name__)


def need(condition: object, reason: str) -> None:
    """Raise UnsupportedError unless a condition holds, without which nothing is decided."""
    if not condition:
        raise UnsupportedError(reason)


def confirm(statement: object, problem: str) -> None:
    """Raise EquivalenceError unless a statement of a certificate holds."""
    if not statement:
        raise EquivalenceError(problem)
