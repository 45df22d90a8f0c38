"""Codes that one model moves before rounding and the other one behind it, with another change."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import qgraph

pytestmark = pytest.mark.runtime

MOVES = {
    "MaxPool": "MaxPool <kernel_shape = [2, 2], strides = [2, 2]> ({})",
    "GlobalMaxPool": "GlobalMaxPool ({})",
    "Transpose": "Transpose <perm = [0, 2, 3, 1]> ({})",
    "Reshape": "Reshape ({}, flat)",
    "Slice": "Slice ({}, one, three, one)",
    "Resize": 'Resize <mode = "nearest"> ({}, , twice)',
    "DepthToSpace": "DepthToSpace <blocksize = 2> ({})",
    "Pad": "Pad ({}, pads)",
}
WEIGHTS = np.random.default_rng(0).integers(-127, 128, (4, 2, 3, 3)).astype(np.int8)
SCALES, BIAS = np.float32([0.011, 0.012, 0.009, 0.014]), np.float32([0.3, -0.2, 0.1, 0.4])
FACTOR, MEAN = np.float32([1.25, 0.8, 1.1, 0.7]), np.float32([0.1, 0.2, -0.3, 0])
S_X, S_Y = np.float32(0.05), np.float32(0.4)
FOLDED = (SCALES * FACTOR).astype(np.float32)
ADDED = ((BIAS - MEAN) * FACTOR).astype(np.float32)
ROUND = "q = QuantizeLinear ({}, s_y, z_y) {} = DequantizeLinear (q, s_y, z_y)"
FLOAT = "u = DequantizeLinear <axis = 0> (w, {}, z) m = Conv <pads = [1, 1, 1, 1]> (a, u, {})"
SUMS = {
    "normalized": FLOAT.format("scales", "bias") + " n = Sub (m, mean) c = Mul (n, factor)",
    "folded": FLOAT.format("folded", "added") + " c = Identity (m)",
    "integer": "c = QLinearConv <pads = [1, 1, 1, 1]> (x, s_x, z_x, w, folded, z, s_y, z_y, whole)",
}


def model(form: str, move: str, *, first: bool, off: float = 0.0, relu: bool = False) -> ir.Model:
    """Return a sum whose codes are moved, first or behind rounding; its bias may be off."""
    whole = np.rint((ADDED + off).astype(np.float64) / (S_X * FOLDED.astype(np.float64)))
    held = {
        "int8[4,2,3,3] w": WEIGHTS, "float[4] scales": SCALES, "float[4] bias": BIAS,
        "float[4,1,1] mean": MEAN, "float[4,1,1] factor": FACTOR, "float[4] folded": FOLDED,
        "float[4] added": ADDED + np.float32(off), "int32[4] whole": whole.astype(np.int32),
        "int8[4] z": np.zeros(4, np.int8), "float s_x": S_X, "int8 z_x": np.int8(0),
        "float s_y": S_Y, "int8 z_y": np.int8(-7 if not relu else -128),
        "int64[2] flat": np.int64([0, -1]), "int64[1] one": np.int64([1]),
        "int64[1] three": np.int64([3]), "float[4] twice": np.float32([1, 1, 2, 2]),
        "int64[8] pads": np.int64([0, 0, 1, 1, 0, 0, 1, 1]),
    }  # fmt: skip
    constants = ", ".join(
        f"{name} = {{{', '.join(map(str, np.ravel(array).tolist()))}}}"
        for name, array in held.items()
    )
    moved = MOVES[move].format
    relus = f" r = {'Relu' if relu and form != 'integer' else 'Identity'} (c)"
    if form == "integer":
        nodes = f"{relus} t = {moved('r')} y = DequantizeLinear (t, s_y, z_y)"
    elif first:
        nodes = f"{relus} t = {moved('r')} {ROUND.format('t', 'y')}"
    else:
        nodes = f"{relus} {ROUND.format('r', 't')} y = {moved('t')}"
    return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        net (int8[1,2,6,6] x) => (float y) <{constants}> {{
            a = DequantizeLinear (x, s_x, z_x) {SUMS[form]} {nodes}
        }}""")


def farthest(models: tuple[ir.Model, ir.Model]) -> int:
    """Return the largest difference of codes that ONNX Runtime computes, in steps."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    sessions = []
    for each in models:
        proto = ir.to_proto(each)
        proto.graph.output[0].ClearField("type")
        proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        sessions.append(ort.InferenceSession(proto.SerializeToString(), options))
    random = np.random.default_rng(1)
    batches = [random.integers(-128, 128, (1, 2, 6, 6)).astype(np.int8) for _ in range(40)]
    pairs = [[s.run(None, {"x": x})[0] for s in sessions] for x in batches]
    return max(int(np.rint(np.abs(a - b).max() / S_Y)) for a, b in pairs)


def bounds(models: tuple[ir.Model, ir.Model]) -> list[int]:
    found = qgraph.prove(*models, within="1step")
    assert found.verdict in ("bounded", "different"), [str(r.reason) for r in found.regions]
    return [r.bound.max_steps for r in found.regions if r.bound is not None]


CASES = [
    (move, *forms)
    for move in MOVES
    for forms in (
        (("normalized", True), ("folded", False)),
        (("normalized", False), ("folded", True)),
        *(
            [(("normalized", True), ("integer", False))]
            if move not in ("Pad", "GlobalMaxPool", "DepthToSpace")
            else []
        ),
    )
]


@pytest.mark.cases(fast=0, slow=2)
@pytest.mark.parametrize(("move", "ours", "theirs"), CASES)
def test_codes_that_are_moved_on_other_sides_of_rounding_are_bounded(move, ours, theirs):
    pair = tuple(model(form, move, first=first) for form, first in (ours, theirs))
    first = bounds(pair)[0]
    assert first == 1
    assert farthest(pair) <= first


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize(("move", "ours", "theirs"), CASES[::3])
def test_a_bias_that_is_off_moves_these_codes_no_farther_than_their_bound(move, ours, theirs):
    pair = (
        model(ours[0], move, first=ours[1]),
        model(theirs[0], move, first=theirs[1], off=2.6 * S_Y),
    )
    first = bounds(pair)[0]
    assert farthest(pair) == 3
    assert first in (3, 4)


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize(
    ("move", "form"), [*itertools.product(("MaxPool", "Transpose"), ("folded", "integer"))]
)
def test_a_relu_may_be_the_first_code(move, form):
    pair = (
        model("normalized", move, first=True, relu=True),
        model(form, move, first=False, relu=True),
    )
    assert bounds(pair)[0] == 1
    assert farthest(pair) <= 1
