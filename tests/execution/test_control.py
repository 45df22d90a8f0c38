"""Sequences, optionals, empty tensors and odd shapes through control flow and kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.errors import ExecutionError, OperatorError
from qgraph.execution.executor import Executor

DOMAIN = "qonnx.custom_op.general"


def run(body: str, opset: int = 21, **inputs: Any) -> dict[str, Any]:
    text = f'<ir_version: 10, opset_import: ["": {opset}, "{DOMAIN}": 1]> {body}'
    return Executor(ir.from_onnx_text(text)).run(inputs)


def f32(*values: float) -> Any:
    return np.asarray(values, np.float32)


def test_an_optional_is_made_asked_and_opened() -> None:
    body = """g (float[N] x) => (float[N] y, bool full, bool empty, bool absent) {
        o = Optional (x)
        full = OptionalHasElement (o)
        e = OptionalGetElement (o)
        y = Neg (e)
        n = Optional <type = float[N]> ()
        empty = OptionalHasElement (n)
        absent = OptionalHasElement ()
    }"""
    found = run(body, x=f32(1, 2))
    np.testing.assert_array_equal(found["y"], [-1, -2])
    assert (found["full"], found["empty"], found["absent"]) == (True, False, False)


def test_an_empty_optional_cannot_be_opened() -> None:
    body = """g (float[N] x) => (float[N] y) {
        n = Optional <type = float[N]> ()
        y = OptionalGetElement (n)
    }"""
    with pytest.raises(ExecutionError, match=r"OptionalGetElement .*absent: the optional is empty"):
        run(body, x=f32(1))


def test_a_loop_carries_a_sequence() -> None:
    body = """g (float[2] x, int64 n) => (float[K] y) {
        s0 = SequenceEmpty <dtype = 1> ()
        s = Loop (n, , s0) <body = b (int64 i, bool c, seq(float[2]) v)
            => (bool again, seq(float[2]) w) { again = Identity (c) w = SequenceInsert (v, x) }>
        y = ConcatFromSequence <axis = 0> (s)
    }"""
    assert run(body, x=f32(1, 2), n=np.asarray(3))["y"].tolist() == [1, 2] * 3


def test_sequences_are_split_changed_and_joined() -> None:
    body = """g (float[4] x) => (float[4] y, int64 n, float[K] z) {
        s = SplitToSequence <axis = 0> (x)
        n = SequenceLength (s)
        y = ConcatFromSequence <axis = 0> (s)
        i = Constant <value = int64 {0}> ()
        u = SequenceErase (s, i)
        v = SequenceInsert (u, x)
        z = ConcatFromSequence <axis = 0> (v)
    }"""
    found = run(body, x=f32(1, 2, 3, 4))
    assert found["n"] == 4
    assert found["z"].tolist() == [2, 3, 4, 1, 2, 3, 4]


def test_a_scan_over_nothing_gives_the_state_and_an_empty_sequence() -> None:
    body = """g (float[2] s, float[L,2] x) => (float[2] y, float[L,2] t) {
        y, t = Scan <num_scan_inputs = 1, body = b (float[2] v, float[2] e)
            => (float[2] w, float[2] o) { w = Add (v, e) o = Identity (w) }> (s, x)
    }"""
    found = run(body, s=f32(1, 2), x=np.zeros((0, 2), np.float32))
    assert found["y"].tolist() == [1, 2]
    assert found["t"].shape == (0, 2)


@pytest.mark.parametrize(
    ("operator", "shape"),
    [
        ("Conv (x, w)", (0, 2, 2, 2)),
        ("MaxPool <kernel_shape = [3, 3]> (x)", (0, 1, 2, 2)),
        ("AveragePool <kernel_shape = [3, 3]> (x)", (0, 1, 2, 2)),
        (f"{DOMAIN}.Quant <signed = 1, narrow = 0> (x, s, z, b)", (0, 1, 4, 4)),
        ("QuantizeLinear (x, s)", (0, 1, 4, 4)),
    ],
)
def test_an_empty_batch_passes(operator: str, shape: tuple[int, ...]) -> None:
    body = f"""g (float[N,1,4,4] x, float[2,1,3,3] w) => (y)
        <float s = {{0.5}}, float z = {{0}}, float b = {{4}}> {{ y = {operator} }}"""
    x, w = np.zeros((0, 1, 4, 4), np.float32), np.ones((2, 1, 3, 3), np.float32)
    assert run(body, x=x, w=w)["y"].shape == shape


def test_a_product_over_nothing_is_zero() -> None:
    body = "g (float[N,K] x, float[K,2] w) => (float[N,2] y) { y = MatMul (x, w) }"
    x, w = np.zeros((3, 0), np.float32), np.zeros((0, 2), np.float32)
    assert run(body, x=x, w=w)["y"].tolist() == [[0, 0]] * 3


def test_scalars_pass() -> None:
    body = f"""g (float x) => (float y) <float s = {{0.5}}, float z = {{0}}, float b = {{4}}> {{
        y = {DOMAIN}.Quant <signed = 1, narrow = 0> (x, s, z, b) }}"""
    y = run(body, x=np.asarray(0.7, np.float32))["y"]
    assert (y.shape, y.dtype, float(y)) == ((), np.float32, 0.5)


def test_a_failing_quantizer_names_the_shapes_and_types_it_was_given() -> None:
    body = f"""g (float[N] x, float[M] s) => (float[N] y) <float z = {{0}}, float b = {{4}}> {{
        y = {DOMAIN}.Quant <signed = 1, narrow = 0> (x, s, z, b) }}"""
    given = r"Quant producing 'y' .*Its inputs are float32\[3\], float32\[2\], float32\[\], float32"
    with pytest.raises(OperatorError, match=given):
        run(body, x=f32(1, 2, 3), s=f32(1, 2))
