"""Definitions traced into model-local functions: ONNX Runtime computes what the kernels compute."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript import build_function

from qgraph.numerics.rounding import Rounding
from qgraph.ops.operator import OPERATORS

OPSET = 24


def run_as_function(operator, arrays, arguments):
    """Run ``operator``'s definition as a function body in ONNX Runtime, unoptimized."""
    runtime = pytest.importorskip("onnxruntime")
    names = operator.schema.inputs

    def values():
        return [
            ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(array.shape))
            for name, array in zip(names, arrays, strict=True)
        ]

    body = build_function(
        lambda op, *inputs: operator.define(op, *inputs, **arguments),
        values(),
        domain="test",
        name=operator.schema.name,
        opset_imports={"": OPSET},
    )
    inputs = values()
    node = ir.node(operator.schema.name, inputs, domain="test")
    y = node.outputs[0]
    y.name, y.type = "y", ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph(inputs, [y], nodes=[node], name="g", opset_imports={"": OPSET, "test": 1})
    model = ir.Model(graph, ir_version=10, functions=[body])
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    content = ir.to_proto(model).SerializeToString()
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip(names, arrays, strict=True)))[0]


def f32(*values):
    return [np.asarray(value, np.float32) for value in values]


QUANT = {"signed": True, "narrow": False, "rounding_mode": Rounding.ROUND}
FLOAT = {"has_inf": False, "has_nan": False, "has_subnormal": True, "saturation": True}
EXAMPLES = [
    ("Quant-1", f32(0.1, 0, 8), QUANT),
    ("Quant-1", f32(0.1, 0, 1), QUANT),
    ("Quant-1", f32(-0.3, 2.5, 4), QUANT | {"signed": False, "narrow": True}),
    *(("Quant-1", f32(0.25, 3, 5), QUANT | {"rounding_mode": mode}) for mode in Rounding),
    ("BipolarQuant-1", f32(0.7), {}),
    ("Trunc-1", f32(0.1, 3, 10, 4), QUANT | {"rounding_mode": Rounding.FLOOR}),
    ("Trunc-2", f32(0.1, 3, 10, 0.4, 4), QUANT | {"rounding_mode": Rounding.FLOOR}),
    ("Trunc-2", f32(1, 0, 10, 1.4142137, 4), QUANT | {"signed": False}),
    ("FloatQuant-1", f32(0.3, 4, 3, 7, 448), FLOAT | {"rounding_mode": Rounding.ROUND}),
    ("FloatQuant-1", f32(1, 8, 7, 127, 3e38), FLOAT | {"rounding_mode": Rounding.FLOOR}),
    ("FloatQuant-1", f32(1, 2, 1, 1, 6), FLOAT | {"rounding_mode": Rounding.CEIL}),
    (
        "FloatQuant-1",
        f32(1, 5, 2, 15, 57344),
        FLOAT | {"saturation": False, "has_inf": True, "rounding_mode": Rounding.ROUND},
    ),
    ("FakeQuantize-1", f32(-1, 1, -1, 1), {"levels": 255, "auto_broadcast": "numpy"}),
    ("FakeQuantize-1", f32(0.5, -2, 0, 6), {"levels": 16, "auto_broadcast": "numpy"}),
    ("FakeQuantize-1", f32(0.5, 0.5, 0, 6), {"levels": 16, "auto_broadcast": "numpy"}),
]


@pytest.mark.runtime
@pytest.mark.parametrize(("name", "parameters", "arguments"), EXAMPLES)
def test_runtime_computes_the_kernel(name, parameters, arguments, hostile_inputs, same_bits):
    operator = OPERATORS.find(name)
    x = hostile_inputs(float(parameters[0]))
    result = run_as_function(operator, [x, *parameters], arguments)
    expected = operator.kernel(x, *parameters, **arguments)
    same_bits(result, expected, x)
