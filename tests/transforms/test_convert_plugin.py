"""Converting FakeQuantize as OpenVINO's CPU plugin computes it."""

from __future__ import annotations

import io
import json
from fractions import Fraction

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.cli.main import main
from qgraph.exactness import Exactness
from qgraph.model import Model, load
from qgraph.ops.definitions.fake_quantize import Arithmetic, plugin_steps
from qgraph.reports import SiteStatus
from qgraph.transforms import ConvertDialect
from qgraph.transforms.base import parse_spec
from tests.conftest import openvino_core

DOMAIN = "org.openvinotoolkit"
TARGETS = ["onnx", "qonnx", "qdq"]


def to(dialect: str, exact: Exactness = Exactness.VALUES) -> ConvertDialect:
    return ConvertDialect(to=dialect, exact=exact, fake_quantize=Arithmetic.PLUGIN)


def build(
    ends: list[np.ndarray], levels: int, shape: list[int], weight: np.ndarray | None = None
) -> Model:
    """A FakeQuantize on the input x, or on a constant that is added to it."""
    x = ir.val("x", dtype=ir.DataType.FLOAT, shape=shape)
    constants = [
        ir.val(name, const_value=ir.tensor(np.asarray(end, np.float32), name=name))
        for name, end in zip("abcd", ends, strict=True)
    ]
    data = x
    if weight is not None:
        data = ir.val("w", const_value=ir.tensor(weight, name="w"))
        constants.insert(0, data)
    operands = [data, *constants[-4:]]
    node = ir.node("FakeQuantize", operands, {"levels": levels}, domain=DOMAIN)
    nodes = [node]
    if weight is not None:
        node.outputs[0].name = "q"
        nodes.append(ir.node("Concat", [node.outputs[0], x], {"axis": 0}))
    y = nodes[-1].outputs[0]
    y.name, y.type = "y", x.type
    y.shape = ir.Shape(shape) if weight is None else ir.Shape([len(weight) + shape[0], *shape[1:]])
    graph = ir.Graph(
        [x],
        [y],
        nodes=nodes,
        initializers=constants,
        opset_imports={"": 13, DOMAIN: 1},
        name="g",
    )
    return load(ir.Model(graph, ir_version=8))


def formula(x: np.ndarray, ends: list[np.ndarray], levels: int) -> np.ndarray:
    """What the plugin computes, its fused operation in exact fractions."""
    low, high, below, above = (np.asarray(end, np.float32) for end in ends)
    with np.errstate(all="ignore"):
        rate = np.float32(levels - 1) / (high - low)
        inside = np.maximum(np.minimum(x, high), low)
        q = np.rint(inside * rate + -low * rate)
        return fused(q, (above - below) / np.float32(levels - 1), below)


def constant_formula(x: np.ndarray, ends: list[np.ndarray], levels: int) -> np.ndarray:
    """What OpenVINO makes of a constant: fused in both places or not at all, by the ranges."""
    low, high, below, above = (np.asarray(end, np.float32) for end in ends)
    steps = np.float32(levels - 1)
    rate, step = steps / (high - low), (above - below) / steps
    inside = np.maximum(np.minimum(x, high), low)
    if x.ndim > 1 and (low.size == 1 or low.shape[1 - x.ndim] == low.size):
        return fused(np.rint(fused(inside, rate, (-low * steps) / (high - low))), step, below)
    return np.rint(inside * rate + -low * rate) * step + below


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    arrays = np.broadcast_arrays(a, b, c)
    exact = [
        nearest(Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r)))
        for p, q, r in zip(*(array.ravel() for array in arrays), strict=True)
    ]
    return np.float32(exact).reshape(arrays[0].shape)


def nearest(number: Fraction) -> np.float32:
    """The float32 number nearest to a fraction, ties to even."""
    guess = np.float32(float(number))
    around = [guess, np.nextafter(guess, np.float32(9e9)), np.nextafter(guess, np.float32(-9e9))]
    return min(around, key=lambda n: (abs(Fraction(float(n)) - number), int(n.view(np.int32)) & 1))


def hostile(ends: list[np.ndarray], levels: int, random: np.random.Generator) -> np.ndarray:
    """Ties of all levels or of some, with neighbours, and specials."""
    low, high = (np.ravel(np.asarray(end, np.float64)) for end in ends[:2])
    ties = np.arange(levels - 1) if levels < 300 else random.integers(0, levels, 200)
    points = (low + (ties[:, None] + 0.5) / (levels - 1) * (high - low)).astype(np.float32).ravel()
    found = [points, np.float32([0, -0.0, 1e9, -1e9, 3e38, -3e38, 1e-45, *low, *high])]
    for direction in (np.float32(np.inf), np.float32(-np.inf)):
        step = points
        for _ in range(3):
            step = np.nextafter(step, direction)
            found.append(step)
    return np.concatenate(found).astype(np.float32)


def sample(random: np.random.Generator) -> tuple[list[np.ndarray], int]:
    levels = int(random.choice([3, 15, 16, 17, 255, 256, 257, 1000]))
    channels = 3 if random.random() < 0.4 else 1
    low = -random.uniform(0, 4, channels)
    low = low if random.random() < 0.7 else low * 0
    high = low + random.uniform(0.1, 4, channels)
    shape = (1, 3, 1) if channels == 3 else ()
    ends = [end.astype(np.float32).reshape(shape) for end in (low, high)]
    if random.random() < 0.3:
        return [
            *ends,
            np.float32(random.uniform(-3, 0)),
            np.float32(random.uniform(0, 300)),
        ], levels
    return ends * 2, levels


def in_openvino(model: Model, x: np.ndarray) -> np.ndarray:
    core = openvino_core()
    loaded = core.read_model(io.BytesIO(ir.to_proto(model.ir).SerializeToString()))
    settings = {"INFERENCE_PRECISION_HINT": "f32", "LP_TRANSFORMS_MODE": "NO"}
    return core.compile_model(loaded, "CPU", settings)([x])["y"]


@pytest.mark.cases(fast=0, slow=2)
@pytest.mark.parametrize("seeds", [range(start, start + 1) for start in range(16)], ids=str)
def test_converted_models_compute_what_the_plugin_does(seeds):
    for seed in seeds:
        random = np.random.default_rng(seed)
        ends, levels = sample(random)
        x = hostile(ends, levels, random)
        x = np.broadcast_to(x, (1, 3, x.size)).copy()
        original = build(ends, levels, list(x.shape))
        expected = formula(x, ends, levels)
        for target in TARGETS:
            model = original.clone()
            (entry,) = model.apply(to(target))
            assert entry.outcome is SiteStatus.CHANGED, (seed, entry)
            assert entry.verdict.exactness >= Exactness.VALUES
            found = model.run({"x": x}, backend="numpy")["y"]
            np.testing.assert_array_equal(found, expected, err_msg=f"{seed} {entry}")


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(100, 115)], ids=str)
def test_openvino_computes_that_formula(seeds):
    for seed in seeds:
        random = np.random.default_rng(seed)
        ends, levels = sample(random)
        x = hostile(ends, levels, random)
        x = np.broadcast_to(x, (1, 3, x.size)).copy()
        model = build(ends, levels, list(x.shape))
        expected = in_openvino(model, x)
        model.apply(to("onnx"))
        np.testing.assert_array_equal(model.run({"x": x}, backend="numpy")["y"], expected)


LAYOUTS = [([40], []), ([6, 30], []), ([6, 30], [6, 1]), ([6, 30], [30]), ([3, 5, 8], [5, 1])]


def constants(seed: int) -> tuple[list[np.ndarray], int, np.ndarray]:
    """Ranges per tensor or along some axis, and data near their ties, of one to three axes."""
    random = np.random.default_rng(seed)
    shape, along = LAYOUTS[seed % len(LAYOUTS)]
    levels = int(random.choice([2, 15, 16, 255, 256]))
    low = -random.uniform(0.1, 4, along)
    width = random.uniform(0.1, 4, along)
    ends = [np.asarray(end, np.float32) for end in (low, low + width)] * 2
    places = random.integers(0, levels - 1, shape) + 0.5
    weight = np.asarray(ends[0] + places / (levels - 1) * width, np.float32)
    moved = weight.view(np.int32) + random.integers(-4, 5, shape).astype(np.int32)
    return ends, levels, moved.view(np.float32)


@pytest.mark.parametrize("seed", range(10))
def test_constants_are_computed_otherwise(seed):
    ends, levels, weight = constants(seed)
    expected = constant_formula(weight, ends, levels)
    x = np.zeros((1, *weight.shape[1:]), np.float32)
    original = build(ends, levels, list(x.shape), weight)
    for target in TARGETS:
        model = original.clone()
        (entry,) = model.apply(to(target))
        assert entry.outcome is SiteStatus.CHANGED, (target, entry)
        found = model.run({"x": x}, backend="numpy")["y"]
        np.testing.assert_array_equal(found[:-1], expected, err_msg=f"{target} {entry}")


@pytest.mark.cases(fast=4)
@pytest.mark.parametrize("seed", range(10))
def test_openvino_computes_constants_by_that_formula(seed):
    ends, levels, weight = constants(seed)
    x = np.zeros((1, *weight.shape[1:]), np.float32)
    found = in_openvino(build(ends, levels, list(x.shape), weight), x)
    np.testing.assert_array_equal(found[:-1], constant_formula(weight, ends, levels))


@pytest.mark.slow
def test_recorded_vectors(golden):
    """What the plugin gave once, to one step, for conversions that keep to it."""
    with np.load(golden / "fakequantize_cpu.npz") as archive:
        lines = bytes(archive["params"]).decode().splitlines()
        x, y, starts, ends = (archive[name] for name in ("x", "y", "xo", "yo"))
    compared = exact = 0
    for place, line in enumerate(lines):
        case = json.loads(line)
        limits = [np.asarray(case[name], np.float32) for name in ("il", "ih", "ol", "oh")]
        data = x[starts[place] : starts[place + 1]].reshape(case["xs"])
        expected = y[ends[place] : ends[place + 1]].reshape(case["ys"])
        model = build(limits, case["levels"], list(data.shape))
        (entry,) = model.apply(to("onnx"))
        if entry.outcome is SiteStatus.REFUSED:
            assert "plugin" in entry.reason or "OpenVINO" in entry.reason
            continue
        found = model.run({"x": data}, backend="numpy")["y"]
        known = ~np.isnan(data)
        step = np.broadcast_to(np.asarray(case["step"], np.float32), data.shape)
        assert (np.abs(found - expected)[known] < 1.01 * np.abs(step)[known]).all(), case
        compared += 1
        exact += np.array_equal(found[known], expected[known])
    assert compared > 20
    assert exact > compared // 2


def test_every_level_is_the_nearest_float():
    random = np.random.default_rng(0)
    for _ in range(20):
        low, width, below, height = random.uniform(0, 4, 4).astype(np.float32)
        steps = plugin_steps(*np.float32([-low, width, -below, height]), 256)
        q = np.arange(steps.first, steps.last + 1)
        exact = [
            nearest(int(n) * Fraction(float(steps.step)) + Fraction(float(steps.bottom))) for n in q
        ]
        np.testing.assert_array_equal(steps.levels(fused=True), np.float32(exact))


def test_the_meaning_makes_a_difference():
    """At 256 levels on [-1, 1] the top of the plugin is 1.0000001, that of the definition 1."""
    ends = [np.float32(-1), np.float32(1)] * 2
    model = build(ends, 256, [2])
    x = np.float32([1, 5])
    plain, plugin = model.clone(), model.clone()
    plain.apply(ConvertDialect(to="onnx"))
    plugin.apply(to("onnx"))
    np.testing.assert_array_equal(plain.run({"x": x}, backend="numpy")["y"], np.float32([1, 1]))
    top = np.nextafter(np.float32(1), np.float32(2))
    np.testing.assert_array_equal(plugin.run({"x": x}, backend="numpy")["y"], [top, top])


def test_what_is_written_for_openvino_means_the_same_there():
    """Converting to FakeQuantize, it is compared as the plugin computes it."""
    text = """
        <ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 1]>
        g (float[64] x) => (float[64] y) <float s = {0.1}, float z = {0}, float b = {8}> {
            y = qonnx.custom_op.general.Quant (x, s, z, b) }"""
    model = load(ir.from_onnx_text(text))
    x = np.random.default_rng(0).normal(size=64).astype(np.float32) * 9
    expected = model.run({"x": x}, backend="numpy")["y"]
    (entry,) = model.apply(to("openvino"))
    assert entry.outcome is SiteStatus.CHANGED
    (node,) = (node for node in model.ir.graph if node.op_type == "FakeQuantize")
    low, high = (value.const_value.numpy().item() for value in node.inputs[1:3])
    assert (low, high, node.attributes["levels"].as_int()) == (-128, 127, 256)
    np.testing.assert_array_equal(model.run({"x": x}, backend="numpy")["y"], expected)


@pytest.mark.parametrize(
    ("ends", "levels", "word"),
    [
        ((1, -1, -1, 1), 16, "reversed"),
        ((0.5, 0.5, -1, 1), 16, "NaN"),
        ((0, 1e-40, 0, 1), 16, "NaN"),
        ((-1, 1, -1, 1), 2, "2 levels"),
        ((-1, 1, -1, 1), 65536, "out of the model"),
        ((-1, 1, 0, 1), 1 << 23, "too many to enumerate"),
    ],
)
def test_what_the_plugin_does_not_do_is_refused(ends, levels, word):
    model = build([np.float32(end) for end in ends], levels, [4])
    (entry,) = model.apply(to("onnx"))
    assert entry.outcome is SiteStatus.REFUSED
    assert word in entry.reason


def test_the_graph_is_left_as_it_was_where_nothing_is_changed():
    model = build([np.float32(v) for v in (1, -1, 1, -1)], 16, [4])
    before = ir.to_onnx_text(model.ir)
    model.apply(to("qdq"))
    assert ir.to_onnx_text(model.ir) == before


def test_constants_of_what_was_replaced_are_swept():
    model = build([np.float32(v) for v in (0, 2.55, 0, 2.55)], 256, [4])
    model.apply(to("onnx"))
    used = {value.name for node in model.ir.graph for value in node.inputs}
    assert set(model.ir.graph.initializers) <= used


def test_option_of_the_pass_and_of_the_command(tmp_path):
    assert parse_spec("convert{to=qdq,fake_quantize=plugin}") == ConvertDialect(
        to="qdq", fake_quantize=Arithmetic.PLUGIN
    )
    source, out, report = (tmp_path / name for name in ("in.onnx", "out.onnx", "report.json"))
    build([np.float32(v) for v in (-1, 1, -1, 1)], 256, [2]).save(source)
    arguments = ["convert", str(source), "-o", str(out), "--to", "onnx", "--report", str(report)]
    assert main([*arguments, "--fake-quantize", "plugin"]) == 0
    (site,) = json.loads(report.read_text())["sites"]
    assert "Gather" in site["spelling"]
    top = load(out).run({"x": np.float32([1, 5])}, backend="numpy")["y"][0]
    assert top == np.nextafter(np.float32(1), np.float32(2))
