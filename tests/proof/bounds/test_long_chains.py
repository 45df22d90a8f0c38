"""Long chains of float operations between sums of codes and the next quantizer."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

import qgraph


def layer(factor: np.float32, operations: int) -> ir.Model:
    """Return a product of codes, and operations before the quantizer of its result."""
    names = ("Mul", "g"), ("Add", "h")
    steps = [(i, *names[i % 2]) for i in range(operations)]
    lines = [f"m{i + 1} = {name} (m{i}, {constant})" for i, name, constant in steps]
    quant = "qonnx.custom_op.general.Quant <signed = 1, narrow = 0>"
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import:
        ["": 21, "qonnx.custom_op.general": 2]>
    net (float[1, 2] x) => (float[1, 2] y)
    <float s = {{0.1}}, float z = {{0}}, float b = {{4}}, float f = {{0}}, float t = {{0.37}},
     float g = {{0.9990001}}, float h = {{0.001}}, float[2, 2] w = {{0.3, -0.2, 0.1, 0.4}}>
    {{
        q = {quant} (x, s, z, b) v = {quant} (w, s, z, b)
        p = MatMul (q, v) m0 = Mul (p, f)
        {" ".join(lines)}
        y = {quant} (m{operations}, t, z, b)
    }}""")
    model.graph.initializers["f"].const_value = ir.tensor(factor, name="f")
    return model


def test_a_thousand_operations_before_a_quantizer_are_bounded() -> None:
    factors = np.float32(0.3), np.nextafter(np.float32(0.3), np.float32(1))
    certificate = qgraph.prove(*(layer(factor, 1100) for factor in factors), within="1step")
    assert certificate.verdict == "bounded"
