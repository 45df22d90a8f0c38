"""The taps of sums against the operators as ONNX Runtime executes them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from qgraph.ops.sums_of_products import convolution_taps, rows_of_transposed

CHANNELS = 4


def node(op: str, **attributes: object) -> ir.Node:
    inputs = [ir.Value(name=name) for name in ("x", "w")]
    return ir.node(op, inputs, attributes, outputs=[ir.Value(name="y")])


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_rows_add_up_the_channels_of_their_group(op, groups):
    rng = np.random.default_rng(groups)
    rows = 8
    shape = (rows, CHANNELS // groups) if op == "Conv" else (CHANNELS, rows // groups)
    weights = rng.integers(-5, 6, (*shape, 2, 3)).astype(np.float32)
    numbers = rng.integers(-3, 4, CHANNELS).astype(np.float32)
    made = node(op, group=groups)
    layout = convolution_taps(made, weights.shape[2:])
    ordered = weights if op == "Conv" else rows_of_transposed(weights, groups)
    by_tap = layout.by_tap(numbers.reshape(-1, 1, 1), ordered)
    sums = (ordered * by_tap).reshape(rows, -1).sum(axis=1)

    data = np.broadcast_to(numbers.reshape(1, -1, 1, 1), (1, CHANNELS, 7, 7))
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[1,{CHANNELS},7,7] x, float[a,b,2,3] w) => (float[1,{rows},c,d] y)
        {{ y = {op} <group = {groups}> (x, w) }}"""
    model = ir.to_proto(ir.from_onnx_text(text))
    session = ort.InferenceSession(model.SerializeToString())
    (found,) = session.run(None, {"x": np.array(data), "w": weights})
    assert np.array_equal(found[0, :, 3, 3], sums)  # behind padding of a transposed convolution
    assert np.array_equal(layout.by_row(sums).shape, (rows, 1, 1))


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": [2, 1]},
        {"dilations": [1, 2]},
        {"pads": [0, 1, 0, 0]},
        {"auto_pad": "SAME_UPPER"},
        {"group": 2},
        {"output_padding": [1, 0]},
        {"output_shape": [9, 9]},
    ],
)
def test_sums_that_read_other_elements_have_other_layouts(attributes):
    plain = convolution_taps(node("ConvTranspose"), (2, 3))
    assert convolution_taps(node("ConvTranspose", **attributes), (2, 3)) != plain
    assert convolution_taps(node("ConvTranspose", strides=[1, 1]), (2, 3)) == plain
    assert convolution_taps(node("Conv"), (2, 3)) != plain


@pytest.mark.parametrize("attributes", [{"pads": [0, 1, 0, 0]}, {"auto_pad": "SAME_LOWER"}])
def test_padding_counts_as_zeros(attributes):
    layout = convolution_taps(node("Conv", **attributes), (2, 3))
    low, high = layout.ends_by_tap(np.asarray(2.0), np.asarray(3.0), np.ones((1, 1, 2, 3)))
    assert (low.item(), high.item()) == (0.0, 3.0)
    plain = convolution_taps(node("Conv"), (2, 3))
    low, high = plain.ends_by_tap(np.asarray(2.0), np.asarray(3.0), np.ones((1, 1, 2, 3)))
    assert (low.item(), high.item()) == (2.0, 3.0)
