"""Random models of one operator on codes each, ties and limits included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

Array = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Case:
    """A model with one node, and data for its inputs."""

    model: ir.Model
    feeds: dict[str, Array]


def one_node(
    name: str,
    arrays: list[Array | None],
    fed: tuple[int, ...],
    shape: tuple[int, ...],
    dtype: str,
    *,
    domain: str = "",
    attributes: Mapping[str, Any] | None = None,
    opset: int = 21,
) -> Case:
    """Return a model of one node whose inputs are ``arrays``, those in ``fed`` graph inputs."""
    values: list[ir.Value | None] = []
    feeds, constants = {}, []
    for place, array in enumerate(arrays):
        if array is None:
            values.append(None)
            continue
        tensor = ir.tensor(np.asarray(array), name=f"i{place}")
        sizes: list[Any] = list(tensor.shape)
        value = ir.Value(name=f"i{place}", type=ir.TensorType(tensor.dtype), shape=ir.Shape(sizes))
        values.append(value)
        if place in fed:
            feeds[f"i{place}"] = np.asarray(array)
        else:
            value.const_value = tensor
            constants.append(value)
    y = ir.Value(name="y", type=ir.TensorType(ir.DataType[dtype]), shape=ir.Shape(shape))
    node = ir.node(name, values, attributes or {}, domain=domain, outputs=[y])
    inputs = [value for value in values if value is not None and value not in constants]
    imports = {"": opset} | ({domain: 1} if domain else {})
    graph = ir.Graph(
        inputs, [y], nodes=[node], initializers=constants, opset_imports=imports, name="g"
    )
    return Case(ir.Model(graph, ir_version=10), feeds)


def scale(
    random: np.random.Generator, shape: tuple[int, ...], kind: str, low: int, high: int
) -> Array:
    """Return scales: any, powers of two, or hundredths, whose products often are near ties."""
    if kind == "powers":
        return np.exp2(random.integers(low, high, shape)).astype(np.float32)
    if kind == "hundredths":
        return (random.integers(1, 60, shape) / 100 * 2.0**high).astype(np.float32)
    return np.exp2(random.uniform(low, high, shape)).astype(np.float32)


def codes(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    limits = np.iinfo(dtype)
    return np.asarray(random.integers(limits.min, limits.max + 1, shape)).astype(dtype)


def weights(random: np.random.Generator, shape: tuple[int, ...], left: str, right: str) -> Array:
    """Return codes of weights; processors without VNNI are wrong for UINT8 and wide INT8."""
    if (left, right) == ("uint8", "int8"):
        return np.asarray(random.integers(-64, 65, shape)).astype(right)
    return codes(random, shape, right)


OPERATORS = [
    "ConvInteger",
    "MatMulInteger",
    "QLinearConv",
    "QLinearMatMul",
    "MatMulIntegerToFloat",
    "QGemm",
    "QLinearAdd",
    "QLinearGlobalAveragePool",
    "QLinearMul",
]
KINDS = ["any", "powers", "hundredths"]
TYPES = [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")]


def build(name: str, seed: int, kind: str = "any", types: tuple[str, str] | None = None) -> Case:
    """Return a random case of an operator: sizes, zero points, per channel or not, bias or not."""
    r = np.random.default_rng(seed)
    left, right = types or TYPES[seed % len(TYPES)]
    several, biased = bool(r.integers(2)), bool(r.integers(2))
    m, k, n = (int(size) for size in r.integers(1, [6, 70, 9]))
    z_a, z_y = codes(r, (), left), codes(r, (), left)
    s_a, s_y = scale(r, (), kind, -8, 0), scale(r, (), kind, -4, 4)
    per = (n,) if several else ()
    s_b, z_b = scale(r, per, kind, -8, 0), codes(r, per, right)
    a, b = codes(r, (m, k), left), weights(r, (k, n), left, right)
    out = left.upper()
    if name == "MatMulInteger":
        return one_node(name, [a, b, z_a, z_b], (0,), (m, n), "INT32")
    if name == "QLinearMatMul":
        return one_node(name, [a, s_a, z_a, b, s_b, z_b, s_y, z_y], (0,), (m, n), out)
    if name == "MatMulIntegerToFloat":
        bias = r.normal(size=n).astype(np.float32) if biased else None
        arrays = [a, b, s_a, s_b, z_a, z_b, bias]
        return one_node(name, arrays, (0,), (m, n), "FLOAT", domain=MICROSOFT)
    if name == "QGemm":
        bias = r.integers(-9999, 9999, n).astype(np.int32) if biased else None
        z_b = np.full(per, codes(r, (), right))
        real = bool(r.integers(3) == 0)
        arrays = [a, s_a, z_a, b.T.copy(), s_b, z_b, bias, *([] if real else [s_y, z_y])]
        attributes = {"transB": 1, "alpha": float(r.choice([1.0, 0.37]))}
        dtype = "FLOAT" if real else out
        return one_node(name, arrays, (0,), (m, n), dtype, domain=MICROSOFT, attributes=attributes)
    if name in ("QLinearAdd", "QLinearMul"):
        b, s_b, z_b = codes(r, (m, k), left), scale(r, (), kind, -6, 0), codes(r, (), left)
        s_y = scale(r, (), kind, -3, 2) * np.float32(8 if name == "QLinearMul" else 1)
        arrays = [a, s_a, z_a, b, s_b, z_b, np.asarray(s_y), z_y]
        return one_node(name, arrays, (0, 3), (m, k), out, domain=MICROSOFT)
    if name == "QLinearGlobalAveragePool":
        x = codes(r, (2, n, m, k), left)
        arrays = [x, s_a, z_a, scale(r, (), kind, -8, 0), z_y]
        return one_node(name, arrays, (0,), (2, n, 1, 1), out, domain=MICROSOFT)
    groups = int(r.integers(1, 3))
    c, o = 2 * groups, groups * int(r.integers(1, 4))
    x = codes(r, (2, c, 6, 5), left)
    w = weights(r, (o, c // groups, 3, 2), left, right)
    attributes = {"group": groups, "pads": [1, 0, 1, 2], "strides": [1, 2]}
    shape = (2, o, 6, 3)
    if name == "ConvInteger":
        arrays = [x, w, z_a, codes(r, (), right)]
        return one_node(name, arrays, (0,), shape, "INT32", attributes=attributes)
    per = (o,) if several else ()
    bias = r.integers(-9999, 9999, o).astype(np.int32) if biased else None
    arrays = [x, s_a, z_a, w, scale(r, per, kind, -8, 0), codes(r, per, right), s_y, z_y, bias]
    return one_node(name, arrays, (0,), shape, out, attributes=attributes)


def in_runtime(model: ir.Model, feeds: dict[str, Array]) -> Array:
    """Return the output that ONNX Runtime computes, its optimizations off."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (y,) = session.run(None, feeds)
    return y


@pytest.fixture(scope="session")
def case() -> Callable[..., Case]:
    """``case(name, seed, kind)``: see :func:`build`."""
    return build


@pytest.fixture(scope="session")
def node_case() -> Callable[..., Case]:
    """``node_case(name, arrays, fed, shape, dtype)``: see :func:`one_node`."""
    return one_node


@pytest.fixture(scope="session")
def ort() -> Callable[..., Array]:
    """``ort(model, feeds)``: see :func:`in_runtime`."""
    return in_runtime


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the argument ``operator_name`` runs for every operator."""
    if "operator_name" in metafunc.fixturenames:
        metafunc.parametrize("operator_name", OPERATORS)
    if "scales" in metafunc.fixturenames:
        metafunc.parametrize("scales", KINDS)
