from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.errors import ExecutionError, UnsupportedError
from qgraph.execution.executor import Executor
from qgraph.execution.inputs import make_inputs
from qgraph.execution.prepare import prepare
from qgraph.execution.runtime import RuntimeExecutor, SessionSegment
from qgraph.quantizers.standardize import standardize

pytestmark = [pytest.mark.runtime, pytest.mark.sums]
ort = pytest.importorskip("onnxruntime")


def model(body: str, imports: str = '"": 21', ir_version: int = 10) -> ir.Model:
    return ir.from_onnx_text(f"<ir_version: {ir_version}, opset_import: [{imports}]> {body}")


def run(m: ir.Model, inputs: dict[str, Any], *, backend: str, **options: Any) -> dict[str, Any]:
    return prepare(m, backend, standardize=standardize).run(inputs, **options)


def both(m: ir.Model, inputs: dict[str, Any], **options: Any) -> None:
    ours, theirs = (run(m, inputs, backend=name, **options) for name in ("numpy", "ort"))
    assert list(ours) == list(theirs)
    for x, y in zip(ours.values(), theirs.values(), strict=True):
        assert getattr(x, "dtype", None) == getattr(y, "dtype", None)
        np.testing.assert_array_equal(x, y)


def segments(executor: RuntimeExecutor) -> list[SessionSegment]:
    return [step for step in executor._plan.steps if isinstance(step, SessionSegment)]


MIXED = """g (float[N] x) => (float[N] y) <float s = {0.5}, float z = {0}, float b = {4}> {
    a = Abs (x)
    n = Neg (x)
    q = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (a, s, z, b)
    p = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (n, s, z, b)
    t = Add (q, p)
    y = Mul (t, x)
}"""
QONNX = '"": 21, "qonnx.custom_op.general": 1'


def test_standard_nodes_are_gathered_between_quantizers() -> None:
    executor = RuntimeExecutor(model(MIXED, QONNX))
    assert [[n.op_type for n in s._nodes] for s in segments(executor)] == [
        ["Abs", "Neg"],
        ["Add", "Mul"],
    ]
    both(model(MIXED, QONNX), {"x": [0.3, -7, 2.25]})


def test_taps_inside_a_segment_are_returned() -> None:
    both(model(MIXED, QONNX), {"x": [0.3, -7, 2.25]}, taps=["a", "q", "t", "x", "s"])


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8", "int16", "float8e4m3fn", "float8e5m2"])
def test_codes_of_every_type_can_be_tapped(dtype: str) -> None:
    body = f"""g (float[N] x) => (float[N] y) <float s = {{0.5}}, {dtype} z = {{0}}> {{
        q = QuantizeLinear (x, s, z)
        y = DequantizeLinear (q, s, z)
    }}"""
    both(model(body), {"x": np.asarray([0.3, -3, 2.25, 100], np.float32)}, taps=["q"])


def test_narrow_and_16_bit_types_can_be_fed() -> None:
    body = """g (bfloat16[N] x, int4[N] i) => (float[N] y) {
        a = Cast <to = 1> (x)
        b = Cast <to = 1> (i)
        y = Add (a, b)
    }"""
    inputs = {"x": np.ones(3, ml_dtypes.bfloat16), "i": np.asarray([-8, 0, 7], ml_dtypes.int4)}
    both(model(body), inputs)


def test_large_constants_are_shared_with_the_session() -> None:
    body = "g (float[N,100] x) => (float[N,100] y) { y = Mul (x, w) }"
    m = model(body.replace("Mul (x, w)", "Mul (x, x)"))
    w = ir.Value(name="w", const_value=ir.tensor(np.arange(100, dtype=np.float32), name="w"))
    m.graph.register_initializer(w)
    m.graph[0].replace_input_with(1, w)
    m.graph.sort()
    (result,) = run(m, {"x": np.ones((2, 100), np.float32)}, backend="ort").values()
    np.testing.assert_array_equal(result, np.tile(np.arange(100), (2, 1)))


def test_an_initializer_that_is_an_input_too_can_be_fed() -> None:
    body = "g (float[N] x, float k) => (float[N] y) <float k = {2}> { y = Mul (x, k) }"
    executor = prepare(model(body), "ort", standardize=standardize)
    np.testing.assert_array_equal(executor.run({"x": [3]})["y"], [6])
    np.testing.assert_array_equal(executor.run({"x": [3], "k": 5})["y"], [15])


def test_a_loop_around_a_quantizer_keeps_standard_nodes_together() -> None:
    body = """g (float[2] x, int64 n, bool go) => (float[2] y)
        <float s = {0.5}, float z = {0}, float b = {4}> {
        y = Loop (n, go, x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) {
            f = Cast <to = 1> (i)
            t = Add (v, f)
            q = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (t, s, z, b)
            w = Add (q, x)
            d = Identity (c)
        }>
    }"""
    both(model(body, QONNX), {"x": [0.3, 1.3], "n": 4, "go": True})


def test_functions_run_in_sessions_too() -> None:
    text = """g (float[N] x) => (float[N] y) { y = local.f <k = 3.0> (x) }
        <domain: "local", opset_import: ["": 21]> f <k> (a) => (b) {
            c = Constant <value_float: float = @k> ()
            b = Add (a, c)
        }"""
    both(model(text, '"": 21, "local": 1'), {"x": [1, 2]})


def test_text_is_computed_with() -> None:
    body = """g (string[N] x) => (string[N] y) <string[1] s = {"ab"}> {
        y = StringConcat (x, s) }"""
    both(model(body), {"x": ["q", "ö"]})


def test_sequences_stay_out_of_sessions() -> None:
    body = """g (float[2] x) => (float[2] y) {
        s = SequenceConstruct (x, x)
        i = Constant <value = int64 {1}> ()
        y = SequenceAt (s, i)
    }"""
    both(model(body), {"x": [1, 2]}, taps=["s"])


def test_a_node_that_is_refused_runs_in_numpy_alone(caplog: pytest.LogCaptureFixture) -> None:
    """ONNX Runtime has no kernel for Clip on int16."""
    body = """g (float[N] x) => (float[N] y) <int16 lo = {-5}, int16 hi = {5}> {
        a = Abs (x)
        i = Cast <to = 5> (a)
        c = Clip (i, lo, hi)
        f = Cast <to = 1> (c)
        y = Neg (f)
    }"""
    with caplog.at_level(logging.WARNING):
        both(model(body), {"x": [1, -9]})
    assert [r.message.split(":")[0] for r in caplog.records] == ["Clip producing 'c' in graph 'g'"]


def test_an_opset_that_is_refused_runs_in_numpy_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    body = "g (float[N] x) => (float[N] y) { a = Abs (x) b = Neg (a) y = Abs (b) }"
    with caplog.at_level(logging.WARNING):
        executor = prepare(model(body, '"": 28'), "ort", standardize=standardize)
        np.testing.assert_array_equal(executor.run({"x": [-1]})["y"], [1])
    if not segments(executor):  # type: ignore[arg-type]  # until ONNX Runtime knows this opset
        assert len(caplog.records) == 1


def test_a_genuine_fault_is_reported_with_the_node() -> None:
    body = "g (float[N,2] x, float[M,3] z) => (float[N,3] y) { a = Abs (x) y = MatMul (a, z) }"
    inputs = {"x": np.ones((1, 2), np.float32), "z": np.ones((4, 3), np.float32)}
    with pytest.raises(ExecutionError, match=r"MatMul producing 'y'.*float32\[1, 2\]"):
        run(model(body), inputs, backend="ort")


def test_a_fault_of_a_later_run_is_reported_with_the_node() -> None:
    model = qgraph.load(
        ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["": 21]>
        g (int64[N] i) => (float[N] y) <float[3] t = {1, 2, 3}> { [pick] y = Gather (t, i) }""")
    )
    assert model.run({"i": np.asarray([0, 2])}, backend="ort")["y"].tolist() == [1, 3]
    with pytest.raises(ExecutionError, match="pick"):
        model.run({"i": np.asarray([0, 7])}, backend="ort")


def test_without_onnx_runtime_the_backend_is_refused_and_auto_is_numpy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = importlib.import_module

    def fake(name: str, package: str | None = None) -> Any:
        if name == "onnxruntime":
            raise ImportError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", fake)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"pip install qgraph\[ort\]"):
        prepare(model(MIXED, QONNX), "ort", standardize=standardize)
    assert type(prepare(model(MIXED, QONNX), "auto")) is Executor


@pytest.mark.cases(fast=2, slow=5)
def test_both_backends_agree_on_real_models(
    models: Path, assert_same_rows: Callable[..., None], model_name: str
) -> None:
    m = qgraph.load(models / f"{model_name}.onnx")
    ours, theirs = prepare(m.ir, "numpy"), prepare(m.ir, "ort", standardize=standardize)
    runs = [make_inputs(m.inputs, number=number) for number in range(5)]
    for name in ours.run(runs[0]):
        x, y = (np.concatenate([e.run(inputs)[name] for inputs in runs]) for e in (ours, theirs))
        assert_same_rows(x, y, atol=1e-5 * max(1.0, float(np.abs(y).max())))


@pytest.mark.parametrize("name", ["brev_cnn_asym8", "brev_cnn_fp8e4m3"])
def test_backends_differ_only_where_additions_meet_a_threshold(
    models: Path, assert_same_rows: Callable[..., None], name: str
) -> None:
    x = np.load(models / f"{name}.npz")["x"]
    m = qgraph.load(models / f"{name}.onnx")
    a, b = (m.run({"x": x}, backend=backend)["y"] for backend in ("numpy", "ort"))
    assert_same_rows(a, b, atol=1e-4)
