"""Operators of ONNX Runtime that look codes up, average or normalize them."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph import prove
from qgraph.errors import ExecutionError, UnsupportedError
from qgraph.exactness import Exactness
from qgraph.execution.executor import Executor
from qgraph.model import Model, load
from qgraph.reports import SiteReport, SiteStatus
from qgraph.transforms.convert import ConvertDialect
from qgraph.transforms.lowered_operators import LowerIntegerOperators, SumForm

Array = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"
SEEDS = range(24)
TYPES = ("uint8", "int8")


def codes(r: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    limits = np.iinfo(dtype)
    return np.asarray(r.integers(limits.min, limits.max + 1, shape)).astype(dtype)


def scale(r: np.random.Generator, kind: int) -> np.float32:
    """Return any scale, a power of two, or hundredths, whose quotients are often ties."""
    if kind == 1:
        return np.float32(2.0 ** r.integers(-8, 1))
    return np.float32(r.integers(1, 60) / 100 if kind else 2.0 ** r.uniform(-8, 0))


def activation(name: str, r: np.random.Generator, seed: int, dtype: str) -> tuple[Any, ...]:
    """Return all codes, with attributes and shape of the result."""
    every = np.arange(256).astype(np.uint8).view(dtype)
    s_x, s_y = scale(r, seed % 3), scale(r, seed % 3)
    attributes = {"alpha": float(r.choice([0.01, 0.25, 0.3]))} if "Relu" in name else {}
    arrays = [every, s_x, codes(r, (), dtype), s_y, codes(r, (), dtype)]
    return arrays, (0,), (256,), attributes


def concat(name: str, r: np.random.Generator, seed: int, dtype: str) -> tuple[Any, ...]:
    s = [scale(r, seed % 3) for _ in range(3)]
    z = [codes(r, (), dtype) for _ in range(3)]
    if seed % 4 == 0:
        s[1], z[1] = s[0], z[0]
    a, b = codes(r, (2, 3, 50), dtype), codes(r, (2, 4, 50), dtype)
    arrays = [s[0], z[0], a, s[1], z[1], b, s[2], z[2]]
    return arrays, (2, 5), (2, 7, 50), {"axis": int(r.choice([1, -2]))}


def where(name: str, r: np.random.Generator, seed: int, dtype: str) -> tuple[Any, ...]:
    shapes = [((9, 20), (9, 20), (9, 20)), ((9, 1), (9, 20), (20,)), ((), (9, 20), ())][seed % 3]
    s = [scale(r, seed // 3 % 3) for _ in range(3)]
    z = [codes(r, (), dtype) for _ in range(3)]
    chosen = np.asarray(r.integers(0, 2, shapes[0])).astype(bool)
    x, y = codes(r, shapes[1], dtype), codes(r, shapes[2], dtype)
    return [chosen, x, s[0], z[0], y, s[1], z[1], s[2], z[2]], (0, 1, 4), (9, 20), {}


def softmax(name: str, r: np.random.Generator, seed: int, dtype: str) -> tuple[Any, ...]:
    x = codes(r, (3, 4, int(r.integers(1, 200))), dtype)
    if seed % 2:
        x = (x // 8).astype(dtype)
    s_y = np.float32([1 / 256, 0.01, 1 / 255, 1 / 128, 0.3][seed % 5])
    z_y = codes(r, (), dtype) if r.integers(2) else np.array(np.iinfo(dtype).min, dtype)
    attributes = {"opset": int(r.choice([11, 13]))}
    if r.integers(2):
        attributes["axis"] = int(r.choice([0, 1, 2, -1, -2]))
    return [x, scale(r, seed % 3), codes(r, (), dtype), s_y, z_y], (0,), x.shape, attributes


def pool(name: str, r: np.random.Generator, seed: int, dtype: str) -> tuple[Any, ...]:
    rank = int(r.integers(1, 4))
    size, kernel = (tuple(int(n) for n in r.integers(*b, rank)) for b in ((3, 8), (1, 4)))
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if seed % 5 == 0:
        size = kernel
    elif seed % 5 == 1:
        attributes["pads"] = [int(r.integers(0, k)) for k in kernel] * 2
    elif seed % 5 == 2:
        attributes["auto_pad"] = str(r.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    if seed % 5 in (1, 3):
        attributes["strides"] = [int(n) for n in r.integers(1, 4, rank)]
        attributes["ceil_mode"] = int(r.integers(2))
    attributes["count_include_pad"] = int(r.integers(2))
    attributes["channels_last"] = int(r.integers(3) == 0)
    shape = (2, *size, 3) if attributes["channels_last"] else (2, 3, *size)
    kind = seed % 3
    parameters = [scale(r, kind), codes(r, (), dtype), scale(r, kind), codes(r, (), dtype)]
    return [codes(r, shape, dtype), *parameters], (0,), shape, attributes


BUILDERS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "QLinearAveragePool": pool,
    "QLinearConcat": concat,
    "QLinearLeakyRelu": activation,
    "QLinearSigmoid": activation,
    "QLinearSoftmax": softmax,
    "QLinearWhere": where,
}


def built(node_case: Any, name: str, seed: int) -> Any:
    dtype = TYPES[seed // 3 % 2]
    arrays, fed, shape, attributes = BUILDERS[name](name, np.random.default_rng(seed), seed, dtype)
    made = node_case(
        name, arrays, fed, shape, dtype.upper(), domain=MICROSOFT, attributes=attributes
    )
    if name == "QLinearAveragePool":
        made.model.graph.outputs[0].shape = ir.Shape(f"n{axis}" for axis in range(len(shape)))
    return made


def run(case: Any) -> Any:
    return Executor(case.model).run(case.feeds)["y"]


@pytest.mark.cases(fast=2)
@pytest.mark.runtime
@pytest.mark.parametrize("name", BUILDERS)
def test_onnx_runtime_has_the_same_codes(node_case, ort, name):
    apart = total = 0
    for seed in SEEDS:
        made = built(node_case, name, seed)
        expected, found = ort(made.model, made.feeds), run(made)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        gap = np.abs(found.astype(int) - expected.astype(int))
        assert gap.max() <= (name == "QLinearSigmoid"), f"seed {seed}"
        apart, total = apart + np.count_nonzero(gap), total + gap.size
    assert total > 2000
    # ONNX Runtime's approximation of the logistic function: about one code in 77,000
    assert apart <= 1


def exact_sigmoid_code(x: int, s_x: float, z_x: int, s_y: float, z_y: int) -> int:
    """Return the code of what fifty decimal places give, rounded to float32."""
    with decimal.localcontext(prec=50):
        real = decimal.Decimal(float(np.float32(x - z_x) * np.float32(s_x)))
        y = np.float32(float(1 / (1 + (-real).exp())))
    return round(float(y / np.float32(s_y))) + z_y


@pytest.mark.runtime
def test_the_logistic_function_is_the_exact_one_where_onnx_runtimes_is_not(node_case, ort):
    s_x, s_y = np.float32(0.0051689413376152515), np.float32(0.01153197418898344)
    z_x, z_y, x = np.int8(107), np.int8(-103), np.array([8], np.int8)
    made = node_case(
        "QLinearSigmoid", [x, s_x, z_x, s_y, z_y], (0,), (1,), "INT8", domain=MICROSOFT
    )
    exact = exact_sigmoid_code(8, float(s_x), 107, float(s_y), -103)
    assert run(made).item() == exact == -71
    # 32.5 steps in float32; its approximation, which differs by processor, lies an ulp above
    assert abs(ort(made.model, made.feeds).item() - exact) <= 1


def test_sigmoid_of_all_codes_is_the_exact_one(node_case):
    every = np.arange(256).astype(np.uint8)
    s_x, s_y = np.float32(0.05), np.float32(1 / 256)
    arrays = [every, s_x, np.uint8(120), s_y, np.uint8(0)]
    made = node_case("QLinearSigmoid", arrays, (0,), (256,), "UINT8", domain=MICROSOFT)
    expected = [exact_sigmoid_code(x, float(s_x), 120, float(s_y), 0) for x in range(256)]
    assert run(made).tolist() == [min(code, 255) for code in expected]


def test_softmax_counts_whole_steps(node_case):
    # 1 / 0.3 is 3.33; ONNX Runtime takes 3, and two equal halves are 1.5 steps each
    arrays = [np.array([7, 7], np.uint8), np.float32(1), np.uint8(0), np.float32(0.3), np.uint8(0)]
    made = node_case(
        "QLinearSoftmax", arrays, (0,), (2,), "UINT8", domain=MICROSOFT, attributes={"opset": 13}
    )
    assert run(made).tolist() == [2, 2]


def lowered(case: Any, **options: Any) -> tuple[Model, SiteReport]:
    """Return a copy after the pass, checked, and what is told of the node."""
    found = load(case.model.clone())
    (site,) = found.apply(LowerIntegerOperators(**options))
    onnx.checker.check_model(ir.to_proto(found.ir), full_check=True)
    return found, site


@pytest.mark.cases(fast=1, slow=3)
@pytest.mark.runtime
@pytest.mark.parametrize("name", sorted(BUILDERS.keys() - {"QLinearSoftmax"}))
def test_the_exact_form_has_the_codes_of_the_operator(node_case, ort, name):
    changed = 0
    for seed in SEEDS:
        made = built(node_case, name, seed)
        model, site = lowered(made)
        if made.model.graph[0].attributes.get_int("channels_last", 0):
            assert "no channels_last" in site.reason
            continue
        assert site.verdict.exactness is Exactness.BITS, site.reason
        assert {node.domain for node in model.ir.graph} == {""}
        expected = run(made)
        np.testing.assert_array_equal(model.run(made.feeds, backend="numpy")["y"], expected)
        np.testing.assert_array_equal(ort(model.ir, made.feeds), expected)
        changed += 1
    assert changed > len(SEEDS) / 2


@pytest.mark.cases(fast=1, slow=3)
@pytest.mark.runtime
@pytest.mark.parametrize("name", BUILDERS)
def test_the_form_with_real_numbers_is_what_its_report_says(node_case, ort, name):
    changed = 0
    for seed in SEEDS:
        made = built(node_case, name, seed)
        model, site = lowered(made, form=SumForm.QDQ, exact=Exactness.NEAR)
        if site.outcome is SiteStatus.REFUSED:
            assert site.reason
            continue
        changed += 1
        expected, found = run(made), ort(model.ir, made.feeds)
        gap = np.abs(found.astype(int) - expected.astype(int))
        assert gap.max() <= (site.verdict.exactness is not Exactness.BITS)
    assert changed > 5


def test_conversions_call_a_sigmoid_equal_only_if_a_proof_does() -> None:
    """Runtimes approximate Sigmoid, so that codes near a tie are not known."""
    text = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (uint8[N, 4] x) => (uint8[N, 4] y)
        <float s = {0.1}, uint8 z = {128}, float t = {0.00390625}, uint8 e = {0}> {
            y = com.microsoft.QLinearSigmoid (x, s, z, t, e) }"""
    source = load(ir.from_onnx_text(text))
    for exact in (Exactness.VALUES, Exactness.NEAR):
        model = source.clone()
        site = next(iter(model.apply(ConvertDialect(to="qdq", exact=exact))))
        is_proved = str(prove(source, model).verdict) == "proved"
        assert is_proved == site.verdict.reaches(Exactness.VALUES) == (exact is Exactness.VALUES)


@pytest.mark.parametrize(
    ("name", "place", "value", "form", "reason"),
    [
        ("QLinearSoftmax", 0, None, SumForm.EXACT, "sums powers from a table in float32"),
        ("QLinearSoftmax", 3, np.float32(0.3), SumForm.QDQ, "it rounds 1 / 0.3 = 3.33333"),
        ("QLinearConcat", 0, None, SumForm.EXACT, "parameter 'i0' is not constant"),
        ("QLinearWhere", 7, None, SumForm.EXACT, "parameter 'i7' is not constant"),
        ("QLinearAveragePool", 0, None, SumForm.EXACT, "the size of its images is unknown"),
    ],
)
def test_what_cannot_be_spelled_is_refused_with_a_reason(
    node_case, name, place, value, form, reason
):
    made = built(node_case, name, 4)
    graph = made.model.graph
    known = graph.initializers.get(f"i{place}")
    if value is not None:
        known.const_value = ir.tensor(value, name=f"i{place}")
    elif known is not None:
        del graph.initializers[f"i{place}"]
        known.const_value = None
        graph.inputs.append(known)
    elif name == "QLinearAveragePool":
        graph.inputs[0].shape = ir.Shape([2, 3, *"hwd"[: len(graph.inputs[0].shape) - 2]])
    before = ir.to_onnx_text(made.model)
    model, site = lowered(made, form=form)
    assert site.outcome is SiteStatus.REFUSED
    assert reason in site.reason
    assert ir.to_onnx_text(model.ir) == before


def test_an_operator_of_onnx_runtime_without_kernel_is_named_with_what_can_be_done():
    text = """<ir_version: 8, opset_import: ["": 13, "com.microsoft": 1]>
        g (float[4] x) => (float[4] y) { y = com.microsoft.QuickGelu (x) }"""
    with pytest.raises(
        UnsupportedError, match=r"QuickGelu is an operator of ONNX Runtime.*no kernel"
    ):
        Executor(ir.from_onnx_text(text))


def test_inputs_that_do_not_come_in_threes_are_told(node_case):
    made = built(node_case, "QLinearConcat", 1)
    node = made.model.graph[0]
    node.resize_inputs(7)
    with pytest.raises(ExecutionError, match=r"it has 7 inputs, expected 2 and 3 for each tensor"):
        run(made)
