from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from qgraph.errors import ExecutionError, UnsupportedError
from qgraph.execution.executor import Executor

pytestmark = pytest.mark.sums

DOMAIN = "com.microsoft"
N = 5


def weights(bits: int, k: int, size: int, points: str, seed: int = 0) -> dict[str, Any]:
    """Return the inputs behind the data, as they are stored."""
    random = np.random.default_rng(seed)
    blocks = -(-k // size)
    made = {
        "w": random.integers(0, 256, (N, blocks, size * bits // 8)).astype(np.uint8),
        "s": random.uniform(0.5, 2, (N, blocks)).astype(np.float32),
    }
    row = -(-blocks * bits // 8)
    match points:
        case "packed":
            made["z"] = random.integers(0, 256, (N, row)).astype(np.uint8)
        case "flat":
            made["z"] = random.integers(0, 256, N * row).astype(np.uint8)
        case "bytes":
            made["z"] = random.integers(0, 1 << bits, (N, blocks)).astype(np.uint8)
        case "floats":
            made["z"] = random.uniform(0, 1 << bits, (N, blocks)).astype(np.float32)
    return made


def field(data: Any, place: int, bits: int) -> int:
    """Return a code of a row of bytes."""
    start = place * bits
    return int(data[start // 8]) >> start % 8 & (1 << bits) - 1


def expected(stored: dict[str, Any], bits: int, k: int, size: int) -> Any:
    """Return the matrix [k, N], code by code as the documentation has it."""
    w = np.empty((k, N), np.float32)
    blocks = -(-k // size)
    for n, place in itertools.product(range(N), range(k)):
        block = place // size
        z: Any = 1 << (bits - 1)
        if "z" in stored:
            points = stored["z"].reshape(N, -1)
            packed = points.dtype == np.uint8 and points.shape[1] == -(-blocks * bits // 8)
            z = field(points[n], block, bits) if packed else points[n, block]
        code = field(stored["w"][n].reshape(-1), place, bits)
        w[place, n] = (np.float32(code) - np.float32(z)) * stored["s"][n, block]
    return w


def model(stored: dict[str, Any], bits: int, k: int, size: int, dtype: str = "FLOAT") -> ir.Model:
    kind = ir.TensorType(ir.DataType[dtype])
    a = ir.Value(name="a", type=kind, shape=ir.Shape(["M", k]))
    known = {
        name: ir.Value(name=name, const_value=ir.tensor(array, name=name))
        for name, array in stored.items()
    }
    inputs = [a, *(known.get(name) for name in ("w", "s", "z", "g", "b"))]
    attributes = {"K": k, "N": N, "bits": bits, "block_size": size, "accuracy_level": 1}
    y = ir.Value(name="y", type=kind, shape=ir.Shape(["M", N]))
    node = ir.node("MatMulNBits", inputs, attributes, domain=DOMAIN, outputs=[y])
    graph = ir.Graph(
        [a],
        [y],
        nodes=[node],
        initializers=list(known.values()),
        opset_imports={"": 21, DOMAIN: 1},
        name="g",
    )
    return ir.Model(graph, ir_version=10)


SHAPES = [(32, 16), (64, 32), (40, 32), (80, 16), (130, 128), (300, 256), (7, 8)]
"""K and block size; where they do not divide, the last block is padded."""


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("points", ["none", "packed", "flat", "floats", "bytes"])
def test_an_identity_shows_the_weights(bits: int, points: str) -> None:
    for k, size in SHAPES:
        stored = weights(bits, k, size, points)
        y = Executor(model(stored, bits, k, size)).run({"a": np.eye(k, dtype=np.float32)})["y"]
        np.testing.assert_array_equal(y, expected(stored, bits, k, size))


@pytest.mark.runtime
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("points", ["none", "packed"])
def test_onnx_runtime_has_the_same_weights(bits: int, points: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    for k, size in SHAPES[:5]:
        stored = weights(bits, k, size, points)
        ours = model(stored, bits, k, size)
        session = runtime.InferenceSession(
            ir.to_proto(ours).SerializeToString(), providers=["CPUExecutionProvider"]
        )
        a = np.eye(k, dtype=np.float32)
        np.testing.assert_array_equal(
            session.run(None, {"a": a})[0], Executor(ours).run({"a": a})["y"]
        )


@pytest.mark.runtime
@pytest.mark.parametrize("bits", [2, 4])
def test_onnx_runtime_subtracts_multiples_for_zero_points_that_are_floats(bits: int) -> None:
    """The documentation states this difference from the definition."""
    runtime = pytest.importorskip("onnxruntime")
    stored = weights(bits, 32, 16, "floats")
    proto = ir.to_proto(model(stored, bits, 32, 16)).SerializeToString()
    session = runtime.InferenceSession(proto, providers=["CPUExecutionProvider"])
    codes = [[field(row.reshape(-1), k, bits) for row in stored["w"]] for k in range(32)]
    s, z = (np.repeat(stored[name].T, 16, axis=0) for name in "sz")
    w = np.asarray(codes, np.float32) * s - z * s
    np.testing.assert_array_equal(session.run(None, {"a": np.eye(32, dtype=np.float32)})[0], w)
    assert not np.array_equal(w, expected(stored, bits, 32, 16))


def test_a_bias_is_added_and_batches_keep_their_shape() -> None:
    stored = weights(4, 40, 32, "packed")
    stored["b"] = np.arange(N, dtype=np.float32)
    made = model(stored, 4, 40, 32)
    made.graph.inputs[0].shape = made.graph.outputs[0].shape = None
    executor = Executor(made)
    a = np.random.default_rng(1).standard_normal((2, 3, 40), np.float32)
    wide = a.astype(float) @ expected(stored, 4, 40, 32) + stored["b"]
    np.testing.assert_allclose(executor.run({"a": a})["y"], wide, rtol=1e-4, atol=1e-4)
    assert executor.run({"a": a[:, :0]})["y"].shape == (2, 0, N)


@pytest.mark.parametrize(
    ("name", "dtype"), [("FLOAT16", np.float16), ("BFLOAT16", ml_dtypes.bfloat16)]
)
def test_16_bit_data_are_summed_in_float32(name: str, dtype: Any) -> None:
    stored = weights(4, 64, 32, "packed")
    stored["s"] = stored["s"].astype(dtype)
    a = np.random.default_rng(1).standard_normal((3, 64)).astype(dtype)
    y = Executor(model(stored, 4, 64, 32, name)).run({"a": a})["y"]
    stored["s"] = stored["s"].astype(np.float32)
    wide = a.astype(np.float32) @ expected(stored, 4, 64, 32)
    assert y.dtype == dtype
    np.testing.assert_allclose(y.astype(float), wide.astype(dtype).astype(float), rtol=1e-2)


def test_a_domain_that_is_not_imported_does_not_matter() -> None:
    made = model(weights(4, 32, 16, "none"), 4, 32, 16)
    del made.graph.opset_imports[DOMAIN]
    assert Executor(made).run({"a": np.ones((1, 32), np.float32)})["y"].shape == (1, N)


@pytest.mark.parametrize(("bits", "size"), [(3, 16), (5, 16), (4, 0), (2, 3)])
def test_other_widths_are_refused(bits: int, size: int) -> None:
    with pytest.raises(UnsupportedError, match=f"bits = {bits}, block_size = {size}; expected"):
        Executor(model(weights(4, 32, 16, "none"), bits, 32, size))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": np.zeros((N, 2, 7), np.uint8)}, r"codes are uint8\[5, 2, 7\], expected 80 uint8"),
        ({"s": np.zeros(9, np.float32)}, r"scales have shape \[9\], expected \[5, 2\]"),
        ({"z": np.zeros(9, np.uint8)}, r"zero points have shape \[9\]"),
        ({"g": np.arange(32, dtype=np.int32)}, r"g_idx has shape \[32\], expected a block from 0"),
        ({"g": np.zeros(9, np.int32)}, r"g_idx has shape \[9\]"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    stored = weights(4, 32, 16, "none") | change
    with pytest.raises(ExecutionError, match=r"MatMulNBits .* in graph 'g'.*" + message):
        Executor(model(stored, 4, 32, 16)).run({"a": np.ones((1, 32), np.float32)})


def test_prepacked_weights_are_refused() -> None:
    made = model(weights(4, 32, 16, "none"), 4, 32, 16)
    made.graph.node(0).attributes.add(ir.AttrInt64("weight_prepacked", 1))
    with pytest.raises(UnsupportedError, match="arranged for one kind of device"):
        Executor(made)


@pytest.mark.parametrize("points", ["none", "packed", "floats"])
def test_each_row_has_the_parameters_of_its_group(points: str) -> None:
    stored = weights(4, 40, 16, points)
    plain = expected(stored, 4, 40, 16)
    reversed_rows = {"s": stored["s"][:, ::-1].copy()}
    if points != "none":
        z = np.full((N, 3), 8.0, np.float32)
        for n, block in itertools.product(range(N), range(3)):
            known = stored["z"][n]
            z[n, block] = field(known, block, 4) if points == "packed" else known[block]
        stored["z"], reversed_rows["z"] = z, z[:, ::-1].copy()
    groups = {"g": (2 - np.arange(40) // 16).astype(np.int32)}
    y = Executor(model(stored | reversed_rows | groups, 4, 40, 16)).run(
        {"a": np.eye(40, dtype=np.float32)}
    )["y"]
    np.testing.assert_array_equal(y, plain)


def test_groups_in_order_are_those_of_the_blocks() -> None:
    stored = weights(4, 32, 16, "packed") | {"g": np.arange(32, dtype=np.int32) // 16}
    y = Executor(model(stored, 4, 32, 16)).run({"a": np.eye(32, dtype=np.float32)})["y"]
    np.testing.assert_array_equal(y, expected(stored, 4, 32, 16))
