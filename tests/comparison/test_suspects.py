"""What ONNX Runtime is known to change is found by name, on a model that shows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from qgraph.comparison.report import ROUNDING, RuntimeReport
from qgraph.comparison.runtimes.causes import ONNX_RUNTIME
from qgraph.comparison.runtimes.verdict import judge_runtimes
from qgraph.model import Model

Array = npt.NDArray[Any]

MERGED = "neighbouring Q/DQ pairs are merged"
ADDITIONS = "additions of zero and similar operators are removed"
INTEGER = "Q/DQ around operators become integer kernels"
WEIGHTS = "float weights and biases next to Q/DQ are quantized"
ACTIVATIONS = "MatMulNBits with int8 activations"


def pair(x: str, y: str, scale: str, zero: str = "z") -> str:
    parameters = f"{scale}, {zero}"
    encode = f"{y}_q = QuantizeLinear ({x}, {parameters})"
    return f"{encode} {y} = DequantizeLinear ({y}_q, {parameters}) "


PARAMETERS = "<float s = {0.1}, float t = {%s}, int8 z = {0}, uint8 u = {128}, uint8 v = {0}>"


def model(inputs: str, parameters: str, nodes: str, **constants: Array) -> Model:
    text = f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => (float[N] y) {parameters} '
    found = Model(ir.from_onnx_text(f"{text} {{ {nodes} }}"))
    found.ir.graph.outputs[0].shape = None
    for name, array in constants.items():
        value = ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            shape=ir.Shape(array.shape),
            const_value=ir.tensor(array, name=name),
        )
        (stated,) = (each for each in found.ir.graph.inputs if each.name == name)
        stated.replace_all_uses_with(value)
        found.ir.graph.inputs.remove(stated)
        found.ir.graph.register_initializer(value)
    return found


def tenths(shape: tuple[int, ...], most: int) -> Array:
    whole = np.random.default_rng(0).integers(-most, most + 1, shape)
    return (whole / 10).astype(np.float32)


def whole(shape: tuple[int, ...], most: int) -> Array:
    return np.random.default_rng(1).integers(-most, most + 1, shape).astype(np.int8)


def normal(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(2).normal(size=shape).astype(np.float32)


def two_pairs() -> tuple[Model, dict[str, Array]]:
    nodes = pair("x", "a", "s") + pair("a", "y", "t")
    return model("float[N] x", PARAMETERS % 0.37, nodes), {"x": 5 * normal((64,))}


def zero_added() -> tuple[Model, dict[str, Array]]:
    """-0 + 0 is +0, and 1 / -0 is -inf."""
    nodes = "n = Neg (x) a = Add (n, zero) y = Div (one, a)"
    m = model("float[N] x", "<float zero = {0}, float one = {1}>", nodes)
    return m, {"x": np.array([0.0, -0.0, 1, 2], np.float32)}


def of_two(operator: str, step: float, most: int) -> tuple[Model, dict[str, Array]]:
    nodes = pair("a", "c", "s") + pair("b", "d", "s") + f"e = {operator} (c, d) "
    m = model("float[N] a, float[N] b", PARAMETERS % step, nodes + pair("e", "y", "t"))
    return m, {"a": tenths((256,), most), "b": tenths((300,), most)[44:]}


def has_no_ties(values: Array, error: Array, step: float) -> bool:
    """Return whether no order of additions in float32 makes another code of any value.

    Args:
        values: computed in float64.
        error: bounds of the errors of float32.
        step: of the codes.
    """
    steps = values / np.float32(step)
    margin = error / np.float32(step) + np.abs(steps) * 2.0**-23
    return bool((np.abs(steps - np.floor(steps) - 0.5) > margin).all())


def decoded(x: Array, step: float) -> Array:
    """Return what a pair of quantizers of symmetric codes makes of ``x``, in float64."""
    scale = np.float32(step)
    return np.clip(np.rint(x / scale), -128, 127).astype(np.float64) * scale


def softmax() -> tuple[Model, dict[str, Array]]:
    nodes = pair("x", "a", "s", "u") + "e = Softmax <axis = -1> (a) " + pair("e", "y", "t", "v")
    m = model("float[N,16] x", PARAMETERS % (1 / 255), nodes)
    x = tenths((16, 16), 32)
    # the codes of the data are counted from 128
    powers = np.exp(decoded(x, 1 / 255))
    shares = powers / powers.sum(axis=-1, keepdims=True)
    # 16 additions, a division, and two powers that are a few ulps off
    assert has_no_ties(shares, shares * 32 * 2.0**-24, 1 / 255)
    return m, {"x": x}


# The scales of data and weights are 2**-6, so no sum of products rounds, in any order of additions.
# The scale of the result is 14 * 2**-12, so sums that are odd multiples of 7 are ties. Integer
# kernels multiply by the reciprocal, which carries some ties to the other side.
DYADIC = f"<float s = {{{2**-6}}}, float t = {{{14 * 2**-12}}}, int8 z = {{0}}>"


def sevenths(shape: tuple[int, ...], most: int) -> Array:
    """Return multiples of 7 * 2**-6, of codes that are multiples of 7."""
    return (np.random.default_rng(0).integers(-most, most + 1, shape) * 7 / 64).astype(np.float32)


def product() -> tuple[Model, dict[str, Array]]:
    nodes = pair("x", "a", "s") + "b = DequantizeLinear (w, s, z) e = MatMul (a, b) "
    m = model(
        "float[N,8] x, int8[8,16] w",
        DYADIC,
        nodes + pair("e", "y", "t"),
        w=whole((8, 16), 9),
    )
    return m, {"x": sevenths((16, 8), 9)}


def convolution() -> tuple[Model, dict[str, Array]]:
    nodes = pair("x", "a", "s") + "b = DequantizeLinear (w, s, z) e = Conv (a, b) "
    m = model(
        "float[N,3,8,8] x, int8[4,3,3,3] w",
        DYADIC,
        nodes + pair("e", "y", "t"),
        w=whole((4, 3, 3, 3), 3),
    )
    return m, {"x": sevenths((1, 3, 8, 8), 9)}


def float_weights() -> tuple[Model, dict[str, Array]]:
    nodes = pair("x", "a", "s") + "e = Conv (a, w) " + pair("e", "y", "t")
    inputs = "float[N,3,8,8] x, float[4,3,3,3] w"
    w, x = normal((4, 3, 3, 3)), tenths((1, 3, 8, 8), 12)
    windows = np.lib.stride_tricks.sliding_window_view(decoded(x[0], 0.2), (3, 3, 3))
    sums = np.einsum("...ijk,nijk->...n", windows, w.astype(np.float64))
    terms = np.einsum("...ijk,nijk->...n", np.abs(windows), np.abs(w))
    assert has_no_ties(sums, terms * 27 * 2.0**-24, 0.2)
    return model(inputs, PARAMETERS % 0.2, nodes, w=w), {"x": x}


def int8_weights() -> tuple[Model, dict[str, Array]]:
    nodes = "b = DequantizeLinear (w, s) y = MatMul (x, b)"
    m = model("float[N,32] x, int8[32,8] w", "<float s = {0.1}>", nodes, w=whole((32, 8), 20))
    return m, {"x": tenths((4, 32), 12)}


CASES = [
    pytest.param(two_pairs(), "basic", MERGED, id="pairs"),
    pytest.param(zero_added(), "basic", ADDITIONS, id="zero"),
    pytest.param(of_two("Add", 0.2, 127), "default", INTEGER, id="add"),
    pytest.param(of_two("Mul", 0.02, 16), "default", INTEGER, id="mul", marks=pytest.mark.slow),
    pytest.param(softmax(), "default", INTEGER, id="softmax", marks=pytest.mark.sums),
    pytest.param(
        product(), "default", INTEGER, id="product", marks=[pytest.mark.slow, pytest.mark.sums]
    ),
    pytest.param(convolution(), "default", INTEGER, id="convolution", marks=pytest.mark.sums),
    pytest.param(float_weights(), "basic", WEIGHTS, id="weights", marks=pytest.mark.sums),
    pytest.param(int8_weights(), "default", ACTIVATIONS, id="int8 weights", marks=pytest.mark.sums),
]


def judged(m: Model, feeds: dict[str, Array]) -> RuntimeReport:
    outputs = [m.run(feeds, backend="numpy")]
    return judge_runtimes(m, [feeds], outputs, outputs, {"y": "y"}, runtimes=[ONNX_RUNTIME])


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.runtime
@pytest.mark.parametrize(("case", "first", "what"), CASES)
def test_the_cause_is_named(case: tuple[Model, dict[str, Array]], first: str, what: str) -> None:
    """At the first level that makes the difference, and at all later ones."""
    pytest.importorskip("onnxruntime")
    found = judged(*case)
    assert [result.failure for result in found.results] == [None] * 3
    begun = False
    for result in found.results:
        begun |= result.level == first
        if not begun:
            assert result.error is not None
            assert result.error <= ROUNDING
            continue
        assert result.error is None or result.error > 1e-3
        (suspect,) = result.suspects
        assert suspect.what == what
        assert suspect.option is not None
        assert suspect.error <= ROUNDING
        assert f"{what} ({suspect.option})" in found.sentence
    assert begun


@pytest.mark.slow
@pytest.mark.runtime
def test_products_in_integers_that_stay_real_numbers_are_no_fault() -> None:
    """MatMulIntegerToFloat takes the scales after the sum: last bits differ, as told."""
    pytest.importorskip("onnxruntime")
    nodes = pair("x", "a", "s") + "b = DequantizeLinear (w, s, z) y = MatMul (a, b)"
    m = model("float[N,32] x, int8[32,8] w", PARAMETERS % 0.1, nodes, w=whole((32, 8), 20))
    found = judged(m, {"x": tenths((4, 32), 12)})
    default = found.results[-1]
    assert default.error is not None
    assert 0 < default.error < 1e-6
    assert default.suspects == ()
    assert found.sentence.endswith("by order of summation")
