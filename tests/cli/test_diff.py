"""``qgraph diff``: quantizers of two models side by side."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from qgraph import load
from qgraph.inventory import differences
from qgraph.inventory.differences import ChangeKind, ModelDifferences
from qgraph.model import Source
from qgraph.transforms import ConvertDialect, QuantizeBias, WidenCodes
from tests.cli.conftest import QUANT

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.onnx"))
DIALECTS = ["qdq", "qonnx", "openvino", "onnx"]


def diff(reference: Source, candidate: Source) -> ModelDifferences:
    return differences.diff(load(reference).ir, load(candidate).ir)


def converted(path: Path, to: str, out: Path) -> Path:
    model = load(path)
    model.apply(ConvertDialect(to=to))
    model.save(out)
    return out


@pytest.mark.cases(fast=0, slow=2)
@pytest.mark.parametrize("to", DIALECTS)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_conversion_leaves_every_quantizer_the_same(qgraph, tmp_path, path, to):
    found = qgraph("diff", path, converted(path, to, tmp_path / "out.onnx"))
    assert (found.status, found.talk) == (0, "")
    lines = found.out.splitlines()
    assert len(lines) > 8
    assert all(line.startswith("  ") for line in lines[:-1])
    assert lines[-1] == f"{len(lines) - 1} same"


def test_a_changed_scale_and_width_stand_field_by_field(qgraph, model, write):
    other = write(
        QUANT.replace(
            "[act] a = qonnx.custom_op.general.Quant\n            <signed = 1, narrow = 0",
            "[act] a = qonnx.custom_op.general.Quant\n            <signed = 0, narrow = 0",
        )
        .replace("(w, s, z, b)", "(w, t2, z, b)")
        .replace("float s = {0.5},", "float s = {0.5}, float t2 = {0.25},"),
        "other.onnx",
    )
    digests = {n: hashlib.sha256(np.float32(n).tobytes()).hexdigest()[:12] for n in (0.5, 0.25)}
    found = qgraph("diff", model, other)
    assert found.status == 1
    assert found.out.splitlines() == [
        "(- reference, + candidate, ! reference -> candidate)",
        "! a:",
        "!     format: int4 -> uint4",
        "! q:",
        f"!     scale: 0.5 #{digests[0.5]} -> 0.25 #{digests[0.25]}",
        "2 changed",
    ]


def test_names_are_no_difference_and_structure_pairs(qgraph, model, write):
    renamed = QUANT.replace("[act] a =", "[first] q =").replace("[weight] q =", "[second] a =")
    renamed = renamed.replace("Transpose <perm = [1, 0]> (q)", "Transpose <perm = [1, 0]> (a)")
    renamed = renamed.replace("MatMul (a, t)", "MatMul (q, t)")
    found = qgraph("diff", model, write(renamed, "renamed.onnx"))
    assert found.status == 0
    assert found.out.splitlines()[-1] == "2 same"


def test_a_quantizer_of_one_model_only_is_added_or_removed(qgraph, model, write):
    fewer = write(QUANT.replace("MatMul (a, t)", "MatMul (x, t)"), "fewer.onnx")
    text = load(fewer)
    (unused,) = [node for node in text.ir.graph if node.name == "act"]
    text.ir.graph.remove(unused, safe=True)
    text.save(fewer)
    digest = hashlib.sha256(np.float32(0.5).tobytes()).hexdigest()[:12]
    told = f"a: data int4, per tensor, scale 0.5 #{digest}, zero point 0, ROUND"
    found = qgraph("diff", "-q", model, fewer)
    assert (found.status, found.out.splitlines()) == (1, [f"- {told}", "1 same, 1 removed"])
    found = qgraph("diff", "-q", fewer, model)
    assert (found.status, found.out.splitlines()) == (1, [f"+ {told}", "1 same, 1 added"])


def test_json_says_the_same(qgraph, model, write, tmp_path, read_json):
    other = write(
        QUANT.replace(
            '1, narrow = 0, rounding_mode = "ROUND"', '1, narrow = 0, rounding_mode = "FLOOR"'
        ),
        "other.onnx",
    )
    found = qgraph("diff", "--json", model, other)
    assert found.status == 1
    (tmp_path / "d.json").write_text(found.out)
    document = read_json(tmp_path / "d.json")
    assert document["verdict"] == "different"
    assert document["summary"] == {"same": 1, "changed": 1, "removed": 0, "added": 0}
    first, second = document["quantizers"]
    assert first["differing"] == ["rounding"]
    assert (first["reference"]["rounding"], first["candidate"]["rounding"]) == ("ROUND", "FLOOR")
    assert first["reference"]["bits"] == 4
    assert first["reference"]["scale"]["low"] == 0.5
    assert (second["kind"], second["differing"]) == ("same", [])


def quantize_linear(zero_point: int, kind: str) -> ir.Model:
    return ir.from_onnx_text(f"""
        <ir_version: 10, opset_import: ["": 21]>
        net (float[N] x) => (float[N] y) <float s = {{0.5}}, {kind} z = {{{zero_point}}}> {{
            c = QuantizeLinear (x, s, z)
            y = DequantizeLinear (c, s, z)
        }}""")


def test_a_shift_of_all_codes_is_no_difference():
    assert diff(quantize_linear(0, "int8"), quantize_linear(128, "uint8")).is_same
    assert diff(quantize_linear(-25, "int8"), quantize_linear(103, "uint8")).is_same
    (change,) = diff(quantize_linear(0, "int8"), quantize_linear(0, "uint8")).changes
    assert change.fields == {"format": ("int8", "uint8")}
    (change,) = diff(quantize_linear(5, "uint8"), quantize_linear(6, "uint8")).changes
    assert change.fields == {"zero point": ("5", "6")}


def test_one_ulp_of_a_scale_is_a_difference():
    one = quantize_linear(0, "int8")
    other = quantize_linear(0, "int8")
    value = other.graph.initializers["s"]
    value.const_value = ir.tensor(np.nextafter(np.float32(0.5), np.float32(1)), name="s")
    (change,) = diff(one, other).changes
    assert change.kind is ChangeKind.CHANGED
    assert list(change.fields) == ["scale"]


def fake_quantize(low: str, high: str) -> ir.Model:
    return ir.from_onnx_text(f"""
        <ir_version: 10, opset_import: ["": 21, "org.openvinotoolkit": 1]>
        net (float[2,3] x) => (float[2,3] y)
        <float[1,3] l = {{{low}}}, float[1,3] h = {{{high}}}> {{
            y = org.openvinotoolkit.FakeQuantize <levels = 256> (x, l, h, l, h)
        }}""")


def test_ranges_are_told_as_scale_and_zero_point():
    (change,) = diff(*[fake_quantize("-12.8, -25.6, -6.4", "12.7, 25.4, 6.35")] * 2).changes
    facts = change.reference.fields()
    assert facts["format"] == "int8"
    assert facts["zero point"] == "0"
    assert facts["granularity"] == "per channel (3, axis 1)"
    digest = hashlib.sha256(np.asarray([0.1, 0.2, 0.05], "<f4").tobytes()).hexdigest()[:12]
    assert facts["scale"] == f"0.05 .. 0.2 #{digest}"


def test_equal_scales_of_all_channels_are_one():
    (change,) = diff(*[fake_quantize("-12.8, -12.8, -12.8", "12.7, 12.7, 12.7")] * 2).changes
    assert change.reference.granularity == "per tensor"


def test_a_weight_has_the_format_of_the_codes_that_occur(models):
    """Three bits that are stored in four are three bits, and signs are bipolar."""
    for name, kind in (("kwsmlp_w3a3", "int3"), ("TFC_1W2A", "bipolar")):
        model = load(models / f"{name}.onnx")
        packed = model.clone()
        packed.apply(ConvertDialect(to="qdq"))
        found = diff(model, packed)
        weights = [c.candidate for c in found.changes if c.candidate.of == "weight"]
        assert {weight.format for weight in weights} == {kind}
        assert found.is_same


def test_a_deployed_layer_keeps_its_weights_and_gains_a_bias():
    """Weights of codes up to 3 are multiplied by 16, so they need 7 bits."""
    model = load(ir.from_onnx_text(LAYER))
    deployed = model.clone()
    deployed.apply(WidenCodes(), QuantizeBias())
    found = diff(model, deployed)
    ours = {str(each.kind): each for each in found.changes if each.kind is not ChangeKind.SAME}
    assert sorted(ours) == ["added", "changed"]
    assert ours["added"].candidate.of == "bias"
    changed = ours["changed"]
    assert (changed.reference.of, changed.candidate.of) == ("weight", "weight")
    assert (changed.reference.format, changed.candidate.format) == ("int3", "int7")


LAYER = """<ir_version: 10, opset_import: ["": 21]>
net (float[1,2,4,4] x) => (float[1,1,3,3] y)
<float s = {0.5}, uint8 z = {0}, int8[1,2,2,2] w = {1, 2, 3, -3, 3, 2, 1, 0}, float[1] b = {0.7}> {
    q = QuantizeLinear (x, s, z)    d = DequantizeLinear (q, s, z)
    v = DequantizeLinear (w, s)     [conv] c = Conv (d, v, b)
    p = QuantizeLinear (c, s, z)    y = DequantizeLinear (p, s, z)
}"""


def test_models_of_other_interfaces_are_compared_by_name(qgraph, model, write):
    two = QUANT.replace("(float[N,4] x)", "(float[N,4] x, float[N,4] u)")
    found = qgraph("diff", model, write(two, "two.onnx"))
    assert (found.status, found.out.splitlines()[-1]) == (0, "2 same")
    assert "matched by name and order only" in found.err


def test_unreadable_quantizers_are_compared_by_their_reason(qgraph, write):
    text = QUANT.replace("(float[N,4] x)", "(float[N,4] x, float s2)").replace(
        "(x, s, z, b)", "(x, s2, z, b)"
    )
    first = write(text, "a.onnx")
    found = qgraph("diff", first, first)
    assert found.status == 0
    assert "s2" in found.out.splitlines()[0]


def test_a_file_that_is_no_model_is_unusable(qgraph, model, tmp_path):
    (tmp_path / "no.onnx").write_text("nothing")
    found = qgraph("diff", model, tmp_path / "no.onnx")
    assert found.status == 3
    assert "no.onnx" in found.error


def test_colours_mark_changes_on_a_terminal(qgraph, model, write, terminal):
    terminal(40)
    other = write(QUANT.replace("float b = {4}", "float b = {3}"), "other.onnx")
    found = qgraph("diff", model, other)
    assert "\x1b[33m! a:" in found.out
    assert "int4 -> int3" in found.out


FLOAT_CODES = {"brev_cnn_fp8e4m3", "brev_mlp_fp4", "brevmx_mlp_mxfp4w"}
"""Models with weights in floating-point codes, which some dialects can only say as integers."""


@pytest.mark.cases(fast=0, slow=6)
@pytest.mark.parametrize("to", DIALECTS)
def test_every_conversion_of_a_real_model_leaves_its_quantizers_the_same(models, model_name, to):
    model = load(models / f"{model_name}.onnx")
    other = model.clone()
    other.apply(ConvertDialect(to=to))
    found = diff(model, other)
    assert len(found.changes) > 4
    changed = [change for change in found.changes if change.kind is not ChangeKind.SAME]
    if model_name not in FLOAT_CODES:
        assert not changed
    gone = [change.reference for change in changed if change.reference is not None]
    assert {(was.of, was.format) for was in gone} <= {("weight", "e4m3"), ("weight", "e2m1")}


def test_models_that_tools_wrote_differently_have_one_description(models):
    """One network of Brevitas as QONNX, as QCDQ, and by the other exporter of PyTorch."""
    first = models / "brev_cnn_w4a4.onnx"
    for name in ("brev_cnn_w4a4_qcdq", "brev_cnn_w4a4_dynamo"):
        found = diff(first, models / f"{name}.onnx")
        assert found.is_same, found.to_text()
        assert len(found.changes) == 10


def test_blocks_are_told_whatever_spells_them():
    weight = (2 * np.arange(-64, 64)).astype(np.int8).reshape(4, 32)
    scale = np.asarray([[0.5, 0.25], [1, 2], [0.5, 0.25], [1, 4]], np.float32)
    blocked = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["": 21]>
        net (float[N,32] x) => (float[N,4] y) <int8[4,32] w = {0}, float[4,2] s = {0}> {
            q = DequantizeLinear <axis = 1, block_size = 16> (w, s)
            t = Transpose <perm = [1, 0]> (q)
            y = MatMul (x, t)
        }""")
    spread = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
        net (float[N,32] x) => (float[N,4] y)
        <float[4,32] w = {0}, float[4,32] s = {0}, float z = {0}, float b = {8}> {
            q = qonnx.custom_op.general.Quant
                <signed = 1, narrow = 0, rounding_mode = "ROUND"> (w, s, z, b)
            t = Transpose <perm = [1, 0]> (q)
            y = MatMul (x, t)
        }""")
    wide = np.repeat(scale, 16, axis=1)
    for model, arrays in (
        (blocked, {"w": weight, "s": scale}),
        (spread, {"w": weight * wide, "s": wide}),
    ):
        for name, array in arrays.items():
            model.graph.initializers[name].const_value = ir.tensor(array, name=name)
    (change,) = diff(blocked, spread).changes
    assert change.kind is ChangeKind.SAME, change.fields
    assert change.reference.granularity == "per 16 along axis 1"
    digest = hashlib.sha256(scale.astype("<f4").tobytes()).hexdigest()[:12]
    assert str(change.reference.scale) == f"0.25 .. 4 #{digest}"
    assert change.reference.format == "int8"


FLOAT = """
    <ir_version: 10, opset_import: ["": 20, "qonnx.custom_op.general": 2]>
    net (float[4] x) => (float[4] y)
    <float s = {{0.5}}, float e = {{4}}, float m = {{3}}, float c = {{7}}, float t = {{{most}}}> {{
        y = qonnx.custom_op.general.FloatQuant (x, s, e, m, c, t)
    }}"""


def test_minifloats_differ_by_their_largest_value():
    one, other = (ir.from_onnx_text(FLOAT.format(most=most)) for most in ("448", "240"))
    (change,) = diff(one, other).changes
    assert change.reference.format == "e4m3"
    assert change.fields == {
        "remark": ("largest value 448, saturates", "largest value 240, saturates")
    }


def test_what_is_left_over_is_paired_by_its_place():
    """Two quantizers in a row whose names, entries and exits all differ."""
    texts = [
        f"""
        <ir_version: 10, opset_import: ["": 20, "qonnx.custom_op.general": 2]>
        net (float[4] {p}x) => (float[4] {p}y)
        <float {p}s = {{{s}}}, float {p}z = {{0}}, float {p}b = {{4}}> {{
            [{p}1] {p}a = qonnx.custom_op.general.Quant
                <signed = 1, narrow = 0, rounding_mode = "ROUND"> ({p}x, {p}s, {p}z, {p}b)
            {p}r = {between} ({p}a)
            [{p}2] {p}y = qonnx.custom_op.general.Quant
                <signed = 1, narrow = 0, rounding_mode = "ROUND"> ({p}r, {p}s, {p}z, {p}b)
        }}"""
        for p, s, between in (("u", 0.5, "Relu"), ("v", 0.25, "Sigmoid"))
    ]
    found = diff(*map(ir.from_onnx_text, texts))
    assert [(c.reference.name, c.candidate.name) for c in found.changes] == [
        ("ua", "va"),
        ("uy", "vy"),
    ]


def test_a_name_cannot_make_lines_of_its_own(qgraph, model, tmp_path):
    made = load(model)
    value = next(node for node in made.ir.graph if node.name == "act").outputs[0]
    value.name = "a\n10 same"
    made.save(tmp_path / "odd.onnx")
    found = qgraph("diff", tmp_path / "odd.onnx", tmp_path / "odd.onnx")
    assert found.out.splitlines()[0].startswith(r"  a\n10 same: data")


def test_a_zero_point_far_from_the_codes_keeps_the_stored_format(qgraph, write):
    """The codes 0 .. 255 mean -100 .. 155 steps, which only nine bits would hold."""
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (float[2] x) => (float[2] y)
        <uint8[2] w = {0, 255}, float s = {0.5}, uint8 z = {ZERO}> {
            d = DequantizeLinear (w, s, z)
            y = Add (x, d)
        }"""
    models = [write(text.replace("ZERO", zero), name=f"{zero}.onnx") for zero in ("0", "100")]
    found = qgraph("diff", *models)
    assert found.status == 1
    assert "zero point: 0 -> 100" in found.out
    assert "int9" not in found.out
