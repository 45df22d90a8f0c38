"""Types and shapes follow from the inputs, not from what a file states."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.graph.derived import derived, twins
from qgraph.graph.scopes import bodies


def lying(text: str) -> ir.Model:
    """A model that states a wrong type and shape for everything but its inputs."""
    model = ir.from_onnx_text(text)
    for body in bodies(model):
        for node in body:
            for value in node.outputs:
                value.type, value.shape = ir.TensorType(ir.DataType.INT4), ir.Shape([7, 9])
    return model


def forms(model: ir.Model) -> dict[str | None, str]:
    return {
        value.name: f"{value.dtype.name.lower() if value.dtype else None}{value.shape}"
        for body in bodies(model)
        for node in body
        for value in node.outputs
    }


BRANCHES = """<ir_version: 10, opset_import: ["": 16, "my": 1]>
g (float[N,2] x, bool c) => (float[a,b] y, float[a] z, float[a] n)
<float[2,4] w = {1,2,3,4,5,6,7,8}> {
    d = MatMul (x, w)
    y = If (c) <
        then_branch = p () => (float[a,b] u) { u = Flatten <axis = 0> (d) },
        else_branch = q () => (float[a,b] v) { k = Cast <to = 6> (d) v = Relu (d) }>
    z = my.Op (d)
    n = Neg (z)
}"""


def test_all_is_inferred_from_the_inputs_also_in_branches() -> None:
    model = lying(BRANCHES)
    weight = model.graph.initializers["w"]
    weight.shape = ir.Shape([5, 5])
    model.graph.inputs[0].shape = ir.Shape([3, 2])
    found = forms(derived(model))
    assert found.pop("y") == "float[unk__0,unk__1]"
    assert found == {
        "d": "float[3,4]",
        "u": "float[1,12]",
        "k": "int32[3,4]",
        "v": "float[3,4]",
        "z": "NoneNone",
        "n": "NoneNone",
    }
    assert forms(model)["d"] == "int4[7,9]", "the model itself stays"


def test_twins_have_what_follows() -> None:
    model = lying(BRANCHES)
    known = twins(model)
    x, d = model.graph.inputs[0], model.graph[0].outputs[0]
    assert str(known[x].shape) == "[N,2]"
    assert str(known[d].shape) == "[N,4]"
    assert known[d].dtype is ir.DataType.FLOAT


def test_what_cannot_be_inferred_at_all_is_unknown() -> None:
    model = lying(BRANCHES)
    del model.opset_imports[""]  # which onnx refuses as a whole
    assert set(forms(derived(model)).values()) == {"NoneNone"}
    assert len(derived(model).graph.initializers) == 1


def test_sequences_are_no_tensors() -> None:
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 16]>
        g (float[2] x) => (seq(float[2]) s) { s = SequenceConstruct (x, x) }""")
    assert forms(derived(model)) == {"s": "NoneNone"}


CODES = (
    "uint8[2,3,4,4] x, uint8[2,3,1,4] b",
    """float s = {0.1}, uint8 z = {7}, float t = {0.2}, uint8 o = {9}, bool[1] c = {1},
    uint8[3,5] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}""",
)
NODES = {
    "QLinearAdd (x, s, z, b, t, o, s, z)": [],
    "QLinearMul (x, s, z, b, t, o, s, z)": [],
    "QLinearAveragePool <kernel_shape = [2,3], strides = [1,2]> (x, s, z, t, o)": [],
    "QLinearGlobalAveragePool (x, s, z, t, o)": [],
    "QLinearLeakyRelu <alpha = 0.1> (x, s, z, t, o)": [],
    "QLinearSigmoid (x, s, z, t, o)": [],
    "QLinearSoftmax <opset = 13> (x, s, z, t, o)": [],
    "QLinearConcat <axis = 2> (s, z, x, s, z, b, t, o)": [],
    "QLinearWhere (c, b, s, z, x, t, o, s, z)": [],
    "DequantizeLinear (x, s, z)": [],
    "QGemm (f, s, z, w, t, o, , s, z)": ["f"],
    "QGemm (f, s, z, w, t, o)": ["f"],
    "MatMulIntegerToFloat (f, w, s, t, z, o)": ["f"],
}


@pytest.mark.runtime
@pytest.mark.parametrize("node", NODES)
def test_stand_ins_have_the_results_that_the_runtime_has(node: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    inputs, constants = CODES
    inputs = f"{inputs}, uint8[2,3] f" if NODES[node] else inputs
    text = f"""<ir_version: 8, opset_import: ["": 16, "com.microsoft": 1]>
        g ({inputs}) => (uint8 y) <{constants}> {{ y = com.microsoft.{node} }}"""
    model = ir.from_onnx_text(text)
    (value,) = model.graph.outputs
    value.type = value.shape = None
    copy = derived(model)
    found = copy.graph.outputs[0]
    assert copy.graph[0].domain == "com.microsoft"
    assert found.dtype is not None
    proto = ir.to_proto(copy)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds: dict[str, Any] = {
        v.name: np.ones(v.shape.numpy(), np.uint8)  # type: ignore[union-attr]
        for v in copy.graph.inputs
    }
    (y,) = session.run(None, feeds)
    assert found.dtype.numpy() == y.dtype
    assert found.shape == y.shape


def test_products_with_a_type_that_is_not_known_stay_unknown() -> None:
    model = ir.from_onnx_text("""<ir_version: 8, opset_import: ["": 16, "com.microsoft": 1]>
        g (uint8[2,3] f, uint8[3,5] w, float16 s, uint8 z) => (float y, float q) {
            y = com.microsoft.MatMulIntegerToFloat (f, w, s, s, z, z)
            q = com.microsoft.DequantizeLinear (f, s, z)
        }""")
    assert forms(derived(model)) == {"y": "NoneNone", "q": "NoneNone"}
