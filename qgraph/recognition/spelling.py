"""What the operators of a region tell of the quantizer that they spell."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Spelling:
    """What the operators of a region tell of it.

    Attributes:
        dialect: whose they are.
        is_pair: nothing but QuantizeLinear, Clip and DequantizeLinear.
        codes: type of the stored codes that the region decodes; None for one that rounds.
    """

    dialect: str
    is_pair: bool = False
    codes: str | None = None
