from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.errors import OptionError
from qgraph.execution.inputs import make_inputs
from qgraph.model import Model


def model(body: str, imports: str = '"": 21, "qonnx.custom_op.general": 1') -> Model:
    return Model(ir.from_onnx_text(f"<ir_version: 10, opset_import: [{imports}]> {body}"))


def inputs(declared: str, **options: Any) -> dict[str, Any]:
    return make_inputs(model(f"g ({declared}) => (y) {{ y = Identity (x) }}").inputs, **options)


def test_the_same_seed_gives_the_same_inputs_another_batch_others() -> None:
    x = inputs("float[2,3] x", seed=1)["x"]
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, inputs("float[2,3] x", seed=1)["x"])
    for other in ({"seed": 2}, {"seed": 1, "number": 1}):
        assert (x != inputs("float[2,3] x", **other)["x"]).all()


def test_a_dynamic_batch_is_one_unless_it_is_given() -> None:
    assert inputs("float[N,3] x")["x"].shape == (1, 3)
    found = inputs("float[N,3] x, float[N,2] z", shapes={"x": (5, 3)})
    assert (found["x"].shape, found["z"].shape) == ((5, 3), (5, 2))


@pytest.mark.parametrize(
    ("declared", "shapes", "message"),
    [
        (
            "float[N,3,H,W] x",
            {},
            r"'x' \(FLOAT\[N,3,H,W\]\) has no fixed .*--shape x:1,3,H,W with numbers for H, W;",
        ),
        ("float[] x", {"z": (1,)}, "given for 'z', but the inputs of the model are 'x'"),
        ("float[N,3] x", {"x": (1, 4)}, r"cannot have the shape \[1, 4\]"),
        ("float[N,3] x", {"x": (3,)}, r"cannot have the shape \[3\]"),
        ("string[N] x", {}, "not a tensor of numbers. Feed it: -i x=FILE.npy"),
    ],
)
def test_what_cannot_be_made_up_is_refused(declared: str, shapes: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        inputs(declared, shapes=shapes)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("bool", 0, 1), ("uint8", 0, 255), ("int8", -128, 127), ("int64", 0, 3), ("int4", -8, 7)],
)
def test_integers_fill_their_range_or_stay_small(dtype: str, low: int, high: int) -> None:
    x = inputs(f"{dtype}[5000] x")["x"].astype(np.int64)
    assert (x.min(), x.max()) == (low, high)


@pytest.mark.parametrize("dtype", ["float16", "double", "bfloat16", "float8e4m3fn"])
def test_floats_of_every_type_are_made(dtype: str) -> None:
    x = inputs(f"{dtype}[500] x")["x"].astype(np.float64)
    assert np.isfinite(x).all()
    assert x.std() > 1


QUANTIZERS = {
    "Quant": "<float s = {0.3}, float z = {0}, float b = {4}> "
    "{ y = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (x, s, z, b) }",
    "QuantizeLinear": "<float s = {0.3}, int8 z = {2}> { y = QuantizeLinear (x, s, z) }",
    "FakeQuantize": "<float l = {-0.6}, float h = {3.9}> "
    "{ y = org.openvinotoolkit.FakeQuantize <levels = 16> (x, l, h, l, h) }",
}


@pytest.mark.parametrize("name", QUANTIZERS)
def test_quantizers_get_points_of_their_grid_and_neighbours(name: str) -> None:
    """All three have steps of 0.3 through zero; ties lie half-way between grid points."""
    body = f"g (float[4000] x) => (y) {QUANTIZERS[name]}"
    imports = '"": 21, "qonnx.custom_op.general": 1, "org.openvinotoolkit": 1'
    x = make_inputs(model(body, imports).inputs)["x"]
    halves = x.astype(np.float64) / 0.15
    near = np.abs(halves - np.rint(halves)) < 1e-5 * np.maximum(1, np.abs(halves))
    assert 0.2 < near.mean() < 0.3
    assert (np.rint(halves[near]) % 2 == 1).any()
    exact = np.isin(x, (np.arange(-9, 9) + 0.5).astype(np.float32) * np.float32(0.3))
    if name != "FakeQuantize":
        assert 0 < exact.sum() < near.sum()
    assert (x[x == 0].view(np.int32) < 0).any()


def test_per_channel_quantizers_get_their_own_grids() -> None:
    body = """g (float[2,2000] x) => (y) <float[2] s = {0.25, 32}, int8[2] z = {0, 0}> {
        y = QuantizeLinear <axis = 0> (x, s, z) }"""
    x = make_inputs(model(body).inputs)["x"]
    assert np.isin(x[1], [16, 48, -16]).any()
    assert not np.isin(x[0], [16, 48, -16, 80]).all()


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("Quant", -8 * 0.3, 7 * 0.3), ("QuantizeLinear", -130 * 0.3, 125 * 0.3)],
)
def test_the_range_of_a_quantizer_is_filled(name: str, low: float, high: float) -> None:
    x = make_inputs(model(f"g (float[8000] x) => (y) {QUANTIZERS[name]}").inputs)["x"]
    inside = (x > low) & (x < high)
    assert 0.75 < inside.mean() < 0.99
    share, _ = np.histogram(x[inside], bins=8, range=(low, high))
    assert share.min() > 0.02 * len(x)


def test_a_range_without_measure_is_not_used() -> None:
    """Codes of 32 bits do not say how large the data is."""
    body = """g (float[4000] x) => (y) <float s = {0.001}, float z = {0}, float b = {32}> {
        y = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (x, s, z, b) }"""
    assert np.abs(make_inputs(model(body).inputs)["x"]).max() < 6


def test_all_open_inputs_are_named_with_the_options_to_type() -> None:
    with pytest.raises(OptionError) as error:
        inputs("float[N,3,H,W] x, float[B,T] ids, float[5] z")
    assert "Inputs 'x' (FLOAT[N,3,H,W]), 'ids' (FLOAT[B,T]) have no fixed shape" in str(error.value)
    assert "Give --shape x:1,3,H,W --shape ids:1,T with numbers for H, W, T;" in str(error.value)
