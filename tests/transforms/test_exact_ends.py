"""Deployments in which some quantizers must stay exact: the layers before them still change."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

import qgraph
from qgraph.inventory.executed import saturates

HEAD = '<ir_version: 10, opset_import: ["": 17, "org.openvinotoolkit": 1]>'
BODY = """HEAD net (float[1,4,8] x) => (float[1,4,8] y) <NUMBERS> {
    n = LayerNormalization <axis = -1, epsilon = 0.00001> (x, g, b0)
    q1 = org.openvinotoolkit.FakeQuantize <levels = 256> (n, l1, h1, l1, h1)
    k1 = org.openvinotoolkit.FakeQuantize <levels = 255> (w1, lw1, hw1, lw1, hw1)
    [first] m1 = MatMul (q1, k1) a1 = Add (m1, b1)
    q2 = org.openvinotoolkit.FakeQuantize <levels = 256> (a1, l2, h2, l2, h2)
    k2 = org.openvinotoolkit.FakeQuantize <levels = 255> (w2, lw2, hw2, lw2, hw2)
    [second] m2 = MatMul (q2, k2) a2 = Add (m2, b2)
    r = Add (x, a2)
    BETWEEN
    q3 = org.openvinotoolkit.FakeQuantize <levels = 256> (e, l3, h3, l3, h3)
    k3 = org.openvinotoolkit.FakeQuantize <levels = 255> (w3, lw3, hw3, lw3, hw3)
    [third] m3 = MatMul (q3, k3) y = Add (m3, b3)
}"""
NORMALIZED = "e = LayerNormalization <axis = -1, epsilon = 0.00001> (r, g, b0)"


def limits(high: float, zero: int, *, has_top: bool) -> tuple[float, float]:
    """Return a range with real zero at a level.

    If it ``has_top``, the formula of FakeQuantize misses its upper limit.
    """
    top = np.float32(high)
    while True:
        low = np.float32(top * np.float32(zero) / np.float32(zero - 255))
        if ((top - low) + low != top) == has_top:
            return float(low), float(top)
        top = np.nextafter(top, np.float32(9))


LIMITS = {
    "1": limits(3.1, 120, has_top=True),
    "2": limits(1.8, 136, has_top=False),
    "3": limits(3.0, 139, has_top=True),
}


def listed(name: str, array: np.ndarray) -> str:
    sizes = ",".join(map(str, array.shape))
    kind = f"float[{sizes}]" if sizes else "float"
    numbers = ", ".join(repr(float(n)) for n in np.float32(array).reshape(-1))
    return f"{kind} {name} = {{{numbers}}}"


def model(between: str) -> ir.Model:
    random = np.random.default_rng(5)
    numbers = [listed("g", 1 + random.normal(size=8) / 10)]
    numbers += [listed(f"b{n}", random.normal(size=8) / 10) for n in range(4)]
    for n in (1, 2, 3):
        weights = random.uniform(-0.5, 0.5, (8, 8)).astype(np.float32)
        top = np.abs(weights).max(axis=0, keepdims=True)
        numbers += [listed(f"w{n}", weights), listed(f"lw{n}", -top), listed(f"hw{n}", top)]
    for name, (low, high) in LIMITS.items():
        numbers += [listed(f"l{name}", np.float32(low)), listed(f"h{name}", np.float32(high))]
    text = BODY.replace("HEAD", HEAD).replace("NUMBERS", ", ".join(numbers))
    return ir.from_onnx_text(text.replace("BETWEEN", between))


def test_only_the_layer_before_a_normalization_of_unknown_data_stays_in_float():
    """A LayerNormalization of unlimited data multiplies differences without limit."""
    assert expect_close(NORMALIZED) == {"second"}


def test_a_sum_with_an_input_of_unknown_range_is_bounded():
    assert not expect_close("e = Identity (r)")


def expect_close(between: str) -> set[str]:
    """Return the layers that are left in float; expect results within a step of the last codes."""
    reference, deployed = (qgraph.load(model(between)) for _ in range(2))
    report = qgraph.deploy(deployed, "onnxruntime-cpu@x86-64")
    for scale in (0.01, 1.0, 30.0):
        x = np.random.default_rng(1).normal(size=(1, 4, 8)).astype(np.float32) * np.float32(scale)
        ours = reference.run({"x": x}, backend="numpy")["y"]
        theirs = deployed.run({"x": x}, backend="numpy" if saturates("onnxruntime") else "ort")["y"]
        # each code of the last quantizer moves results by a step times a weight of at most 0.5
        assert np.abs(theirs - ours).max() <= 8 * 0.5 * 7.0 / 255
    return {layer.node for layer in report.left}
