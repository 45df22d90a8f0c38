"""What folding would give is told without folding."""

from __future__ import annotations

import numpy as np
import pytest

from qgraph.inventory.info import code_type
from qgraph.inventory.overview import overview
from qgraph.model import load
from qgraph.numerics.formats import MINIFLOATS, IntFormat
from qgraph.quantizers.quantizer import Affine, Bipolar, Floating, Ranged, Unnamed
from qgraph.transforms import FoldWeights


def affine(kind: IntFormat, zero_point: float = 0) -> Affine:
    one, lo, hi, zero = (np.asarray(n, np.float32) for n in (1, kind.lo, kind.hi, zero_point))
    return Affine(one, zero, lo, hi)


def ranged(levels: int) -> Ranged:
    zero, one = np.zeros((), np.float32), np.ones((), np.float32)
    return Ranged(zero, one, zero, one, levels)


FP4, E5M2 = MINIFLOATS["FLOAT4E2M1"], MINIFLOATS["FLOAT8E5M2"]


@pytest.mark.parametrize(
    ("quantizer", "opset", "expected"),
    [
        (affine(IntFormat(3, True)), 21, "INT4"),
        (affine(IntFormat(4, False)), 21, "UINT4"),
        (affine(IntFormat(2, True)), 21, "INT4"),
        (affine(IntFormat(2, True)), 25, "INT2"),
        (affine(IntFormat(4, False), 20), 21, "UINT8"),
        (affine(IntFormat(4, False), 2.5), 21, "UINT4"),
        (affine(IntFormat(4, False)), 20, "UINT8"),
        (affine(IntFormat(17, False)), 21, "INT32"),
        (ranged(255), 21, "UINT8"),
        (Bipolar(np.ones((), np.float32)), 21, "INT4"),
        (Bipolar(np.ones((), np.float32)), 25, "INT2"),
        (Floating(np.ones((), np.float32), FP4), 23, "FLOAT4E2M1"),
        # up to 6 in steps of a half: 12 of them
        (Floating(np.ones((), np.float32), FP4), 21, "INT8"),
        (Floating(np.ones((), np.float32), E5M2), 19, "FLOAT8E5M2"),
        # 57344 * 2**16 steps
        (Floating(np.ones((), np.float32), E5M2), 18, None),
        (Unnamed(), 21, None),
    ],
)
def test_the_narrowest_type_of_an_opset(quantizer, opset, expected):
    assert code_type(quantizer, opset) == expected


@pytest.mark.cases(fast=2, slow=9)
def test_predicted_sizes_are_those_of_folding(real_models, model_name):
    """Within 3 percent: codes may need fewer bits than their format, or one level more."""
    model = load(real_models[model_name])
    found = overview(model.ir)
    folded = model.apply(FoldWeights()).weight_bytes_after
    assert found.packed_bytes == pytest.approx(folded, rel=0.03)
    weights = [each for each in found.quantizers if each.weight]
    assert all(each.packed_bytes <= each.weight_bytes for each in weights)
