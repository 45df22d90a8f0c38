"""Kernels of onnx's reference implementation, which nodes of one form share."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.errors import UnsupportedError
from qgraph.ops.dispatch import reference_kernel

X = np.float32([-2, -0.5, 1, 8])


def node_of(text: str) -> ir.Node:
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[4] x, float l, float h) => (float[4] y)'
        f" {{ {text} }}"
    )
    return model.graph[0]


def test_nodes_that_differ_in_names_only_compute_the_same():
    kernels = [reference_kernel(node_of(f"{n}y = Neg (x)"), {"": 21}) for n in ("", "[a] ", "[b] ")]
    assert [kernel(X)[0].tolist() for kernel in kernels] == [[2, 0.5, -1, -8]] * 3


def test_attributes_versions_types_and_absent_inputs_are_told_apart():
    def of(text: str, *arrays: object, version: int = 21) -> list[float]:
        found: list[float] = reference_kernel(node_of(text), {"": version})(*arrays)[0].tolist()
        return found

    low, high = np.float32(0), np.float32(2)
    assert of("y = LeakyRelu <alpha = 0.5> (x)", X) == [-1, -0.25, 1, 8]
    assert of("y = LeakyRelu <alpha = 2.0> (x)", X) == [-4, -1, 1, 8]
    assert of("y = Clip (x, , h)", X, None, high) == [-2, -0.5, 1, 2]
    assert of("y = Clip (x, l)", X, low) == [0, 0, 1, 8]
    assert of("y = Clip (x, l, h)", X, low, high) == [0, 0, 1, 2]
    assert of("y = Sum (x, x)", X, X) == [-4, -1, 2, 16]
    assert of("y = Neg (x)", X.astype(np.int32)) == [2, 0, -1, -8]
    assert of("y = Softmax <axis = 0> (x)", np.zeros(4, np.float32)) == [0.25] * 4


def test_outputs_that_a_node_has_not_are_left_out():
    (values,) = reference_kernel(node_of("y = TopK <axis = 0> (x, l)"), {"": 21})(X, np.int64([2]))
    assert values.tolist() == [8, 1]


def test_an_operator_without_an_implementation_is_refused_with_the_name_of_each_node():
    text = "y = MaxRoiPool <pooled_shape = [1, 1]> (x, l)"
    for name in ("first", "second"):
        kernel = reference_kernel(node_of(f"[{name}] {text}"), {"": 21})
        with pytest.raises(UnsupportedError, match=name):
            kernel(np.zeros((1, 1, 2, 2), np.float32), np.zeros((1, 5), np.float32))
