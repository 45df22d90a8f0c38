"""Large weights are held as narrow integers: their bounds are those of fewer weights."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.bound import Bound
from qgraph.ops.approximation import FEW_NUMBERS

TERMS, CHANNELS = 64, 80


def bound(weights: np.ndarray) -> Bound:
    """Return the bound of sums of weights with a scale of 0.3 against one of 0.3001.

    The codes reach from 0 to those of the largest sum.
    """
    step = 0.05 * 0.3 * 255 * np.iinfo(weights.dtype).max * TERMS / 65535
    sides = []
    for s in (0.3, 0.3001):
        model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
            net (uint8[1,{TERMS}] x, {weights.dtype}[{TERMS},{weights.shape[1]}] w)
                => (uint16[1,{weights.shape[1]}] y)
            <float s = {{0.05}}, uint16 z = {{0}}, float s_w = {{{s}}}, float s_y = {{{step}}}> {{
                a = DequantizeLinear (x, s)
                v = DequantizeLinear (w, s_w)
                m = MatMul (a, v)
                y = QuantizeLinear (m, s_y, z)
            }}""")
        value = model.graph.inputs.pop()
        value.const_value = ir.tensor(weights)
        model.graph.register_initializer(value)
        sides.append(model)
    region, _ = qgraph.prove(*sides, within="1step", evidence=True).regions
    assert region.bound is not None
    return region.bound


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize("divisor", [1, 2])
@pytest.mark.parametrize("kind", [np.int8, np.int16])
def test_bounds_of_many_weights_are_those_of_few(kind, divisor):
    limits = np.iinfo(kind)
    random = np.random.default_rng(divisor)
    weights = random.integers(limits.min, limits.max, (TERMS, CHANNELS), kind)
    weights[0] = limits.min  # the first number of a column gives its sign
    weights -= weights % kind(divisor)
    parts = np.split(weights, 2, axis=1)
    assert parts[0].size <= FEW_NUMBERS < weights.size
    whole, few = bound(weights), [bound(part) for part in parts]
    assert len(set(whole.channels)) == CHANNELS
    assert whole.channels == sum((part.channels for part in few), ())
    assert whole.levels == max(part.levels for part in few)
