"""Where ONNX Runtime and onnx's reference differ from a definition, and from each other.

Each row has the input, the result here, and who says something else. What is computed here is
asserted always, what the other two say only with the versions it was seen with: later ones may have
mended it.
"""

from __future__ import annotations

import importlib.metadata
import warnings
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from qgraph.execution.executor import Executor

NAN, INF = float("nan"), float("inf")
REFUSES = "refuses"
SEEN = {"onnx": "1.23.2", "onnxruntime": "1.32.0"}
F = np.float32


@dataclass(frozen=True)
class Difference:
    """One node, what it is given, and who says what.

    Attributes:
        name: what differs.
        op: the operator.
        inputs: arrays, data first.
        ours: the result, as float32.
        runtime, reference: theirs, where it is another one, or REFUSES.
        attributes: of the node.
        opset: version of the model.
    """

    name: str
    op: str
    inputs: list[Any]
    ours: list[float]
    runtime: list[float] | str | None = None
    reference: list[float] | str | None = None
    attributes: dict[str, int] = field(default_factory=dict)
    opset: int = 21

    def model(self) -> ir.Model:
        """Return the node and a Cast of its result to float32."""
        values = [
            ir.Value(
                name=f"i{place}",
                type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
                shape=ir.Shape(array.shape),
            )
            for place, array in enumerate(self.inputs)
        ]
        node = ir.node(self.op, values, self.attributes)
        cast = ir.node("Cast", node.outputs, {"to": ir.DataType.FLOAT.value})
        y = cast.outputs[0]
        y.name, y.type = "y", ir.TensorType(ir.DataType.FLOAT)
        y.shape = ir.Shape(self.inputs[0].shape)
        graph = ir.Graph(values, [y], nodes=[node, cast], opset_imports={"": self.opset}, name="g")
        least = {10: 7, 13: 7, 19: 9, 21: 10, 23: 11, 24: 12, 25: 13}
        return ir.Model(graph, ir_version=least[self.opset])

    @property
    def feeds(self) -> dict[str, Any]:
        """The inputs by name."""
        return {f"i{place}": array for place, array in enumerate(self.inputs)}


def quantize(
    name: str, x: Any, code: Any, ours: list[float], *, scale: Any = 1, **more: Any
) -> Difference:
    x = np.asarray(x, F) if isinstance(x, list) else x
    s = np.asarray(scale, F) if isinstance(scale, int | float | list) else scale
    z = np.zeros(s.shape, np.int8).astype(code)
    return Difference(name, "QuantizeLinear", [x, s, z], ours, **more)


def cast(name: str, x: list[float], to: str, ours: list[float], **more: Any) -> Difference:
    attributes = {"to": ir.DataType[to].value} | more.pop("attributes", {})
    return Difference(name, "Cast", [np.asarray(x, F)], ours, attributes=attributes, **more)


def dequantize(name: str, x: list[int], z: int, code: Any, scale: float, **more: Any) -> Difference:
    inputs = [np.asarray(x, code), np.asarray(scale, F), np.asarray(z, code)]
    return Difference(name, "DequantizeLinear", inputs, **more)


HALF = np.asarray([24.25], np.float16)
"""24.25 / float16(0.1) is 242.56, in float16 242.5, which rounds to 242."""

DIFFERENCES = [
    quantize("huge, int8", [1e10, -1e10, INF], np.int8, [127, -128, 127], reference=[-128] * 3),
    quantize("huge, uint8", [1e10, INF], np.uint8, [255, 255], reference=[0, 0]),
    quantize("huge, int16", [1e10], np.int16, [32767], reference=[-32768]),
    quantize(
        "huge, int2",
        [3e9, INF],
        ml_dtypes.int2,
        [1, 1],
        opset=25,
        reference=[-2, -2],
    ),
    quantize(
        "huge, uint2",
        [3e9, INF],
        ml_dtypes.uint2,
        [3, 3],
        opset=25,
        reference=[0, 0],
    ),
    quantize(
        "huge, last of an odd number of int4",
        [2147483648] * 3,
        ml_dtypes.int4,
        [7, 7, 7],
        reference=[-8] * 3,
    ),
    quantize(
        "infinite, in blocks along the first axis",
        np.full((4, 3), INF, F),
        np.int8,
        [127] * 12,
        scale=[[1, 1, 1], [2, 2, 2]],
        reference=[-128] * 12,
        attributes={"axis": 0, "block_size": 2},
    ),
    quantize(
        "float16 is divided in float16",
        HALF,
        np.int16,
        [242],
        scale=np.asarray(0.1, np.float16),
        runtime=[243],
    ),
    quantize(
        "int32 data",
        np.asarray([37], np.int32),
        np.int8,
        [4],
        scale=np.asarray(10, np.int32),
        runtime=REFUSES,
    ),
    quantize(
        "NaN in FP4", [NAN], ml_dtypes.float4_e2m1fn, [6], opset=23, runtime=REFUSES, reference=[0]
    ),
    quantize(
        "overflow in E4M3",
        [480],
        ml_dtypes.float8_e4m3fn,
        [NAN],
        runtime=[448],
        attributes={"saturate": 0},
    ),
    cast(
        "E4M3 at 480",
        [480, 497],
        "FLOAT8E4M3FN",
        [NAN, NAN],
        attributes={"saturate": 0},
        runtime=[448, NAN],
    ),
    cast(
        "E5M2 at 61440",
        [61440, 65536],
        "FLOAT8E5M2",
        [INF, INF],
        attributes={"saturate": 0},
        runtime=[NAN, INF],
    ),
    cast(
        "FP4 of NaN", [NAN, INF], "FLOAT4E2M1", [6, 6], opset=23, runtime=REFUSES, reference=[0, 6]
    ),
    cast(
        "E8M0, saturating",
        [INF, 1e-45],
        "FLOAT8E8M0",
        [2.0**127, 2.0**-127],
        opset=24,
        reference=[NAN, 2.0**-126],
    ),
    cast(
        "E8M0 of 0",
        [0.0],
        "FLOAT8E8M0",
        [NAN],
        attributes={"saturate": 0},
        opset=24,
        reference=[2.0**-127],
    ),
    dequantize("before opset 19", [127], -128, np.int8, 1, ours=[255], opset=13, reference=REFUSES),
    dequantize(
        "int32 beyond 2**24", [16777217], 1, np.int32, 1, ours=[2.0**24], reference=[2.0**24 - 1]
    ),
]


@pytest.mark.parametrize("case", DIFFERENCES, ids=lambda case: case.name)
def test_what_is_followed(case: Difference) -> None:
    check(Executor(case.model()).run(case.feeds)["y"], case.ours)


@pytest.mark.runtime
@pytest.mark.parametrize("case", DIFFERENCES, ids=lambda case: case.name)
def test_what_onnx_runtime_says(case: Difference) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    only_where_seen("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4

    def run() -> Any:
        session = onnxruntime.InferenceSession(
            serialized(case), options, providers=["CPUExecutionProvider"]
        )
        feeds = {name: runtime_value(onnxruntime, array) for name, array in case.feeds.items()}
        return session.run_with_ort_values(None, feeds)[0].numpy()

    if case.runtime == REFUSES:
        with pytest.raises(Exception, match=r"NOT_IMPLEMENTED|FAIL"):
            run()
    else:
        check(run(), case.ours if case.runtime is None else case.runtime)


@pytest.mark.parametrize("case", DIFFERENCES, ids=lambda case: case.name)
def test_what_the_reference_says(case: Difference) -> None:
    only_where_seen("onnx")

    def run() -> Any:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return ReferenceEvaluator(onnx.load_from_string(serialized(case))).run(None, case.feeds)

    if case.reference == REFUSES:
        with pytest.raises(RuntimeError, match="No implementation for operator"):
            run()
    else:
        check(run()[0], case.ours if case.reference is None else case.reference)


MERGED = """<ir_version: 10, opset_import: ["": 21]>
    g (float[N] x) => (float[N] y) <float s = {0.1}, float t = {0.25}, int8 z = {0}> {
        a = QuantizeLinear (x, s, z)
        b = DequantizeLinear (a, s, z)
        c = QuantizeLinear (b, t, z)
        y = DequantizeLinear (c, t, z)
    }"""


@pytest.mark.runtime
def test_onnx_runtime_merges_pairs_unless_it_is_told_not_to() -> None:
    """0.14 is 0.1, which is no step of 0.25; of two merged pairs the finer one is left."""
    onnxruntime = pytest.importorskip("onnxruntime")
    only_where_seen("onnxruntime")
    model = ir.from_onnx_text(MERGED)
    x = np.asarray([0.14, -0.36, 1.0], F)
    levels = onnxruntime.GraphOptimizationLevel
    found = {}
    for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_BASIC):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        session = onnxruntime.InferenceSession(
            ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        found[level] = session.run(None, {"x": x})[0].tolist()
    ours = Executor(model).run({"x": x})["y"].tolist()
    assert ours == found[levels.ORT_DISABLE_ALL] == [0, -0.5, 1]
    assert found[levels.ORT_ENABLE_BASIC] == pytest.approx([0.1, -0.4, 1])


def test_every_row_is_a_difference() -> None:
    for case in DIFFERENCES:
        assert (case.runtime, case.reference) != (None, None), case.name


def check(y: Any, expected: Any) -> None:
    np.testing.assert_array_equal(y.reshape(-1), np.asarray(expected, F))


def only_where_seen(package: str) -> None:
    if importlib.metadata.version(package) != SEEN[package]:
        pytest.skip(f"{package} is another version than {SEEN[package]}")


def serialized(case: Difference) -> bytes:
    return bytes(ir.to_proto(case.model()).SerializeToString())


def runtime_value(onnxruntime: Any, array: Any) -> Any:
    make = onnxruntime.OrtValue
    if array.dtype.isbuiltin == 1:
        return make.ortvalue_from_numpy(array)
    kind = ir.DataType.from_numpy(array.dtype).value
    return make.ortvalue_from_numpy_with_onnx_type(array.view(np.uint8), kind)
