"""Sums that runtimes execute, against their bounds: how many, in which orders, how tight.

``python -m tests.proof.bounds.executed_sums [SUMS]`` executes so many sums in each runtime and
prints a table: the bound, the largest error seen, and their ratio.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

import qgraph
from qgraph.bound import Bounding

S_X, S_W = np.float32(0.0123), np.float32(0.0457)
ROWS = 256
"""Sums of one channel in a run."""

Array = np.ndarray[Any, Any]
Run = Callable[[Array, Array], Array]
"""Takes codes ``[rows, terms]`` and weights ``[terms, channels]``; gives sums of decoded ones."""


@dataclass(frozen=True)
class Seen:
    """What one runtime executed.

    Attributes:
        sums: how many.
        outside: how many lie outside their bound.
        tightness: smallest bound divided by the largest error in its channel.
        bound, error: the bound of that channel, and the error, in real units.
    """

    sums: int
    outside: int
    tightness: float
    bound: float
    error: float


def bounds(weights: Array, order: str = "any") -> Array:
    """Return the bound of each channel's float sum, in real units, as ``prove`` states it."""
    terms, channels = weights.shape
    models = []
    for scale in (S_W, np.nextafter(S_W, np.float32(1))):
        text = f"""<ir_version: 10, opset_import: ["": 21]>
            net (int8[1,{terms}] x) => (float[1,{channels}] y)
            <float s_x = {{{float(S_X)!r}}}, float s_w = {{{float(scale)!r}}}, int8 z = {{0}}> {{
                a = DequantizeLinear (x, s_x, z)
                b = DequantizeLinear (w, s_w, z)
                y = MatMul (a, b)
            }}"""
        proto = onnx.parser.parse_model(text)
        proto.graph.initializer.append(numpy_helper.from_array(weights.astype(np.int8), "w"))
        models.append(ir.from_proto(proto))
    found = qgraph.prove(*models, within=Bounding("1000step", order=order), evidence=True)
    (bound,) = (region.bound for region in found.regions if region.bound is not None)
    unit = bound.absolute / bound.deviation_steps
    # The first of the three is the error of the reference.
    return np.array([errors[0] for errors in bound.channels]) * unit


def ideals(codes: Array, weights: Array) -> Array:
    """Return the sums of the decoded codes in real numbers, off by at most 2**-63 of themselves."""
    exact = codes.astype(np.int64) @ weights.astype(np.int64)
    return exact.astype(np.longdouble) * (np.longdouble(S_X) * np.longdouble(S_W))


def in_sequence(codes: Array, weights: Array) -> Array:
    """Return the sums of products one after another, in float32."""
    return np.add.accumulate(_products(codes, weights), axis=1, dtype=np.float32)[:, -1]


def in_sorted_sequence(codes: Array, weights: Array) -> Array:
    """Return the same, the products in ascending order."""
    products = np.sort(_products(codes, weights), axis=1)
    return np.add.accumulate(products, axis=1, dtype=np.float32)[:, -1]


def pairwise(codes: Array, weights: Array) -> Array:
    """Return the sums as NumPy adds along the fastest axis: in eight chains, then in pairs."""
    products = np.ascontiguousarray(_products(codes, weights).transpose(0, 2, 1))
    return np.sum(products, axis=2, dtype=np.float32)


def blas(codes: Array, weights: Array) -> Array:
    """Return the sums of NumPy's matrix product."""
    return _decoded(codes, S_X) @ _decoded(weights, S_W)


def _decoded(codes: Array, scale: np.float32) -> Array:
    return np.asarray(codes.astype(np.float32) * scale, np.float32)


def _products(codes: Array, weights: Array) -> Array:
    return np.asarray(_decoded(codes, S_X)[:, :, None] * _decoded(weights, S_W)[None])


def float_model(form: str, weights: Array) -> onnx.ModelProto:
    """Return a model with one product of floats: MatMul, Gemm, or Conv with a square kernel."""
    terms, channels = weights.shape
    decoded = _decoded(weights, S_W)
    if form in ("MatMul", "Gemm"):
        shape, stored, attributes = ["N", terms], decoded, {}
    elif form == "depthwise":
        side = int(np.sqrt(terms))
        shape, attributes = ["N", channels, side, side], {"group": channels}
        stored = decoded.T.reshape(channels, 1, side, side)
    else:
        side = int(form.removeprefix("Conv"))
        shape, attributes = ["N", terms // side**2, side, side], {}
        stored = decoded.T.reshape(channels, -1, side, side)
    op = form if form in ("MatMul", "Gemm") else "Conv"
    node = helper.make_node(op, ["x", "w"], ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ascontiguousarray(stored), "w")],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def feeds(form: str, codes: Array, channels: int) -> Array:
    """Return the data of a float model."""
    decoded = _decoded(codes, S_X)
    if form == "depthwise":
        side = int(np.sqrt(codes.shape[1]))
        return np.repeat(decoded.reshape(-1, 1, side, side), channels, axis=1)
    if form.startswith("Conv"):
        side = int(form.removeprefix("Conv"))
        return decoded.reshape(len(codes), -1, side, side)
    return decoded


def onnxruntime(form: str, *, optimized: bool) -> Run:
    """Return how ONNX Runtime computes a form, by default or without optimizations."""

    def run(codes: Array, weights: Array) -> Array:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        if not optimized:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        model = float_model(form, weights).SerializeToString()
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {"x": feeds(form, codes, weights.shape[1])})
        return np.asarray(found).reshape(len(codes), -1)

    return run


def openvino(form: str) -> Run:
    """Return how OpenVINO computes a form in float32."""

    def run(codes: Array, weights: Array) -> Array:
        import openvino as ov

        core, settings = ov.Core(), {"INFERENCE_PRECISION_HINT": "f32"}
        model = core.read_model(float_model(form, weights).SerializeToString())
        compiled = core.compile_model(model, "CPU", settings)
        found = compiled(feeds(form, codes, weights.shape[1]))[0]
        return np.asarray(found).reshape(len(codes), -1)

    return run


def in_codes(form: str, weights: Array, scale: np.float32) -> onnx.ModelProto:
    """Return a product of codes that gives codes: a QLinear operator, or Q/DQ and a float one.

    Args:
        form: MatMul or Conv, or QLinearMatMul or QLinearConv.
        weights: codes, ``[terms, channels]``.
        scale: of the result.
    """
    terms, channels = weights.shape
    tail = [1, 1] if form.endswith("Conv") else []
    stored = weights.T.reshape(channels, terms, 1, 1) if tail else weights
    numbers = [(S_X, "s_x"), (S_W, "s_w"), (scale, "s_y")]
    constants = [numpy_helper.from_array(np.asarray(x, np.float32), name) for x, name in numbers]
    constants += [numpy_helper.from_array(np.asarray(0, np.int8), "z")]
    constants += [numpy_helper.from_array(np.ascontiguousarray(stored, np.int8), "w")]
    if form.startswith("QLinear"):
        operands = ["x", "s_x", "z", "w", "s_w", "z", "s_y", "z"]
        nodes = [helper.make_node(form, operands, ["y"])]
    else:
        nodes = [
            helper.make_node("DequantizeLinear", ["x", "s_x", "z"], ["a"]),
            helper.make_node("DequantizeLinear", ["w", "s_w", "z"], ["b"]),
            helper.make_node(form, ["a", "b"], ["m"]),
            helper.make_node("QuantizeLinear", ["m", "s_y", "z"], ["y"]),
        ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT8, [ROWS, terms, *tail])],
        [helper.make_tensor_value_info("y", TensorProto.INT8, [ROWS, channels, *tail])],
        constants,
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def codes_seen(form: str, terms: int, sums: int, *, channels: int = 32, seed: int = 0) -> Seen:
    """Execute products of codes in ONNX Runtime by default, and compare the codes with the ideal.

    The bound is that of QLinearMatMul or QLinearConv against the ideal of Q/DQ and ``form``: a code
    is the ideal, in steps, plus at most half a step and the bound. The error is what exceeds the
    half step; ONNX Runtime turns Q/DQ into the same kernels.
    """
    import onnxruntime as ort

    generator = np.random.default_rng(seed)
    done = outside = 0
    bound, largest = 0.0, 0.0
    pair = form.removeprefix("QLinear"), f"QLinear{form.removeprefix('QLinear')}"
    while done < sums:
        weights = generator.integers(-127, 128, (terms, channels)).astype(np.int8)
        scale = np.float32(S_X * S_W * 60 * np.sqrt(terms))
        models = [ir.from_proto(in_codes(name, weights, scale)) for name in pair]
        found = qgraph.prove(*models, within=Bounding("1step", against="ideal"))
        assert not found.beyond
        stated = [region.bound.deviation_steps for region in found.regions if region.bound]
        bound = max(bound, *stated)
        proto = in_codes(form, weights, scale).SerializeToString()
        session = ort.InferenceSession(proto, providers=["CPUExecutionProvider"])
        shape = session.get_inputs()[0].shape
        for codes in rows_of(weights, generator, ROWS):
            (given,) = session.run(None, {"x": codes.reshape(shape)})
            exact = np.clip(ideals(codes, weights) / np.longdouble(scale), -128, 127)
            errors = np.abs(given.reshape(ROWS, channels) - exact).astype(np.float64) - 0.5
            outside += int(np.count_nonzero(errors > bound))
            largest = max(largest, float(errors.max()))
            done += errors.size
    return Seen(done, outside, bound / max(largest, 1e-30), bound, largest)


RUNS: dict[str, Run] = {
    "NumPy, in sequence": in_sequence,
    "NumPy, sorted": in_sorted_sequence,
    "NumPy, pairs": pairwise,
    "NumPy, BLAS": blas,
    "ONNX Runtime, MatMul": onnxruntime("MatMul", optimized=True),
    "ONNX Runtime, Gemm": onnxruntime("Gemm", optimized=True),
    "ONNX Runtime, Conv 1x1": onnxruntime("Conv1", optimized=True),
    "ONNX Runtime, Conv 1x1, unoptimized": onnxruntime("Conv1", optimized=False),
    "ONNX Runtime, Conv 4x4": onnxruntime("Conv4", optimized=True),
    "ONNX Runtime, depthwise": onnxruntime("depthwise", optimized=True),
    "OpenVINO, MatMul": openvino("MatMul"),
    "OpenVINO, Conv 1x1": openvino("Conv1"),
    "OpenVINO, Conv 4x4": openvino("Conv4"),
    "OpenVINO, depthwise": openvino("depthwise"),
}


def rows_of(weights: Array, generator: np.random.Generator, rows: int) -> Iterator[Array]:
    """Yield codes of ``rows`` sums: any, extreme ones, and those that add up to large sums."""
    terms, channels = weights.shape
    signs = np.where(weights[:, generator.integers(channels, size=rows)] < 0, -127, 127).T
    for codes in (
        generator.integers(-128, 128, (rows, terms)),
        generator.choice([-128, -1, 1, 127], (rows, terms)),
        signs,
    ):
        yield codes.astype(np.int8)


def seen(run: Run, terms: int, sums: int, *, channels: int = 32, seed: int = 0) -> Seen:
    """Execute at least so many sums, in shuffled and sorted orders, and compare with the bounds.

    The terms are shuffled anew for each run, and sorted by the products of the first sum.
    """
    generator = np.random.default_rng(seed)
    done = outside = 0
    worst = Seen(0, 0, np.inf, 0.0, 0.0)
    while done < sums:
        weights = generator.integers(-127, 128, (terms, channels)).astype(np.int8)
        limits = bounds(weights)
        for codes in rows_of(weights, generator, ROWS):
            exact = ideals(codes, weights)
            products = codes[0].astype(int) * weights[:, 0]
            for order in (generator.permutation(terms), np.argsort(products)):
                found = run(np.ascontiguousarray(codes[:, order]), weights[order])
                errors = np.abs(found - exact).astype(np.float64)
                outside += int(np.count_nonzero(errors > limits))
                done += errors.size
                largest = errors.max(axis=0)
                place = int(np.argmin(limits / np.maximum(largest, 1e-30)))
                ratio = float(limits[place] / max(largest[place], 1e-30))
                if ratio < worst.tightness:
                    worst = Seen(0, 0, ratio, float(limits[place]), float(largest[place]))
    return Seen(done, outside, worst.tightness, worst.bound, worst.error)


CODES = ("MatMul", "Conv", "QLinearMatMul", "QLinearConv")


def main() -> None:
    """Print the table for all runtimes and lengths of sums."""
    sums = int(float(sys.argv[1])) if len(sys.argv) > 1 else 10_000_000
    lengths = (16, 64, 256, 1024)
    total = outside = 0
    share = sums // len(lengths) // (len(RUNS) + len(CODES))
    kinds: dict[str, Callable[[int], Seen]] = {
        name: lambda terms, run=run: seen(run, terms, share)  # type: ignore[misc]
        for name, run in RUNS.items()
    } | {
        f"ONNX Runtime, {form} of codes": lambda terms, form=form: codes_seen(form, terms, share)  # type: ignore[misc]
        for form in CODES
    }
    for name, kind in kinds.items():
        for terms in lengths:
            found = kind(terms)
            total += found.sums
            outside += found.outside
            sys.stdout.write(
                f"{name:36} {terms:5} terms {found.sums:9} sums {found.outside:3} outside; bound "
                f"{found.bound:.3g}, seen {found.error:.3g}, ratio {found.tightness:.1f}\n"
            )
            sys.stdout.flush()
    sys.stdout.write(f"{total} sums, {outside} outside their bounds\n")


if __name__ == "__main__":
    main()
