"""What a primitive computes is what ONNX Runtime computes for the operator of that name."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.numerics.formats import FORMATS
from qgraph.numerics.primitives import NUMPY

BINARY = ("Add", "Sub", "Mul", "Div", "Min", "Max")
COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
UNARY = ("Identity", "Neg", "Abs", "Sign", "Sqrt", "Reciprocal", "Round", "Floor", "Ceil", "Relu")
LOGIC = ("And", "Or")
MINIFLOATS = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
INTEGERS = ("INT2", "UINT2", "INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16", "INT32", "INT64")
OPSET = 25


def hostile():
    powers = np.ldexp(np.float32(1), np.arange(-149, 128)).astype(np.float32)
    ties = np.arange(40, dtype=np.float32) + np.float32(0.5)
    special = np.array([0, np.inf, np.nan, 3.4028235e38, 0.49999997, 448, 464, 57344], np.float32)
    values = np.concatenate([powers, powers * np.float32(1.5), ties, special])
    values = np.concatenate([values, np.nextafter(values, np.float32(0))])
    return np.concatenate([values, -values])


def pairs():
    x = hostile()
    return x, np.random.default_rng(1).permutation(x)


def run(body, inputs, outputs="float"):
    """Run one line of ONNX text in ONNX Runtime, unoptimized."""
    runtime = pytest.importorskip("onnxruntime")
    types = {np.dtype(np.float32): "float", np.dtype(bool): "bool", np.dtype(np.int64): "int64"}
    given = ", ".join(f"{types[a.dtype]}[n{i}] {n}" for i, (n, a) in enumerate(inputs.items()))
    head = f'<ir_version: 13, opset_import: ["": {OPSET}]> g ({given}) => ({outputs}[n] y)'
    model = onnx.parser.parse_model(f"{head} {{\n{body}\n}}")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, inputs)[0]


def compute(name, *operands, **attributes):
    with np.errstate(all="ignore"):
        return np.asarray(NUMPY[name](*operands, **attributes))


def same(left, right):
    assert left.dtype == right.dtype
    wrong = left.view(f"u{left.itemsize}") != right.view(f"u{left.itemsize}")
    if left.dtype == np.float32:
        wrong &= ~(np.isnan(left) & np.isnan(right))
    assert not wrong.any(), (left[wrong][:5], right[wrong][:5])


@pytest.mark.runtime
@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    x, b = pairs()
    both_zero = (x == 0) & (b == 0) & (name in ("Min", "Max"))  # ONNX leaves their sign open
    x, b = x[~both_zero], b[~both_zero]
    same(compute(name, x, b), run(f"y = {name}(x, b)", {"x": x, "b": b}))


@pytest.mark.runtime
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(name):
    x, b = pairs()
    b[:100] = x[:100]
    same(compute(name, x, b), run(f"y = {name}(x, b)", {"x": x, "b": b}, "bool"))


@pytest.mark.runtime
@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    x = hostile()
    if name == "Relu":
        x = x[(x != 0) | ~np.signbit(x)]
    same(compute(name, x), run(f"y = {name}(x)", {"x": x}))


@pytest.mark.runtime
def test_logic():
    a, b = np.array([[False, False, True, True], [False, True, False, True]])
    for name in LOGIC:
        same(compute(name, a, b), run(f"y = {name}(a, b)", {"a": a, "b": b}, "bool"))
    same(compute("Not", a), run("y = Not(a)", {"a": a}, "bool"))
    x, z = pairs()
    same(compute("IsNaN", x), run("y = IsNaN(x)", {"x": x}, "bool"))
    c = x > 0
    same(compute("Where", c, x, z), run("y = Where(c, x, z)", {"c": c, "x": x, "z": z}))


@pytest.mark.runtime
def test_powers_of_two_are_exact():
    k = np.arange(-149, 128).astype(np.float32)
    two = np.full_like(k, 2)
    exact = np.ldexp(np.float32(1), k.astype(np.int32))
    same(compute("Pow", np.float32(2), k), exact)
    same(run("y = Pow(b, k)", {"b": two, "k": k}), exact)


def cast_in_runtime(x, name, attributes=""):
    body = f"c = Cast<to = {int(ir.DataType[name])}{attributes}>(x)\ny = Cast<to = 1>(c)"
    return run(body, {"x": x})


@pytest.mark.runtime
@pytest.mark.parametrize("name", MINIFLOATS)
def test_casts_to_minifloats(name):
    x = hostile()
    same(compute("Cast", x, to=ir.DataType[name]), cast_in_runtime(x, name))


@pytest.mark.runtime
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_casts_to_e8m0(mode):
    x = hostile()
    x = x[~(x < 0)]
    result = compute("Cast", x, to=ir.DataType.FLOAT8E8M0, round_mode=mode)
    same(result, cast_in_runtime(x, "FLOAT8E8M0", f', round_mode = "{mode}"'))


@pytest.mark.runtime
@pytest.mark.parametrize("name", INTEGERS)
def test_casts_to_integers(name):
    """Within the range of the type: outside, the result is undefined.

    Below 8 bits only whole numbers are compared: ONNX Runtime rounds where the standard truncates.
    """
    x = hostile()
    lo, hi = (FORMATS[name].lo, FORMATS[name].hi) if name in FORMATS else (-(2**63), 2**63)
    x = x[(x > lo - 1) & (x < hi)]
    if name.endswith(("INT2", "INT4")):
        x = np.trunc(x)
    same(compute("Cast", x, to=ir.DataType[name]), cast_in_runtime(x, name))
    same(compute("Cast", x, to=name), compute("Cast", x, to=int(ir.DataType[name])))


def test_casts_to_bool_and_float():
    x = np.array([0, -0.0, 0.1, np.nan], np.float32)
    assert compute("Cast", x, to=ir.DataType.BOOL).tolist() == [False, False, True, True]
    same(compute("Cast", x, to=ir.DataType.FLOAT), x)
    assert compute("Cast", x > 0, to=ir.DataType.FLOAT).tolist() == [0, 0, 1, 0]


def test_casts_that_would_round_are_refused():
    with pytest.raises(ValueError, match="a cast to FLOAT16 has no meaning"):
        compute("Cast", hostile(), to=ir.DataType.FLOAT16)


@pytest.mark.runtime
def test_gather():
    table = np.array([3.5, -1.0, np.inf], np.float32)
    index = np.array([2, 0, 1, 1], np.int64)
    result = compute("Gather", table, index.astype(np.float32))
    same(result, run("y = Gather(t, i)", {"t": table, "i": index}))
    outside = np.array([np.nan, -1, 3, np.inf], np.float32)
    assert np.isnan(compute("Gather", table, outside)).all()


def test_every_primitive_is_tested_here():
    tested = {*BINARY, *COMPARISONS, *UNARY, *LOGIC, "Not", "IsNaN", "Where", "Pow", "Cast"}
    assert set(NUMPY) == tested | {"Gather"}
