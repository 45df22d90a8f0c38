from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.execution.inputs import make_inputs
from qgraph.execution.prepare import prepare
from qgraph.execution.session import MODERATE, is_moderate
from qgraph.quantizers.runtime_forms import magnitudes

pytestmark = pytest.mark.sums

QONNX = "qonnx.custom_op.general"


def bounds(body: str) -> dict[str, float]:
    """Return the bounds by name of a graph from x to y."""
    text = f'<ir_version: 10, opset_import: ["": 21, "{QONNX}": 2]> {body}'
    return {str(value.name): bound for value, bound in magnitudes(ir.from_onnx_text(text)).items()}


def test_no_value_of_a_real_network_is_beyond_its_bound(models: Path, model_name: str) -> None:
    """Inputs of usual size, and the largest that the bounds are for."""
    model = qgraph.load(models / f"{model_name}.onnx")
    model.freeze_inputs()
    found = {str(value.name): bound for value, bound in magnitudes(model.ir).items()}
    assert set(found) >= {str(value.name) for value in model.inputs}
    executor = prepare(model.ir, "numpy")
    names = [name for name in found if name in executor.computed]
    inputs = make_inputs(model.inputs)
    rng = np.random.default_rng(0)
    extremes = {
        name: (rng.choice([-1, 1], array.shape) * MODERATE).astype(np.float32)
        for name, array in inputs.items()
    }
    for given in (inputs, extremes):
        for name, array in executor.run(given, taps=names).items():
            if name in found:
                assert np.abs(array).max(initial=0) <= found[name], name


def test_what_comes_after_a_quantizer_is_small_whatever_the_input() -> None:
    found = bounds(f"""
        g (float[1,2,4,4] x) => (float[1,1,3,3] y)
        <float s = {{0.5}}, float z = {{0}}, float b = {{4}},
         float[1,2,2,2] w = {{1, -1, 1, -1, 2, 2, -2, 2}}, float[1] c = {{-3}}> {{
            q = {QONNX}.Quant <signed = 0, narrow = 0> (x, s, z, b)
            y = Conv (q, w, c)
        }}""")
    assert found["x"] == MODERATE
    assert found["q"] == pytest.approx(7.5, rel=0.01)
    assert found["y"] == pytest.approx(12 * 7.5 + 3, rel=0.01)


@pytest.mark.parametrize(
    "node",
    [
        "Sqrt (x)",
        "Log (x)",
        "Div (x, x)",
        "Div (x, zero)",
        "Mul (x, nan)",
        "MaxPool <kernel_shape = [2], ceil_mode = 1> (x)",
        "Foo.Unknown (x)",
        "Pow (x, x)",
    ],
)
def test_what_may_become_nan_has_no_bound(node: str) -> None:
    body = f"""g (float[1,1,5] x) => (float[1,1,5] y)
        <float zero = {{0, 1}}, float nan = {{nan}}> {{ a = {node}  y = Relu (a) }}"""
    body = body.replace("float zero = {0, 1}", "float[2,1,1] zero = {0, 1}")
    assert set(bounds(body)) == {"x"}


def test_a_quantizer_of_what_may_be_nan_has_no_bound() -> None:
    found = bounds(f"""
        g (float[3] x) => (float[3] y) <float s = {{0.5}}, float z = {{0}}, float b = {{4}}> {{
            a = Sqrt (x)  y = {QONNX}.Quant <signed = 0, narrow = 0> (a, s, z, b)
        }}""")
    assert set(found) == {"x"}


def test_a_chain_of_products_ends_up_without_a_bound() -> None:
    chain = " ".join(f"v{i + 1} = Mul (v{i}, v{i})" for i in range(5))
    found = bounds(f"g (float[3] v0) => (float[3] v5) {{ {chain} }}")
    assert sorted(found) == ["v0", "v1"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.full(9, 2.0**28, np.float32), True),
        (np.zeros((0, 3), np.float32), True),
        (np.float32([1, np.nan]), False),
        (np.float32([1, -np.inf]), False),
        (np.float32([1, 3e38]), False),
        (np.float32([2.0**31]), False),
        ([1.0], False),
        (np.int8([3]), True),
    ],
)
def test_moderate_inputs(given: object, expected: bool) -> None:
    assert is_moderate(given) is expected
