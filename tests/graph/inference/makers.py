"""How to draw a random node of an operator, by domain and name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.graph.inference.generator import Case, Operand, Rng, data

Maker = Callable[[str, Rng], Case]
MAKERS: dict[tuple[str, str], Maker] = {}

F, D, I8, U8, I32, I64, B = np.float32, np.float64, np.int8, np.uint8, np.int32, np.int64, np.bool_


def makes(*names: str, domain: str = "") -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        for name in names:
            MAKERS[domain, name] = maker
        return maker

    return register


def scalar(number: float, dtype: Any = F) -> Operand:
    return Operand(np.asarray(number, dtype), constant=True)


def codes(rng: Rng, shape: Any, dtype: Any = U8, **options: Any) -> list[Operand]:
    """Codes with their scale and zero point."""
    return [data(rng, shape, dtype, **options), scalar(0.5), scalar(3, dtype)]
