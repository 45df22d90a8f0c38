"""Networks of unlike forms, deployed and run: their results are within the stated bounds."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import qgraph
from qgraph.certificate import ProofVerdict
from tests.conftest import openvino_core

STEP = 0.125
"""Of the codes of all results."""

HEAD = """<ir_version: {ir}, opset_import: ["": {opset}, "org.openvinotoolkit": 1]>
    net ({inputs}) => ({outputs})
    <float s = {{0.0625}}, uint8 m = {{128}}, float t = {{0.125}}, float v = {{0.0078125}},
     int8 o = {{0}}, uint8 u = {{0}}, uint8 f = {{15}}> {{
        q = QuantizeLinear (x, s, m)
        d = DequantizeLinear (q, s, m)
        {nodes}
    }}"""


def coded(name: str, codes: str = "{0}q") -> str:
    """Return text that quantizes the value ``name_`` and gives ``name``."""
    clip = f"{name}k = Clip ({name}q, u, f)" if codes != "{0}q" else ""
    return (
        f"{name}q = QuantizeLinear ({name}_, t, m) {clip} "
        f"{name} = DequantizeLinear ({codes.format(name)}, t, m)"
    )


MAP, ROWS = "float[N, 4, 6, 6]", "float[N, 5, 8]"
W = "w_ = DequantizeLinear (w, v, o)"

NETWORKS = {
    # opset, input, outputs, shapes of constants, nodes, layers in integer kernels
    "ConvTranspose beside Conv": (
        13, MAP, f"{MAP} y, float[N, 4, 12, 12] z", {"w": (4, 4, 1, 1), "k": (4, 4, 2, 2)},
        f"""{W} y_ = Conv (d, w_) {coded("y")}
        k_ = DequantizeLinear (k, v, o) z_ = ConvTranspose <strides = [2, 2]> (d, k_)
        {coded("z")}""", 1),
    "LSTM beside MatMul": (
        14, ROWS, "float[N, 5, 3] y, float[N, 1, 5, 2] h",
        {"w": (8, 3), "k.": (1, 8, 8), "r.": (1, 8, 2)},
        f"""{W} y_ = MatMul (d, w_) {coded("y")} h = LSTM <hidden_size = 2> (x, k, r)""", 1),
    "GRU on decoded data": (
        17, ROWS, "float[N, 5, 3] y, float[N, 1, 5, 2] h",
        {"w": (8, 3), "k.": (1, 6, 8), "r.": (1, 6, 2)},
        f"""{W} y_ = MatMul (d, w_) {coded("y")} h = GRU <hidden_size = 2> (d, k, r)""", 1),
    "shared weights, two outputs": (
        13, "float[N, 8]", "float[N, 8] y, float[N, 8] z", {"w": (8, 8), "b.": (8,)},
        f"""{W} y_ = MatMul (d, w_) {coded("y")}
        z_ = Gemm <transB = 1> (d, w_, b) {coded("z")}""", 2),
    "BatchNormalization and residual Add": (
        13, MAP, f"{MAP} y", {"w": (4, 4, 3, 3), "g.": (4,), "b.": (4,), "n.": (4,), "p.": (4,)},
        f"""{W} a = Conv <pads = [1, 1, 1, 1]> (d, w_) c = Abs (p)
        i_ = BatchNormalization (a, g, b, n, c) {coded("i")}
        y_ = Add (i, d) {coded("y")}""", 1),
    "attention": (
        17, ROWS, f"{ROWS} y, float[N, 5, 5] z", {"w": (8, 8)},
        f"""{W} y_ = MatMul (d, w_) {coded("y")}
        e = Transpose <perm = [0, 2, 1]> (d) a = MatMul (d, e) z = Softmax (a)""", 2),
    "causal attention": (
        17, ROWS, f"{ROWS} y, {ROWS} z", {"w": (8, 8)},
        f"""{W} low = Constant <value_float = -8.1536> () high = Constant <value_float = 8.0899> ()
        mask = Constant <value = float[5,5] {{0, -1e9, -1e9, -1e9, -1e9, 0, 0, -1e9, -1e9, -1e9,
         0, 0, 0, -1e9, -1e9, 0, 0, 0, 0, -1e9, 0, 0, 0, 0, 0}}> ()
        j = org.openvinotoolkit.FakeQuantize <levels = 256> (x, low, high, low, high)
        y_ = MatMul (j, w_) {coded("y")} e = Transpose <perm = [0, 2, 1]> (j) a = MatMul (j, e)
        b = Add (a, mask) p_ = Softmax (b) {coded("p")} z_ = MatMul (p, j) {coded("z")}""", 3),
    "codes behind an LSTM": (
        14, ROWS, "float[N, 1, 5, 8] y", {"w": (8, 8), "k.": (1, 32, 8), "r.": (1, 32, 8)},
        f"""{W} low = Constant <value_float = -8.1536> () high = Constant <value_float = 8.0899> ()
        j = org.openvinotoolkit.FakeQuantize <levels = 256> (x, low, high, low, high)
        low2 = Constant <value_float = -1.0192> () high2 = Constant <value_float = 1.0112375> ()
        g = LSTM <hidden_size = 8> (j, k, r)
        h = org.openvinotoolkit.FakeQuantize <levels = 256> (g, low2, high2, low2, high2)
        y_ = MatMul (h, w_) {coded("y")}""", 1),
    "data of 4 bits, groups": (
        15, MAP, f"{MAP} y", {"w": (4, 2, 3, 3), "b.": (4,)},
        f"""{W} y_ = Conv <group = 2, pads = [1, 1, 1, 1]> (d, w_, b)
        {coded("y", "{0}k")}""".replace("t, m", "t, u"), 1),
    "fractional zero points": (
        17, MAP, f"{MAP} y", {"w": (4, 4, 1, 1), "l.": (), "h.": ()},
        f"""{W} low = Constant <value_float = -1.3> () high = Constant <value_float = 2.45> ()
        e = org.openvinotoolkit.FakeQuantize <levels = 16> (x, low, high, low, high)
        y_ = Conv (e, w_) {coded("y")}""", 1),
    "blocks of weights": (
        21, ROWS, "float[N, 5, 4] y, float[N, 5, 4] z", {"w": (8, 4), "k": (32, 4), "c.": (2, 4)},
        f"""{W} y_ = MatMul (d, w_) {coded("y")} g = Concat <axis = 2> (x, x, x, x) c_ = Abs (c)
        k_ = DequantizeLinear <axis = 0, block_size = 16> (k, c_) z = MatMul (g, k_)""", 1),
}  # fmt: skip


def network(name: str) -> onnx.ModelProto:
    opset, x, outputs, constants, nodes, _ = NETWORKS[name]
    versions = {"ir": 10 if opset > 19 else 8, "opset": opset}
    text = HEAD.format(inputs=f"{x} x", outputs=outputs, nodes=nodes, **versions)
    proto, random = onnx.parser.parse_model(text), np.random.default_rng(0)
    for key, shape in constants.items():
        codes = random.integers(-64, 65, shape).astype(np.int8)
        array = random.normal(0, 0.5, shape).astype(np.float32) if key.endswith(".") else codes
        stored = onnx.numpy_helper.from_array(np.asarray(array), key.rstrip("."))
        proto.graph.initializer.append(stored)
    return proto


def run(model: onnx.ModelProto, target: str, x: np.ndarray) -> dict[str, np.ndarray]:
    names = [value.name for value in model.graph.output]
    if target == "openvino-cpu":
        core, hint = openvino_core(), {"INFERENCE_PRECISION_HINT": "f32"}
        compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", hint)
        return dict(zip(names, compiled([x]).to_tuple(), strict=True))
    session = pytest.importorskip("onnxruntime").InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return dict(zip(names, session.run(None, {"x": x}), strict=True))


EXECUTED = {("fractional zero points", "openvino-cpu")}
"""Networks that a runtime executes as they are, one step from their definition at ties."""


@pytest.mark.slow
@pytest.mark.parametrize("target", ["onnxruntime-cpu", "openvino-cpu"])
@pytest.mark.parametrize("name", NETWORKS)
def test_results_are_within_the_bounds_of_the_input(name: str, target: str) -> None:
    if target == "openvino-cpu":
        openvino_core()
    proto = network(name)
    _, shape, *_, layers = NETWORKS[name]
    sizes = [int(size) if size.isdigit() else 3 for size in re.findall(r"\w+", shape)[1:]]
    # multiples of the step: the input has the same codes in every form
    x = (np.random.default_rng(1).integers(-120, 120, sizes) / 16).astype(np.float32)
    model = qgraph.load(proto)
    expected = model.run({"x": x}, backend="numpy")
    found = qgraph.deploy(model, target)
    # Without VNNI, products of data stay in float.
    taken = [each for each in found.layers if each.kernel is not None or each.reason_id == "QG239"]
    assert len(taken) == layers
    stated = [each.bound.max_steps for each in found.layers if each.bound is not None]
    steps = max(stated, default=int((name, target) in EXECUTED))
    results = run(model.to_proto(), target, x)
    for output, array in expected.items():
        apart = np.abs(results[output] - array).max()
        is_coded = (array % STEP == 0).all()
        assert apart <= (steps * STEP if is_coded else 1e-6 * np.abs(array).max()), output
    assert steps <= 1
    assert len(np.unique(expected["y"])) > 10


def test_the_headline_counts_segments_without_a_layer() -> None:
    """The largest bound may be that of a mean or a sum, which is no layer."""
    model = qgraph.load(Path(__file__).parents[2] / "examples" / "digits_brevitas.onnx")
    found = qgraph.deploy(model, "onnxruntime-cpu")
    regions = found.certificate.regions
    bounds = [r.bound for r in regions if r.bound is not None and r.verdict == "bounded"]
    # a segment that is proved has a bound against real numbers, which says nothing about changes
    proved = replace(regions[0], verdict=ProofVerdict.PROVED, bound=replace(bounds[0], max_steps=9))
    certificate = replace(found.certificate, regions=(proved, *regions))
    stated = replace(found, layers=(), certificate=certificate).to_json()["summary"]
    assert stated["max_steps"] == max(bound.max_steps for bound in bounds) == 1
    assert stated["tie_distance_steps"] == max(bound.tie_distance_steps for bound in bounds) > 0
    assert stated["reference_error"] == max(bound.reference_error for bound in bounds) > 0


def test_quantizers_in_functions_are_around_layers(tmp_path: Path) -> None:
    """ONNX Runtime inlines functions before it fuses."""
    runtime = pytest.importorskip("onnxruntime")
    text = """<ir_version: 10, opset_import: ["": 19, "local": 1]>
        net (float[N,4] x) => (float[N,3] y)
        <float s = {0.1}, int8[4,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
            d = local.F (x, s)
            v = local.D (w, s)
            [product] m = MatMul (d, v)
            y = local.F (m, s)
        }
        <domain: "local", opset_import: ["": 19]> F (x, s) => (y) {
            z = Constant <value = uint8 {0}> ()
            q = QuantizeLinear (x, s, z)
            y = DequantizeLinear (q, s, z)
        }
        <domain: "local", opset_import: ["": 19]> D (x, s) => (y) { y = DequantizeLinear (x, s) }"""
    proto = onnx.parser.parse_model(text)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "executed.onnx")
    runtime.InferenceSession(proto.SerializeToString(), options)
    executed = [node.op_type for node in onnx.load(tmp_path / "executed.onnx").graph.node]
    assert executed == ["QuantizeLinear", "QLinearMatMul", "DequantizeLinear"]
    model = qgraph.load(proto)
    found = qgraph.deploy(model, "onnxruntime-cpu")
    assert [(each.node, each.before) for each in found.layers] == [("product", "QLinearMatMul")]
    assert [node.op_type for node in model.nodes()][:4] == ["F", "D", "MatMul", "F"]


@pytest.mark.parametrize(
    ("target", "is_taken"), [("openvino-cpu", False), ("onnxruntime-cpu", True)]
)
def test_functions_become_their_nodes_where_the_target_takes_none(
    target: str, is_taken: bool, tmp_path: Path
) -> None:
    """All layers run in integers already, but OpenVINO does not load the input."""
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "local": 1]>
        net (float[1,2] x) => (float[1,2] y)
        <float s = {0.05}, uint8 z = {0}, int8 o = {0}, int8[2,2] w = {1, 2, 3, 4}> {
            q = QuantizeLinear (x, s, z)    d = DequantizeLinear (q, s, z)
            v = DequantizeLinear (w, s, o)  m = local.F (d, v)
            n = QuantizeLinear (m, s, z)    y = DequantizeLinear (n, s, z)
        }
        <domain: "local", opset_import: ["": 17]>
        F (a, b) => (r) { [product] r = MatMul (a, b) }""")
    model = qgraph.load(proto)
    found = qgraph.deploy(model, target)
    (layer,) = found.layers
    assert layer.kernel is not None
    assert (layer.before is not None) == is_taken
    assert any("place of their calls" in note for note in found.notes) != is_taken
    assert bool(model.to_proto().functions) == is_taken
    if target == "openvino-cpu":
        openvino = pytest.importorskip("openvino")
        model.save(tmp_path / "out.onnx")
        core = openvino.Core()
        with pytest.raises(RuntimeError, match="No conversion rule"):
            core.read_model(proto.SerializeToString(), b"")
        compiled = core.compile_model(str(tmp_path / "out.onnx"), "CPU")
        # 0.05 * (20, 40) times 0.05 * ((1, 2), (3, 4))
        assert compiled(np.float32([[1, 2]]))[0].ravel() == pytest.approx([0.35, 0.5])
