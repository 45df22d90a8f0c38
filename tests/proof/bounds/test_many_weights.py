"""Large weights are held as narrow integers: their bounds are those of fewer weights."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.ops.approximation import FEW_NUMBERS

TERMS, CHANNELS = 64, 80


def channels(weights: np.ndarray, scale: float) -> list[tuple[float, float, float]]:
    """Return the bounds of the columns of weights against those with a scale of 0.3."""
    sides = []
    for s in (0.3, scale):
        model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
            net (int8[1,{TERMS}] x, {weights.dtype}[{TERMS},{weights.shape[1]}] w)
                => (float[1,{weights.shape[1]}] y)
            <float s = {{0.05}}, int8 z = {{0}}, float s_w = {{{s}}}> {{
                a = DequantizeLinear (x, s, z)
                v = DequantizeLinear (w, s_w)
                y = MatMul (a, v)
            }}""")
        value = model.graph.inputs.pop()
        value.const_value = ir.tensor(weights)
        model.graph.register_initializer(value)
        sides.append(model)
    (region,) = qgraph.prove(*sides, within="1step", evidence=True).regions
    assert region.bound is not None
    return list(region.bound.channels)


@pytest.mark.parametrize("divisor", [1, 2])
@pytest.mark.parametrize("kind", [np.int8, np.int16])
def test_bounds_of_many_weights_are_those_of_few(kind, divisor):
    limits = np.iinfo(kind)
    random = np.random.default_rng(divisor)
    weights = random.integers(limits.min, limits.max, (TERMS, CHANNELS), kind)
    weights[0, ::2] = limits.min  # the first number of a column gives its sign
    weights -= weights % kind(divisor)
    parts = np.split(weights, 2, axis=1)
    assert parts[0].size <= FEW_NUMBERS < weights.size
    whole = channels(weights, 0.3001)
    few = [each for part in parts for each in channels(part, 0.3001)]
    assert len(whole) == CHANNELS
    assert len(set(whole)) > 1
    # shares of the range of each model's own columns
    np.testing.assert_allclose(whole, few, rtol=1e-3)
