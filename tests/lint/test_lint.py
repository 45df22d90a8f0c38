"""What lint reports about a model: levels, order, choice of rules, facts shared by rules."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest

import qgraph
from qgraph.errors import OptionError
from qgraph.graph.streaming import Stream
from qgraph.lint.engine import chosen_rules
from qgraph.lint.facts import ModelFacts
from qgraph.lint.rule import RULES, LintLevel, page_of_rule, whole_model
from qgraph.lint.seen import count_codes

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_brevitas.onnx"
HEADER = '<ir_version: 10, opset_import: ["": 21]> net '
LAYER = f"""{HEADER} (float[N,2] x) => (float[N,2] y)
<float s = {{0.1}}, uint8 z = {{0}}, int8[2,2] w = {{1, 2, -3, 100}}, float[2] t = {{0.1, 0.2}},
 int8[2] o = {{0, 1}}, float[2] b = {{0.123, 0.5}}> {{
    [q] c = QuantizeLinear (x, s, z)
    [d] e = DequantizeLinear (c, s, z)
    [w] f = DequantizeLinear <axis = 1> (w, t, o)
    [layer] g = Gemm (e, f, b)
    [relu] r = Relu (g)
    [q2] h = QuantizeLinear (r, s, z)
    [d2] y = DequantizeLinear (h, s, z)
}}"""


def model(text: str = LAYER) -> ir.Model:
    return ir.from_onnx_text(text)


def test_lint_is_a_function_although_it_is_a_package() -> None:
    importlib.import_module("qgraph.lint.engine")
    assert "QG303" in [finding.rule.id for finding in qgraph.lint(model())]
    assert qgraph.explain("QG303").name == "float-bias"


@pytest.mark.parametrize(
    ("axis", "scales", "group"), [(0, "0.1, 0.2, 0", 1), (1, "0.1, 0", 3), (1, "0.1, 0", 1)]
)
def test_scales_of_a_conv_transpose_along_any_axis(axis: int, scales: str, group: int) -> None:
    """Scales of inputs, and those that groups share, are not those of the bias."""
    channels = 2 * group
    text = f"""{HEADER} (float[N,3,4,4] x) => (float[N,{channels},4,4] y)
    <float s = {{0.1}}, int8 z = {{0}}, int8[3,2,1,1] w = {{1, 2, -3, 4, 5, 6}},
     float[{3 - axis}] t = {{{scales}}}, float[{channels}] b = {{{", ".join(["1"] * channels)}}}> {{
        c = QuantizeLinear (x, s, z)
        e = DequantizeLinear (c, s, z)
        f = DequantizeLinear <axis = {axis}> (w, t)
        y = ConvTranspose <group = {group}> (e, f, b)
    }}"""
    lost = [finding for finding in qgraph.lint(model(text)) if finding.rule.id == "QG114"]
    assert bool(lost) is ((axis, group) == (1, 1))


@pytest.mark.parametrize(("channels", "expected"), [(3, 1), (1, 0)])
def test_factors_that_repeat_a_channel_do_not_belong_into_a_layer(
    channels: int, expected: int
) -> None:
    text = f"""{HEADER} (float[N,2,4,4] x) => (float[N,3,4,4] y)
    <float s = {{0.1}}, int8 z = {{0}}, float[3,1,1] f = {{0.5, 1, 2}},
     int8[{channels},2,1,1] w = {{{", ".join(["3"] * 2 * channels)}}}> {{
        c = QuantizeLinear (x, s, z)
        d = DequantizeLinear (c, s, z)
        e = DequantizeLinear (w, s, z)
        g = Conv (d, e)
        m = Mul (g, f)
        q = QuantizeLinear (m, s, z)
        y = DequantizeLinear (q, s, z)
    }}"""
    assert len(qgraph.lint(model(text), select="QG404")) == expected


@pytest.mark.runtime
@pytest.mark.parametrize(
    ("kind", "more", "is_merged"),
    [
        ("uint8", "", True),
        ("int8", "", False),
        ("uint8", "w = AveragePool <kernel_shape = [2, 2]> (d)", False),
        ("uint8", "d2 = DequantizeLinear (q, s, z) w = Relu (d2)", False),
        ("uint8", "w = Relu (y)", True),
    ],
)
def test_onnx_runtime_merges_the_pairs_that_lint_finds(
    kind: str, more: str, is_merged: bool
) -> None:
    outputs = ["float[1,3,8,8] y", *["float[a,b,c,d] w"] * bool(more)]
    text = f"""{HEADER} (float[1,3,8,8] x) => ({", ".join(outputs)})
    <float s = {{0.021}}, float t = {{0.017}}, uint8 z = {{0}}, {kind} v = {{0}}> {{
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        c = QuantizeLinear (d, t, v)
        y = DequantizeLinear (c, t, v)
        {more}
    }}"""
    made = model(text)
    assert len(qgraph.lint(made, "onnxruntime-cpu", select="QG301")) == is_merged
    x = np.random.default_rng(0).uniform(0, 4, (1, 3, 8, 8)).astype(np.float32)
    session = onnxruntime.InferenceSession(
        ir.serde.serialize_model(made).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    result = session.run(["y"], {"x": x})[0]
    right = qgraph.load(made).run({"x": x}, backend="numpy")["y"]
    assert np.array_equal(result, right) is not is_merged


TURN = "Transpose <perm = [0, 2, 1]>"


@pytest.mark.runtime
@pytest.mark.cases(fast=3)
@pytest.mark.parametrize(
    ("between", "behind", "codes", "is_merged"),
    [
        ("Identity (d)", "Identity (e)", ("", ""), True),
        ("Dropout (d)", "Identity (e)", ("", ""), True),
        ("Mul (one, d)", "Identity (e)", ("", ""), True),
        ("Sub (d, none)", "Identity (e)", ("", ""), True),
        ("Cast <to = 1> (d)", "Identity (e)", ("", ""), True),
        ("Expand (d, sizes)", "Identity (e)", ("", ""), True),
        ("Sub (none, d)", "Identity (e)", ("", ""), False),
        ("Transpose <perm = [0, 2, 1]> (d)", "Identity (e)", ("", ""), False),
        ("Transpose <perm = [0, 1, 2]> (d)", "Identity (e)", ("", ""), False),
        ("Transpose <perm = [0, 2, 1]> (d)", "Transpose <perm = [0, 2, 1]> (e)", ("", ""), True),
        ("Transpose <perm = [1, 2, 0]> (d)", "Transpose <perm = [1, 2, 0]> (e)", ("", ""), True),
        ("Transpose <perm = [1, 2, 0]> (d)", "Transpose <perm = [0, 2, 1]> (e)", ("", ""), True),
        ("Transpose <perm = [1, 2, 0]> (d)", "Transpose <perm = [2, 0, 1]> (e)", ("", ""), True),
        ("Reshape (d, flat)", "Reshape (e, sizes)", ("", ""), False),
        ("Identity (d)", "Identity (e)", ("Identity", "Identity"), True),
        ("Identity (d)", "Identity (e)", (TURN, ""), False),
        ("Identity (d)", "Identity (e)", ("", TURN), False),
        ("Identity (d)", "Identity (e)", (TURN, TURN), True),
        (f"{TURN} (d)", "Identity (e)", (TURN, ""), True),
        ("Identity (d)", f"{TURN} (e)", (TURN, ""), True),
        ("Identity (d)", f"{TURN} (e)", ("", ""), True),
        ("Identity (d)", "Identity (e)", ("MaxPool <kernel_shape = [1]>", ""), False),
    ],
)
def test_onnx_runtime_merges_pairs_across_what_it_removes(
    between, behind, codes, is_merged
) -> None:
    made = model(f"""{HEADER} (float[2,4,8] x) => (float[a,b,c] y)
    <float s = {{0.021}}, float t = {{0.017}}, uint8 z = {{0}}, float one = {{1}},
     float none = {{0}}, int64[3] sizes = {{2, 4, 8}}, int64[3] flat = {{8, 8, 1}}> {{
        q = QuantizeLinear (x, s, z)
        f = {codes[0] or "Identity"} (q)
        d = DequantizeLinear (f, s, z)
        b = {between}
        c = QuantizeLinear (b, t, z)
        g = {codes[1] or "Identity"} (c)
        e = DequantizeLinear (g, t, z)
        y = {behind}
    }}""")
    assert len(qgraph.lint(made, "onnxruntime-cpu", select="QG301")) == is_merged
    x = np.random.default_rng(0).uniform(0, 4, (2, 4, 8)).astype(np.float32)
    session = onnxruntime.InferenceSession(
        ir.serde.serialize_model(made).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    right = qgraph.load(made).run({"x": x}, backend="numpy")["y"]
    assert np.array_equal(session.run(["y"], {"x": x})[0], right) is not is_merged


def test_findings_are_sorted_and_the_model_stays_as_it_is() -> None:
    made = model()
    before = ir.serde.serialize_model(made).SerializeToString()
    result = qgraph.lint(made)
    assert ir.serde.serialize_model(made).SerializeToString() == before
    keys = [(finding.severity.rank, finding.rule.id) for finding in result]
    assert keys == sorted(keys)
    assert result.worst is LintLevel.WARNING
    assert len(result) == len(result.findings)
    assert result[0] is result.findings[0]


def test_a_target_asks_its_kernels_and_only_its_own_rules() -> None:
    plain = {finding.rule.id for finding in qgraph.lint(model())}
    assert "QG401" not in plain
    assert {"QG303", "QG309"} <= plain  # of ONNX Runtime, and of OpenVINO
    openvino = {finding.rule.id for finding in qgraph.lint(model(), "openvino-cpu")}
    assert "QG309" in openvino
    assert "QG303" not in openvino
    (finding,) = qgraph.lint(model(), "tensorrt", select="QG401")
    assert finding.nodes == ("layer",)
    assert "QG203" in finding.figures["reasons"]


@pytest.mark.parametrize(
    ("select", "ignore", "expected"),
    [
        ("QG5", (), {"QG501", "QG502", "QG503", "QG504", "QG505", "QG506", "QG507"}),
        (["qg112,zero-scale"], (), {"QG101", "QG112"}),
        ("size", "QG50", set()),
        ((), "Q", None),
        ("QG999", (), None),
    ],
)
def test_rules_are_chosen_by_id_beginning_name_and_family(select, ignore, expected) -> None:
    if expected is None:
        with pytest.raises(OptionError, match="There is no rule"):
            chosen_rules(select, ignore)
    else:
        assert {rule.id for rule in chosen_rules(select, ignore)} == expected


def test_all_rules_are_chosen_by_default() -> None:
    assert chosen_rules() == list(RULES)


def test_codes_are_counted_for_each_channel() -> None:
    facts = ModelFacts(model())
    decoder = facts.coder(next(node for node in facts.nodes if node.name == "w"))
    counts = facts.counts(decoder)
    assert counts is not None
    assert (counts.low, counts.high, counts.used, counts.size) == (-3, 100, 4, 4)
    assert counts.reach.tolist() == [4, 1 + 99]
    assert counts.peak.tolist() == [3, 99]


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 7, 12, 50, 1000])
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_codes_are_counted_in_pieces(
    monkeypatch: pytest.MonkeyPatch, piece: int, axis: int | None
) -> None:
    codes = np.random.default_rng(0).integers(-128, 128, (4, 5, 3), np.int8)
    channels = 1 if axis is None else codes.shape[axis]
    zero = np.arange(channels, dtype=np.int8)
    sizes = np.abs(np.moveaxis(codes, axis or 0, 0).reshape(channels, -1) - zero[:, None] * 1.0)
    monkeypatch.setattr("qgraph.lint.seen.PIECE", piece)
    counts = count_codes(Stream("INT8", codes.shape, codes), zero, axis)
    assert counts is not None
    assert counts.reach.tolist() == sizes.sum(1).tolist()
    assert counts.peak.tolist() == sizes.max(1).tolist()
    assert counts.histogram.tolist() == [int((codes == code).sum()) for code in range(-128, 128)]
    assert (counts.low, counts.high) == (codes.min(), codes.max())


def test_a_model_in_memory_has_no_path() -> None:
    (entry,) = qgraph.lint(model()).to_json()["models"]
    assert entry["path"] is None
    assert {"id", "rule", "severity", "nodes", "message", "figures", "fix"} == set(
        entry["findings"][0]
    )


def test_a_file_keeps_its_path_where_types_are_inferred(tmp_path) -> None:
    text = f"""{HEADER} (float[N,4] x) => (float[N,2] y)
    <float[2] s = {{0.1, 0.2}}, float o = {{8}}, uint8[4,2] w = {{1, 2, 3, 4, 5, 6, 7, 8}}> {{
        c = Cast <to = 1> (w)
        d = Sub (c, o)
        h = Cast <to = 10> (s)
        t = Cast <to = 1> (h)
        m = Mul (d, t)
        y = MatMul (x, m)
    }}"""
    path = tmp_path / "pieces.onnx"
    ir.save(model(text), path)
    assert qgraph.lint(path).to_json()["models"][0]["path"] == str(path)


@pytest.mark.parametrize(("shape", "count"), [("2", 0), ("2,1", 1), ("1,1", 1)])
def test_scales_of_several_axes_need_blocks(shape: str, count: int) -> None:
    """ONNX Runtime 1.32.0 and OpenVINO 2026.4.1 refuse the others, with and without Conv."""
    text = f"""{HEADER} (float[N,3] x) => (float[2,3] y)
    <int8[2,3] w = {{1, 2, 3, 4, 5, 6}}, float[{shape}] s = {{0.1, 0.2}}> {{
        y = DequantizeLinear <axis = 0> (w, s)
    }}""".replace(", 0.2", "" if shape == "1,1" else ", 0.2")
    assert len(qgraph.lint(model(text), select="QG109").findings) == count


def test_scales_of_blocks_have_to_fit() -> None:
    text = f"""{HEADER} (float[N,6] x) => (float[N,2] y)
    <float[3,2] s = {{1, 2, 3, 4, 5, 6}}, float[2,3] r = {{1, 2, 3, 4, 5, 6}},
     int8[6,2] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}> {{
        [here] m = DequantizeLinear <axis = 0, block_size = 2> (w, s)
        y = MatMul (x, m)
    }}"""
    assert not qgraph.lint(model(text), select="QG109")
    (finding,) = qgraph.lint(model(text.replace("(w, s)", "(w, r)")), select="QG109")
    assert (finding.nodes, "need [3, 2]" in finding.message) == (("here",), True)


@pytest.mark.parametrize(("kind", "severity"), [("int32", "error"), ("int8", "warning")])
def test_only_a_quantizer_to_int32_stops_the_compiler(kind: str, severity: str) -> None:
    text = f"""{HEADER} (float[N,2] x) => (float[N,2] y)
    <float s = {{0.1}}, {kind} z = {{0}}, {kind}[2] w = {{1, 2}}, float[2,2] m = {{1, 2, 3, 4}}> {{
        a = DequantizeLinear (w, s, z)
        i = Identity (a)
        q = QuantizeLinear (i, s, z)
        [here] b = DequantizeLinear (q, s, z)
        y = Gemm (x, m, b)
    }}"""
    (finding,) = qgraph.lint(model(text), "openvino-cpu", select="QG413")
    assert (str(finding.severity), finding.nodes[0]) == (severity, "here")


@pytest.mark.parametrize(
    ("target", "count"), [(None, 1), ("onnxruntime-cpu", 1), ("openvino-cpu", 0)]
)
def test_batch_norm_is_found_where_kernels_do_not_take_it(target, count):
    page = page_of_rule(RULES.find("QG403"))
    assert len(list(qgraph.lint(model(whole_model(page.before)), target, select="QG403"))) == count


@pytest.mark.parametrize(
    ("target", "count"), [("onnxruntime-cpu", 4), ("openvino-cpu", 0), ("tensorrt", 0)]
)
def test_batch_norm_is_found_where_it_is_a_reason_for_float(target, count):
    assert len(list(qgraph.lint(EXAMPLE, target, select="QG403"))) == count


def test_a_zero_point_without_elements_is_not_known() -> None:
    made = model(LAYER.replace("uint8 z = {0}", "uint8[0] z = {}"))
    assert [each.zero for each in ModelFacts(made).encoders] == [None, None]
    assert "QG303" in [finding.rule.id for finding in qgraph.lint(made)]


def test_levels_that_the_caller_of_a_function_states_are_not_too_few() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "local": 1, "org.openvinotoolkit": 1]>
    net (float[N] x) => (float[N] y) <float low = {-1}, float high = {1}> {
        y = local.Limited <levels = 16> (x, low, high)
    }
    <domain: "local", opset_import: ["": 21, "org.openvinotoolkit": 1]>
    Limited <levels> (x, low, high) => (y) {
        y = org.openvinotoolkit.FakeQuantize <levels: int = @levels> (x, low, high, low, high)
    }"""
    assert list(qgraph.lint(model(text), select="QG116")) == []


@pytest.mark.parametrize(("kind", "codes"), [("int8", ["QG315"]), ("uint8", [])])
def test_codes_of_a_concat_are_found_behind_its_quantizer(kind, codes):
    """What counts are the last codes before the convolution."""
    model = ir.from_onnx_text(f"""<ir_version: 8, opset_import: ["": 17]>
        net (float[1,2,4,4] x) => (float[1,2,2,2] y)
        <float s = {{0.1}}, int8 o = {{0}}, {kind} z = {{0}}, int8[2,4,1,1] w =
         {{1, 2, 3, 4, 5, 6, 7, 8}}> {{
            c = QuantizeLinear (x, s, o)    d = DequantizeLinear (c, s, o)
            j = Concat <axis = 1> (d, d)    r = Relu (j)
            m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
            e = QuantizeLinear (m, s, z)    f = DequantizeLinear (e, s, z)
            v = DequantizeLinear (w, s, o)  y = Conv (f, v)
        }}""")
    found = [each.rule.id for each in qgraph.lint(model, "openvino-cpu", select=["QG315"])]
    assert found == codes


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("f = Conv (d, w)", 1),
        ("v = DequantizeLinear (i, s, n) f = Conv (d, v)", 0),
        ("f = Sigmoid (d)", 1),
        ("f = Relu (d)", 0),
        ("g = Sigmoid (d) f = Sqrt (g)", 0),
    ],
)
def test_channel_scales_beside_kernels_for_one_scale_are_found(body, count):
    """Weights of 4 bits stay in float, as do operators without a kernel on codes."""
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        net (float[N,2,3,3] x) => (float[N,2,3,3] y)
        <float s = {{0.1}}, uint8 z = {{0}}, float[2,2,1,1] w = {{1, 2, 3, 4}}, int4 n = {{0}},
         int4[2,2,1,1] i = {{1, 2, 3, 4}}, float[2] t = {{0.1, 0.2}}, uint8[2] p = {{0, 0}}> {{
            c = QuantizeLinear (x, s, z)
            d = DequantizeLinear (c, s, z)
            {body}
            q = QuantizeLinear <axis = 1> (f, t, p)
            y = DequantizeLinear <axis = 1> (q, t, p)
        }}""")
    assert len(qgraph.lint(model, "onnxruntime-cpu", select=["QG619"])) == count


def test_a_pair_whose_operators_make_up_for_its_parameters_does_not_disagree() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
    g (float[N,2] x) => (float[N,2] y) <float s = {0.3}, float z = {3}, float b = {8}> {
        y = qonnx.custom_op.general.Quant <signed = 0, rounding_mode = "ROUND"> (x, s, z, b)
    }"""
    converted = qgraph.load(ir.from_onnx_text(text))
    qgraph.convert(converted, "qdq")
    (decoder,) = converted.nodes("DequantizeLinear")
    (encoder,) = converted.nodes("QuantizeLinear")
    assert converted.constant(encoder.inputs[1]) != converted.constant(decoder.inputs[1])
    assert not qgraph.lint(converted, select="QG121").findings
    twice = ir.Value(name="t", const_value=ir.tensor(np.float32(0.6), name="t"))
    converted.ir.graph.register_initializer(twice)
    decoder.replace_input_with(1, twice)
    assert [each.rule.id for each in qgraph.lint(converted, select="QG121")] == ["QG121"]


@pytest.mark.parametrize(
    ("scale", "operator", "count"), [(1, "Conv", 0), (2, "Conv", 1), (1, "Mul", 1)]
)
def test_a_scale_of_1_after_a_convolution_does_not_disagree(scale, operator, count) -> None:
    """``unit-scales`` merges the scale into the weights."""
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
    g (float[1,2,3,3] x) => (float[1,2,3,3] y)
    <float s = {{0.3}}, float u = {{{scale}}}, uint8 z = {{3}},
     float[2,2,1,1] w = {{1, 2, 3, 4}}> {{
        c = {operator} (x, {"w" if operator == "Conv" else "s"})
        r = Relu (c)
        q = QuantizeLinear (r, u, z)
        y = DequantizeLinear (q, s, z)
    }}""")
    assert len(qgraph.lint(model, select="QG121").findings) == count


@pytest.mark.cases(fast=5, slow=21)
@pytest.mark.runtime
@pytest.mark.parametrize("size", [5, 6, 7, 8])
@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("ends", [0, 1])
@pytest.mark.parametrize("pool", ["AveragePool", "AveragePool+", "MaxPool"])
def test_windows_are_found_that_openvino_pools_otherwise(size, stride, ends, pool):
    ort, openvino = map(pytest.importorskip, ("onnxruntime", "openvino"))
    padding = ", count_include_pad = 1" if pool.endswith("+") else ""
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 19]>
        net (float[1,1,{size},9] x) => (float[1,1,H,W] y) {{
            y = {pool.rstrip("+")} <kernel_shape = [2, 3], strides = [{stride}, 1],
                pads = [0, 0, {ends}, {ends}], ceil_mode = 1 {padding}> (x)
        }}""")
    x = np.random.default_rng(0).standard_normal((1, 1, size, 9)).astype(np.float32)
    file = proto.SerializeToString()
    ours = ort.InferenceSession(file).run(None, {"x": x})[0]
    core, options = openvino.Core(), {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(file), "CPU", options)
    theirs = compiled(x)[0]
    is_other = ours.shape != theirs.shape or not np.allclose(ours, theirs, atol=1e-5)
    found = list(qgraph.lint(proto, "openvino-cpu", select=["QG317"]))
    assert bool(found) == is_other


def test_no_range_is_known_of_a_scale_that_is_nan() -> None:
    text = LAYER.replace("(h, s, z)", "(h, n, p)").replace("Linear (r, s, z)", "Linear (r, n, p)")
    text = text.replace("uint8 z = {0}", "uint8 z = {0}, float n = {nan}, uint8 p = {9}")
    found = {each.rule.id for each in qgraph.lint(model(text), select=["QG102", "QG405"])}
    assert found == {"QG102"}
    known = text.replace("{nan}", "{0.3}")
    assert [each.rule.id for each in qgraph.lint(model(known), select="QG405")] == ["QG405"]


def test_a_channel_of_infinite_data_is_not_constant() -> None:
    text = f"""{HEADER} (float[N,2] x) => (float[N,2] y) <float s = {{0.1}}, uint8 z = {{0}}> {{
        [here] c = QuantizeLinear (x, s, z)
        y = DequantizeLinear (c, s, z)
    }}"""
    data = np.full((32, 2), np.inf, np.float32)
    found = qgraph.lint(model(text), select=["QG803", "QG808"], inputs=[{"x": data}])
    assert [each.rule.id for each in found] == ["QG808"]
    found = qgraph.lint(model(text), select=["QG803"], inputs=[{"x": np.ones_like(data)}])
    assert [each.rule.id for each in found] == ["QG803"]


def test_no_more_codes_are_negative_than_there_are() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
    g (float[N,2] x) => (float[N,2] y) <float s = {0.3}, float z = {1000}, float b = {6}> {
        r = Relu (x)
        y = qonnx.custom_op.general.Quant <signed = 0> (r, s, z, b)
    }"""
    (finding,) = qgraph.lint(ir.from_onnx_text(text), select="QG714")
    assert finding.figures == {"unused": 64, "levels": 64}


def test_a_pair_of_one_scale_that_is_nan_does_not_disagree() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[N,2] x) => (float[N,2] y) <float s = {nan}, int8 z = {0}> {
        q = QuantizeLinear (x, s, z)
        y = DequantizeLinear (q, s, z)
    }"""
    found = qgraph.lint(ir.from_onnx_text(text), select=["QG102", "QG121"])
    assert [each.rule.id for each in found] == ["QG102"]


@pytest.mark.parametrize(("largest", "count"), [(64, 0), (65, 1)])
def test_quantizers_are_found_once(
    largest: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for weights that operators compute; 64 is safe."""
    text = f"""{HEADER} (float[N,2] x) => (float[N,2] y)
    <float s = {{0.1}}, uint8 z = {{0}}, int8 o = {{0}}, int8[2,2] w = {{1, 2, -3, 100}},
     int8 low = {{-64}}, int8 high = {{{largest}}}> {{
        c = QuantizeLinear (x, s, z)    d = DequantizeLinear (c, s, z)
        k = Clip (w, low, high)         e = DequantizeLinear (k, s, o)
        [layer] y = MatMul (d, e)
    }}"""
    monkeypatch.setattr("qgraph.inventory.description.sites", lambda model: pytest.fail("again"))
    found = [finding.message for finding in qgraph.lint(model(text), select="QG312")]
    assert found == ["weights are beyond -64..64: two neighbours can exceed 16 bits"] * count
