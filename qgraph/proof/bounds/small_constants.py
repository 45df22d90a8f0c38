"""Small constants of definitions, and the results of operations on them, computed once each.

Definitions compute limits of codes from numbers of bits, for each quantizer of a model anew.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from qgraph.numerics import Array
from qgraph.proof.bounds.quantity import Quantity, constant, folded

_MOST = 16
"""Maximum number of elements of constants that are kept."""


class SmallConstants:
    """Returns one object for equal small constants."""

    def __init__(self) -> None:
        self._constants: dict[Hashable, Quantity] = {}
        # Operands are kept, so that no other constant gets the id of one of them.
        self._folded: dict[Hashable, tuple[Sequence[Quantity], Quantity]] = {}

    def of(self, array: Array) -> Quantity:
        """Return the quantity of a stored constant."""
        if array.size > _MOST:
            return constant(array)
        key = array.dtype, array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = constant(array)
        return self._constants[key]

    def folded(
        self, name: str, operands: Sequence[Quantity], attributes: Mapping[str, Any]
    ) -> Quantity:
        """Return the result of an operation on constants; see :func:`.quantity.folded`."""
        if attributes or any(q.numbers.size > _MOST for q in operands):
            return folded(name, operands, attributes)
        key = name, *map(id, operands)
        if key not in self._folded:
            self._folded[key] = operands, folded(name, operands, attributes)
        return self._folded[key][1]
