"""Places that hold tensors, bytes they take, and what is wrong with broken ones."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.graph.tensors import inline_fault, slots, stored_bytes

MODEL = """
<ir_version: 10, opset_import: ["": 21, "local": 1]>
g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, -2}> {
    k = Constant <value = float[2] {3, 4}> ()
    f = ConstantOfShape <value = float[1] {5}> (x)
    t = local.shift (k)
    y = If (c) <then_branch = a () => (float[2] p) <float[2] v = {6, 7}> { p = Add (t, v) },
                else_branch = b () => (float[2] q) { q = Mul (t, w) }>
}
<domain: "local", opset_import: ["": 21]> shift (s) => (r) {
    o = Constant <value = float[2] {8, 9}> () r = Add (s, o)
}
"""


def proto(dtype: int, dims: list[int], **data: object) -> ir.TensorProtocol:
    return ir.serde.deserialize_tensor(onnx.TensorProto(data_type=dtype, dims=dims, **data))


def test_slots_are_found_in_graphs_branches_and_functions() -> None:
    found = {
        str(s): (s.tensor.numpy().tolist(), s.is_weight) for s in slots(ir.from_onnx_text(MODEL))
    }
    assert found == {
        "initializer 'w'": ([1, -2], True),
        "Constant producing 'k' in graph 'g', attribute 'value'": ([3, 4], True),
        "ConstantOfShape producing 'f' in graph 'g', attribute 'value'": ([5], False),
        "initializer 'v'": ([6, 7], True),
        "Constant producing 'o', attribute 'value'": ([8, 9], True),
    }


def test_a_default_of_a_function_is_a_slot_but_no_weight() -> None:
    model = ir.from_onnx_text(MODEL)
    (function,) = model.functions.values()
    function.attributes["bias"] = ir.AttrTensor("bias", ir.tensor(np.float32(1)))
    found = [slot for slot in slots(model) if isinstance(slot.owner, ir.Function)]
    assert [(str(s), s.is_weight) for s in found] == [("function 'shift', attribute 'bias'", False)]


def test_every_slot_can_be_filled_anew() -> None:
    model = ir.from_onnx_text(MODEL)
    for number, slot in enumerate(slots(model)):
        slot.fill(ir.tensor(np.full(2, number, np.float32)))
    assert [s.tensor.numpy().tolist() for s in slots(model)] == [[n, n] for n in range(5)]


def test_one_tensor_of_a_list_can_be_filled_anew() -> None:
    tensors = [ir.tensor(np.float32(n)) for n in range(3)]
    node = ir.Node("custom", "Op", [], [ir.AttrTensors("many", tensors)], name="n")
    node.outputs[0].name = "y"
    model = ir.Model(ir.Graph([], [], nodes=[node], name="g"), ir_version=10)
    list(slots(model))[1].fill(ir.tensor(np.float32(9)))
    assert [float(s.tensor.numpy()) for s in slots(model)] == [0, 9, 2]


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        (ir.DataType.FLOAT, (3, 5), 60),
        (ir.DataType.INT4, (3, 5), 8),
        (ir.DataType.UINT2, (3, 3), 3),
        (ir.DataType.FLOAT6E2M3, (3,), 3),
        (ir.DataType.BOOL, (), 1),
        (ir.DataType.FLOAT, (0, 4), 0),
        (ir.DataType.DOUBLE, (2**30, 2**30), 2**63),
    ],
)
def test_stored_bytes_packs_narrow_types_and_computes_nothing(
    dtype: ir.DataType, shape: tuple[int, ...], expected: int
) -> None:
    def never() -> ir.TensorProtocol:
        raise AssertionError("computed")

    assert stored_bytes(ir.LazyTensor(never, dtype, ir.Shape(shape))) == expected


def test_strings_take_their_characters() -> None:
    assert stored_bytes(ir.StringTensor([b"ab", b"cde"], shape=ir.Shape([2]))) == 5


@pytest.mark.parametrize(
    "tensor",
    [
        proto(onnx.TensorProto.FLOAT, [2], raw_data=bytes(8)),
        proto(onnx.TensorProto.FLOAT, [2], float_data=[1, 2]),
        proto(onnx.TensorProto.FLOAT, [0]),
        proto(onnx.TensorProto.FLOAT16, [3], int32_data=[1, 2, 3]),
        proto(onnx.TensorProto.COMPLEX64, [2], float_data=[1, 2, 3, 4]),
        proto(onnx.TensorProto.INT4, [3], raw_data=bytes(2)),
        proto(onnx.TensorProto.INT4, [3], int32_data=[1, 2]),
        proto(onnx.TensorProto.FLOAT6E2M3, [3], int32_data=[1, 2, 3]),
        proto(onnx.TensorProto.UINT32, [1], uint64_data=[1]),
        proto(onnx.TensorProto.STRING, [1], string_data=[b"s"]),
        ir.tensor(np.zeros(3)),
    ],
)
def test_sound_tensors_have_no_fault(tensor: ir.TensorProtocol) -> None:
    assert inline_fault(tensor) is None


@pytest.mark.parametrize(
    ("tensor", "fault"),
    [
        (proto(1, [3], raw_data=bytes(8)), r"8 bytes are there, but FLOAT\[3\] takes 12"),
        (proto(1, [1], raw_data=bytes(8)), "8 bytes are there"),
        (proto(1, [3], float_data=[1, 2]), r"2 numbers are there, but FLOAT\[3\] takes 3"),
        (proto(1, [1 << 40, 1 << 40]), "0 numbers are there"),
        (proto(1, [-2], raw_data=bytes(8)), "negative size"),
        (proto(0, [1], raw_data=bytes(8)), "no element type"),
    ],
)
def test_missing_and_surplus_data_and_nonsense_are_named(
    tensor: ir.TensorProtocol, fault: str
) -> None:
    found = inline_fault(tensor)
    assert found is not None
    assert re.search(fault, found)
