from __future__ import annotations

import math

import numpy as np
import pytest

from qgraph.numerics.formats import FORMATS, numpy_dtype
from qgraph.numerics.minifloat import cast_e8m0, decode

LOW, TOP = 2.0**-127, 2.0**127
MODES = ["up", "down", "nearest"]


def expected_cast(v: float, mode: str, saturate: bool) -> float:
    """The table of ONNX Cast, in double precision."""
    if math.isnan(v):
        return math.nan
    if not LOW <= v <= TOP:
        return (LOW if v < LOW else TOP) if saturate else math.nan
    below = math.ldexp(1, math.frexp(v)[1] - 1)
    raise_it = {"up": v > below, "down": False, "nearest": v >= 1.5 * below}[mode]
    return min(2 * below if raise_it else below, TOP)


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_cast_is_the_table_for_every_binade_and_special(mode, saturate, finite, specials):
    x = np.concatenate([finite, specials])
    expected = np.float32([expected_cast(v, mode, saturate) for v in x.tolist()])
    np.testing.assert_array_equal(cast_e8m0(x, mode, saturate), expected)


@pytest.mark.runtime
@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_cast_is_what_the_runtime_computes(mode, saturate, finite, specials):
    runtime = pytest.importorskip("onnxruntime")
    parser = pytest.importorskip("onnx.parser")
    model = parser.parse_model(f"""
        <ir_version: 11, opset_import: ["": 24]>
        g (float[N] x) => (float[N] y) {{
            c = Cast <to = 24, round_mode = "{mode}", saturate = {int(saturate)}> (x)
            y = Cast <to = 1> (c)
        }}""")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    x = np.concatenate([finite, specials])
    np.testing.assert_array_equal(cast_e8m0(x, mode, saturate), session.run(None, {"x": x})[0])


def test_every_code_decodes_to_its_power():
    f = FORMATS["FLOAT8E8M0"]
    codes = np.arange(256, dtype=np.uint8)
    values = decode(codes.view(numpy_dtype(f.name)))
    expected = np.float32([math.ldexp(1, int(c) - 127) for c in codes[:-1]] + [math.nan])
    np.testing.assert_array_equal(values, expected)


def test_unknown_round_mode():
    with pytest.raises(ValueError, match="'even' is not known; expected up, down or nearest"):
        cast_e8m0([1.0], "even")
