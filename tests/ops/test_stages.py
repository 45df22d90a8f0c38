"""The stages of quantizers compute what their definitions do, for every kind of number."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.numerics.primitives import NUMPY
from qgraph.ops.definitions import fake_quantize, quant, quantize_linear
from qgraph.ops.steps import Stages, linear_stages

OP = SimpleNamespace(
    **{
        name: lambda *operands, _run=run, **attributes: np.asarray(
            _run(*(np.asarray(x, np.float32) if isinstance(x, float) else x for x in operands))
            if not attributes
            else _run(*operands, **attributes)
        )
        for name, run in NUMPY.items()
    }
)
RANDOM = np.random.default_rng(5)
NUMBERS = np.concatenate(
    [
        RANDOM.integers(0, 1 << 32, 1 << 14, dtype=np.uint32).view(np.float32),
        RANDOM.integers(-1200, 1200, 1 << 12).astype(np.float32) / np.float32(8),
        np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45]),
    ]
)


def by(stages: Stages | None, x: np.ndarray) -> np.ndarray:
    assert stages is not None
    y = np.empty_like(x)
    with np.errstate(all="ignore"):
        stages.place(y, x, *stages.arrays)
        stages.level(y, *stages.arrays)
        stages.value(y, *stages.arrays)
    return y


KINDS = ("INT2", "UINT4", "INT8", "UINT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT4E2M1")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", np.float32([0.25, 0.3, 1e-40, 3e38]))
def test_pairs(kind, scale):
    zero = np.float32(0 if kind.startswith("FLOAT") else 3 if kind.startswith("U") else -1)
    given = {"axis": 0, "block_size": 0, "to": ir.DataType[kind], "saturate": True}
    given |= dict.fromkeys(("output_dtype", "precision"), ir.DataType.UNDEFINED)
    with np.errstate(all="ignore"):
        expected = np.float32(quantize_linear.define(OP, NUMBERS, scale, zero, **given))
    np.testing.assert_array_equal(
        by(linear_stages(NUMBERS.dtype, scale, zero, **given), NUMBERS), expected
    )


@pytest.mark.parametrize("levels", [2, 16, 255, 256])
@pytest.mark.parametrize(("low", "high"), [(-8, 7), (-0.7, 1.3), (0.1, 0.3), (-3e38, 1e-3)])
def test_ranges(levels, low, high):
    ends = [np.float32(end) for end in (low, high, 3 * low / 7, high)]
    given = {"levels": levels, "auto_broadcast": "numpy"}
    with np.errstate(all="ignore"):
        expected = fake_quantize.define(OP, NUMBERS, *ends, **given)
    stages = fake_quantize.RangeStages.of(NUMBERS.dtype, *ends, **given)
    found = by(stages, NUMBERS)
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))
    kernel = fake_quantize.fake_quantize(NUMBERS, *ends, **given)
    np.testing.assert_array_equal(kernel.view(np.int32), expected.view(np.int32))


def test_signs():
    for scale in np.float32([0.5, -0.3, 1]):
        expected = quant.define_bipolar(OP, NUMBERS, scale)
        found = by(quant.BipolarStages.of(NUMBERS.dtype, scale), NUMBERS)
        np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))
    assert quant.BipolarStages.of(NUMBERS.dtype, np.float32(1.5)) is None
