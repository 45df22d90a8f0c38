from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

import qgraph
from qgraph.execution.executor import Executor
from qgraph.execution.inputs import make_inputs
from qgraph.execution.prepare import prepare
from qgraph.execution.runtime import RuntimeExecutor, SessionSegment
from qgraph.execution.session import is_moderate
from qgraph.ops.operator import operator_of
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.sites import sites
from qgraph.quantizers.standardize import standardize

pytestmark = pytest.mark.runtime
pytest.importorskip("onnxruntime")

Float32 = npt.NDArray[np.float32]


def runtime(m: ir.Model) -> Executor:
    return prepare(m, "ort", standardize=standardize)


def run(m: ir.Model, inputs: dict[str, Any], *, backend: str) -> dict[str, Any]:
    return prepare(m, backend, standardize=standardize).run(inputs)


QONNX = "qonnx.custom_op.general"


def model(body: str, opset: int = 21) -> ir.Model:
    domains = f'"": {opset}, "{QONNX}": 2, "org.openvinotoolkit": 1'
    return ir.from_onnx_text(f"<ir_version: 8, opset_import: [{domains}]> {body}")


def one(node: str, parameters: str, *, relu: bool = False, opset: int = 21) -> ir.Model:
    """Return a model of one quantizer of four channels, behind a Relu if asked for."""
    first = "r = Relu (x)" if relu else ""
    node = node.replace("(x", "(r") if relu else node
    return model(
        f"g (float[1,4,N] x) => (float[1,4,N] y) <{parameters}> {{ {first} y = {node} }}", opset
    )


def hostile(steps: npt.ArrayLike) -> Float32:
    """Return ``[1, 4, n]``: special numbers, noise of all sizes, ties and their neighbours."""
    rng = np.random.default_rng(0)
    tiny, top = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, tiny, -tiny, top, -top]
    noise = rng.normal(size=2000) * 10.0 ** rng.integers(-8, 9, 2000)
    step = np.unique(np.abs(np.asarray(steps, np.float64)))
    ties = (np.arange(-300, 300) / 2)[:, None] * step[np.isfinite(step)]
    with np.errstate(over="ignore"):
        row = np.concatenate([special, noise, ties.ravel()]).astype(np.float32)
        row = np.concatenate([row, np.nextafter(row, np.float32(9e9)), np.nextafter(row, -row)])
    return np.tile(row, (1, 4, 1))


def moderate(x: Float32) -> Float32:
    """Return the columns of ``x`` that are numbers of no great size: most networks' inputs."""
    small = np.ascontiguousarray(x[..., (np.abs(x) < 1e5).all(axis=(0, 1))])
    assert is_moderate(small)
    assert not is_moderate(x)
    assert small.size > x.size / 2
    return small


def assert_same_bits(ours: Float32, theirs: Float32) -> None:
    assert ours.dtype == theirs.dtype == np.float32
    assert ours.shape == theirs.shape
    nan = np.isnan(ours)
    np.testing.assert_array_equal(nan, np.isnan(theirs))
    np.testing.assert_array_equal(ours[~nan].view(np.uint32), theirs[~nan].view(np.uint32))


def steps_of(m: ir.Model) -> Iterator[SessionSegment | Any]:
    executor = runtime(m)
    assert isinstance(executor, RuntimeExecutor)
    yield from executor._plan.steps


QUANT = f'{QONNX}.Quant <signed = {{}}, narrow = {{}}, rounding_mode = "{{}}"> (x, s, z, b)'
FAKE = "org.openvinotoolkit.FakeQuantize <levels = {}> (x, il, ih, ol, oh)"
BITS = "float s = {{0.1}}, float z = {{0}}, float b = {{{}}}"
SCALES = "float[1,4,1] s = {0.1, 0.25, 0.0123, 3}"
FAKES = "float il = {{{}}}, float ih = {{{}}}, float ol = {{{}}}, float oh = {{{}}}"


def uniform() -> Iterator[tuple[str, str, Any]]:
    for signed in (0, 1):
        for bits in (1, 2, 4, 8, 12):
            for narrow in (0, 1):
                yield QUANT.format(signed, narrow, "ROUND"), BITS.format(bits), 0.1
        channels = f"{SCALES}, float z = {{0}}, float b = {{4}}"
        yield QUANT.format(signed, 0, "ROUND"), channels, [0.1, 0.25, 0.0123, 3]
        for mode in ("FLOOR", "CEIL", "UP", "DOWN", "HALF_UP", "HALF_DOWN"):
            parameters = "float s = {0.3}, float z = {0}, float b = {4}"
            yield QUANT.format(signed, 0, mode), parameters, 0.3
        for zero_point in (1, 128, -7, 0.3):
            parameters = f"float s = {{0.1}}, float z = {{{zero_point}}}, float b = {{8}}"
            yield QUANT.format(signed, 0, "ROUND"), parameters, 0.1
        yield QUANT.format(signed, 0, "ROUND"), "float s={-0.1}, float z={0}, float b={4}", 0.1
        yield QUANT.format(signed, 0, "ROUND"), "float s={1e-42}, float z={0}, float b={4}", 1e-42


def others() -> Iterator[tuple[str, str, Any]]:
    for levels, ends in [
        (256, (0, 2.55, 0, 2.55)),
        (256, (-1, 1, -1, 1)),
        (255, (-12.7, 12.7, -12.7, 12.7)),
        (16, (-2, 1.75, -2, 1.75)),
        (256, (-0.73, 1.21, 0, 255)),
        (5, (0, 4, 0, 4)),
        (4, (1, -1, -1, 1)),
        (4, (0, 0, -1, 1)),
    ]:
        step = (ends[1] - ends[0]) / (levels - 1)
        yield FAKE.format(levels), FAKES.format(*ends), step
    bipolar = f"{QONNX}.BipolarQuant (x, s)"
    yield bipolar, "float s = {0.1}", 0.1
    trunc = f'{QONNX}.Trunc <signed = {{}}, rounding_mode = "{{}}"> (x, s, z, i, t, o)'
    grid = "float s={0.1}, float z={0}, float i={8}, float t={1.6}, float o={4}"
    for mode in ("FLOOR", "ROUND", "CEIL"):
        yield trunc.format(0, mode), grid, 0.1
        yield trunc.format(1, mode), grid, 0.1
    floats = f"""{QONNX}.FloatQuant <has_inf = 0, has_nan = 0, has_subnormal = 1, saturation = 1,
        rounding_mode = "{{}}"> (x, s, e, m, p, t)"""
    for e, m, bias, top in ((4, 3, 7, 448), (4, 3, 7, 430), (2, 1, 1, 6), (5, 2, 15, 57344)):
        widths = f"float e={{{e}}}, float m={{{m}}}, float p={{{bias}}}, float t={{{top}}}"
        for mode in ("ROUND", "FLOOR"):
            yield floats.format(mode), f"float s = {{0.1}}, {widths}", 0.1


@pytest.mark.cases(fast=3, slow=11)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("node", "parameters", "step"), [*uniform(), *others()])
def test_a_quantizer_in_a_session_has_the_bits_of_its_kernel(
    node: str, parameters: str, step: Any, relu: bool
) -> None:
    m = one(node, parameters, relu=relu)
    assert [type(s) for s in steps_of(m)] == [SessionSegment]
    # What Relu makes of -0 is open; quantizers are compared on equal inputs.
    x = hostile(step) + np.float32(0) if relu else hostile(step)
    ours, theirs = prepare(m, "numpy"), runtime(m)
    for given in (x, moderate(x)):
        assert_same_bits(ours.run({"x": given})["y"], theirs.run({"x": given})["y"])


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize(("signed", "narrow", "relu"), [(0, 0, False), (1, 0, True), (1, 1, False)])
def test_a_quantizer_of_many_levels_has_the_bits_of_its_kernel(
    signed: int, narrow: int, relu: bool
) -> None:
    node, parameters = QUANT.format(signed, narrow, "ROUND"), BITS.format(20)
    test_a_quantizer_in_a_session_has_the_bits_of_its_kernel(node, parameters, 0.1, relu)


def test_quantizers_that_follow_each_other_have_the_bits_of_their_kernels() -> None:
    """The form of the second is found later than that of the first, on whose result it works."""
    unsigned, signed = (QUANT.format(sign, 0, "ROUND") for sign in (0, 1))
    parameters = "float s = {0.1}, float t = {0.7}, float z = {0}, float b = {4}"
    chain = f"""g (float[1,4,N] x) => (float[1,4,N] y) <{parameters}> {{
        r = Relu (x)
        p = {unsigned.replace("(x", "(r")}
        q = {signed.replace("(x, s", "(p, t")}
        y = {unsigned.replace("(x", "(q")}
    }}"""
    m = model(chain)
    assert [type(s) for s in steps_of(m)] == [SessionSegment]
    x = hostile(0.1) + np.float32(0)
    ours, theirs = prepare(m, "numpy"), runtime(m)
    for given in (x, moderate(x)):
        assert_same_bits(ours.run({"x": given})["y"], theirs.run({"x": given})["y"])


@pytest.mark.cases(fast=4)
@pytest.mark.parametrize("opset", [9, 11, 13, 20, 24])
@pytest.mark.parametrize("signed", [0, 1])
def test_old_opsets_are_raised(opset: int, signed: int) -> None:
    parameters = "float s = {0.1}, float z = {0}, float b = {4}"
    m = one(QUANT.format(signed, 0, "ROUND"), parameters, opset=opset)
    assert [type(s) for s in steps_of(m)] == [SessionSegment]
    x = {"x": hostile(0.1)}
    assert_same_bits(run(m, x, backend="numpy")["y"], run(m, x, backend="ort")["y"])
    assert m.opset_imports[""] == opset


def spelled(m: ir.Model) -> list[str]:
    return [node.op_type for node in standardize(m).graph]


def test_the_form_is_the_fastest_that_is_equal() -> None:
    """An unsigned one does without the Relu; a signed one needs float operators for its -0."""
    parameters = "float s = {0.1}, float z = {0}, float b = {8}"
    unsigned, signed = (QUANT.format(sign, 0, "ROUND") for sign in (0, 1))
    kept = ["QuantizeLinear", "DequantizeLinear", "Max", "Min"]
    assert spelled(one(unsigned, parameters)) == kept
    assert spelled(one(unsigned, parameters, relu=True)) == ["Relu", *kept]
    assert spelled(one(signed, parameters)) == ["Div", "Add", "Clip", "Round", "Mul"]


def test_the_form_for_numbers_of_moderate_size_need_not_keep_nan() -> None:
    m = one(QUANT.format(0, 0, "ROUND"), "float s = {0.1}, float z = {0}, float b = {8}")
    nodes = [node.op_type for node in standardize(m, bounded=True).graph]
    assert nodes == ["QuantizeLinear", "DequantizeLinear"]


def test_nan_and_huge_numbers_come_out_right_in_the_middle_of_moderate_ones() -> None:
    quant = QUANT.format(0, 0, "ROUND")
    m = one(quant, "float s = {0.1}, float z = {0}, float b = {8}", relu=True)
    executor = runtime(m)
    for odd in (1.0, np.nan, 3e38, np.inf, -np.inf, 2.0):
        x = np.full((1, 4, 3), 0.5, np.float32)
        x[0, 2, 1] = odd
        got = executor.run({"x": x})["y"][0, 2]
        expected = odd if np.isnan(odd) else np.clip(odd, 0, np.float32(25.5))
        np.testing.assert_allclose(got, [0.5, expected, 0.5])
        np.testing.assert_array_equal(got, executor.run({"x": x.tolist()})["y"][0, 2])


def test_unused_values_are_computed_only_when_they_are_tapped() -> None:
    parameters = "float s = {0.1}, float z = {0}, float b = {8}"
    m = one(QUANT.format(0, 0, "ROUND"), parameters, relu=True)
    executor = runtime(m)
    x = np.asarray([[[-1.0, 2.0, 3.0]] * 4], np.float32)
    assert list(executor.run({"x": x})) == ["y"]
    np.testing.assert_array_equal(executor.run({"x": x}, taps=["r"])["r"], np.maximum(x, 0))
    assert executor.computed == prepare(m, "numpy").computed == ["r", "y"]


def test_a_quantizer_without_a_useful_scale_stays_with_its_kernel() -> None:
    m = one(QUANT.format(1, 0, "ROUND"), "float s = {0}, float z = {0}, float b = {8}")
    assert spelled(m) == ["Quant"]
    x = {"x": hostile(0.1)}
    assert_same_bits(run(m, x, backend="numpy")["y"], run(m, x, backend="ort")["y"])


def test_a_parameter_that_is_an_input_too_can_still_be_fed() -> None:
    m = model(
        f"""g (float[1,4,N] x, float s) => (float[1,4,N] y)
        <float s = {{0.1}}, float z = {{0}}, float b = {{8}}>
        {{ y = {QUANT.format(0, 0, "ROUND")} }}"""
    )
    executor = runtime(m)
    x = hostile([0.1, 0.7])
    for fed in ({}, {"s": np.float32(0.7)}):
        inputs = {"x": x, **{name: np.asarray(value) for name, value in fed.items()}}
        assert_same_bits(run(m, inputs, backend="numpy")["y"], executor.run(inputs)["y"])


def test_functions_and_subgraphs_keep_what_they_mean() -> None:
    """A function that has the name of a quantizer comes before it."""
    text = f"""<ir_version: 10, opset_import: ["": 21, "{QONNX}": 2]>
        g (float[N] x, bool c) => (float[N] y)
        <float s = {{0.5}}, float z = {{0}}, float b = {{4}}> {{
            f = {QONNX}.BipolarQuant (x, s)
            y = If (c) <
                then_branch = t () => (float[N] u) {{
                    u = {QONNX}.Quant <signed = 0, narrow = 0> (f, s, z, b) }},
                else_branch = e () => (float[N] v) {{ v = Neg (f) }}>
        }}
        <domain: "{QONNX}", opset_import: ["": 21]>
        BipolarQuant (a, k) => (r) {{ r = Add (a, k) }}"""
    m = ir.from_onnx_text(text)
    for c in (True, False):
        inputs = {"x": np.asarray([0.3, -0.3, 7], np.float32), "c": np.asarray(c)}
        ours, theirs = (run(m, inputs, backend=name)["y"] for name in ("numpy", "ort"))
        assert_same_bits(ours, theirs)


def behind_relu(site: Site) -> bool:
    relu = site.x.producer()
    return relu is not None and relu.op_type == "Relu" and len(site.nodes) == 1


def alone(site: Site) -> ir.Model:
    """Return a model of the nodes of ``site`` and the Relu before it, fed with its input."""
    relu = site.x.producer()
    nodes = [relu, *site.nodes] if relu is not None and behind_relu(site) else list(site.nodes)
    x = nodes[0].inputs[0]
    known: dict[ir.Value, ir.Value] = {}
    start = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=site.x.shape)
    parameters, copies = [], []
    for node in nodes:
        inputs: list[ir.Value | None] = []
        for value in node.inputs:
            if value is x:
                inputs.append(start)
            elif value is None or value in known:
                inputs.append(None if value is None else known[value])
            else:
                array = qgraph.graph.constants.constant(value)
                assert array is not None
                tensor = ir.Tensor(array, name=f"p{len(parameters)}")
                known[value] = ir.Value(name=tensor.name, const_value=tensor)
                parameters.append(known[value])
                inputs.append(known[value])
        attributes = list(node.attributes.values())
        copy = ir.Node(node.domain, node.op_type, inputs, attributes)
        copy.outputs[0].name = f"v{len(copies)}"
        known[node.outputs[0]] = copy.outputs[0]
        copies.append(copy)
    y = copies[-1].outputs[0]
    y.type = ir.TensorType(ir.DataType.FLOAT)
    imports = dict.fromkeys({node.domain for node in nodes}, 2)
    version = site.root.graph.opset_imports.get("", 21) if site.root.graph else 21
    graph = ir.Graph(
        [start], [y], nodes=copies, initializers=parameters, opset_imports={**imports, "": version}
    )
    return ir.Model(graph, ir_version=10)


@pytest.mark.cases(fast=0, slow=1)
def test_every_quantizer_of_real_models_is_equal_given_equal_inputs(
    models: Path, model_name: str
) -> None:
    m = qgraph.load(models / f"{model_name}.onnx")
    m.freeze_inputs()
    found = [site for site in sites(m.ir) if isinstance(site, Site)]
    assert found
    taps = [str(site.y.name) for site in found]
    inputs = make_inputs(m.inputs)
    ours, theirs = (m.run(inputs, backend=b, taps=taps) for b in ("numpy", "ort"))
    before = [str((site.nodes[0].inputs[0]).name) for site in found if site.weight is None]
    fed = m.run(inputs, backend="numpy", taps=before)
    for site in found:
        if site.weight is not None:
            assert_same_bits(ours[str(site.y.name)], theirs[str(site.y.name)])
            continue
        single = alone(site)
        real = fed[str(site.nodes[0].inputs[0].name)]  # type: ignore[union-attr]
        special = hostile(0.1).ravel()
        with np.errstate(over="ignore"):
            spread = np.concatenate([special * np.float32(k) for k in (1e-2, 1, 30)])
        # What Relu makes of -0 is open; quantizers are compared on equal inputs.
        spread = np.resize(spread + np.float32(0) if behind_relu(site) else spread, real.shape)
        with_noise = np.where(np.arange(real.size).reshape(real.shape) % 2 == 0, spread, real)
        for x in (real, spread.astype(np.float32), with_noise.astype(np.float32)):
            results = [
                next(iter(run(single, {"x": x}, backend=b).values())) for b in ("numpy", "ort")
            ]
            assert_same_bits(*results)


@pytest.mark.cases(fast=3, slow=5)
def test_a_whole_real_network_is_one_session(models: Path, model_name: str) -> None:
    m = qgraph.load(models / f"{model_name}.onnx")
    assert [type(step) for step in steps_of(m.ir)] == [SessionSegment]
    left = [operator_of(node) for node in standardize(m.ir).graph]
    assert all(operator is None or operator.schema.standard for operator in left)


@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_codes_that_the_runtime_gets_wrong_stay_with_our_kernels(kind: str) -> None:
    """ONNX Runtime wraps the last element of an odd number where x / scale reaches 2**31."""
    m = model(
        f"""g (float[N] x) => (float[N] y) <float s = {{1}}, {kind} z = {{0}}> {{
        q = QuantizeLinear (x, s, z)  y = DequantizeLinear (q, s, z) }}"""
    )
    x = {"x": np.full(3, 2.0**31, np.float32)}
    assert_same_bits(run(m, x, backend="numpy")["y"], run(m, x, backend="ort")["y"])


def test_a_model_of_an_opset_that_the_runtime_lacks_runs_in_numpy() -> None:
    parameters = "float s = {0.1}, float z = {0}, float b = {4}"
    m = one(QUANT.format(1, 0, "ROUND"), parameters, opset=28)
    x = {"x": hostile(0.1)}
    assert_same_bits(run(m, x, backend="numpy")["y"], run(m, x, backend="ort")["y"])


def test_the_model_itself_is_not_changed() -> None:
    m = one(QUANT.format(1, 0, "ROUND"), "float s = {0.1}, float z = {0}, float b = {4}")
    before = ir.to_proto(m).SerializeToString()
    run(m, {"x": hostile(0.1)}, backend="ort")
    assert ir.to_proto(m).SerializeToString() == before


def test_without_quantizers_nothing_is_copied() -> None:
    m = model("g (float[N] x) => (float[N] y) { y = Neg (x) }")
    assert standardize(m) is m
    assert type(prepare(m, "numpy")) is Executor
