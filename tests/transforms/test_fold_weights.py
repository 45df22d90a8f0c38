"""Constant quantizers become packed codes, and every value stays what it was."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.errors import OptionError
from qgraph.exactness import Exactness
from qgraph.model import load
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import FoldWeights

IMPORTS = '["": {opset}, "qonnx.custom_op.general": 1, "org.openvinotoolkit": 1]'


def weighted(
    weights: str, parameters: str, quantizer: str, *, shape: str = "6", opset: int = 21
) -> str:
    """A graph that multiplies its input by a quantized constant ``w``."""
    imports = IMPORTS.format(opset=opset)
    return f"""<ir_version: 10, opset_import: {imports}>
        g (float[{shape}] x) => (float[{shape}] y)
        <float[{shape}] w = {{{weights}}}, {parameters}> {{
            q = {quantizer}
            y = Mul (x, q)
        }}"""


QUANT = "qonnx.custom_op.general.Quant <signed = {signed}, narrow = {narrow}> (w, s, z, b)"
SIX = "-1.3, -0.25, -0.0, 0.3, 0.75, 9"


def quant(bits: float, zero_point: float = 0, *, signed: int = 1, narrow: int = 0, **more) -> str:
    parameters = f"float s = {{0.25}}, float z = {{{zero_point}}}, float b = {{{bits}}}"
    return weighted(SIX, parameters, QUANT.format(signed=signed, narrow=narrow), **more)


def stored(model) -> ir.Value:
    """The codes behind the only DequantizeLinear."""
    (node,) = [node for node in model.ir.graph if node.op_type == "DequantizeLinear"]
    return node.inputs[0]


@pytest.mark.parametrize(
    ("text", "opset", "dtype", "codes"),
    [
        # round half to even of w / 0.25, clamped: by hand
        (quant(8), None, "INT8", [-5, -1, 0, 1, 3, 36]),
        (quant(4), None, "INT4", [-5, -1, 0, 1, 3, 7]),
        (quant(3, narrow=1), None, "INT4", [-3, -1, 0, 1, 3, 3]),
        (quant(2), None, "INT4", [-2, -1, 0, 1, 1, 1]),
        (quant(2), 25, "INT2", [-2, -1, 0, 1, 1, 1]),
        (quant(2, signed=0), 25, "UINT2", [0, 0, 0, 1, 3, 3]),
        (quant(4, signed=0), None, "UINT4", [0, 0, 0, 1, 3, 15]),
        (quant(4, signed=0), 13, "UINT8", [0, 0, 0, 1, 3, 15]),
        (quant(8, zero_point=7, signed=0), None, "UINT8", [2, 6, 7, 8, 10, 43]),
        (quant(12), None, "INT8", [-5, -1, 0, 1, 3, 36]),
        (quant(3, zero_point=0.5), None, "INT4", None),
    ],
)
def test_codes_go_into_the_smallest_type_that_the_opset_allows(
    check_pass, text, opset, dtype, codes
):
    text = text.replace('"": 21', '"": 13') if opset == 13 else text
    model, report = check_pass(FoldWeights(opset=opset), text)
    assert report.count(SiteStatus.CHANGED) == 1
    value = stored(model)
    assert value.dtype.name == dtype
    if codes is not None:
        assert value.const_value.numpy().astype(int).tolist() == codes
    assert "w" not in model.ir.graph.initializers


def test_a_shared_weight_is_folded_once(check_pass):
    text = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
        g (float[2] x) => (float[2] y)
        <float[2] w = {1, -2}, float s = {0.5}, float z = {0}, float b = {4}> {
            q = qonnx.custom_op.general.Quant <signed = 1> (w, s, z, b)
            a = Mul (x, q)
            y = Add (a, q)
        }"""
    check_pass(FoldWeights(), text, ops=["DequantizeLinear", "Mul", "Add"])


def test_scales_per_channel_along_any_axis(check_pass):
    text = weighted(
        "1, 2, 3, 4, 5, 6, 7, 8, -9, -10, -11, -12",
        "float[1, 3, 1] s = {0.5, 1, 2}, float z = {0}, float b = {5}",
        QUANT.format(signed=1, narrow=0),
        shape="2, 3, 2",
    )
    model, _ = check_pass(FoldWeights(), text, ops=["DequantizeLinear", "Mul"])
    node = model.ir.graph[0]
    assert node.attributes["axis"].as_int() == 1
    assert node.inputs[1].const_value.numpy().tolist() == [0.5, 1, 2]


def test_zero_points_per_channel(check_pass):
    text = weighted(
        SIX,
        "float[2, 1] s = {0.5, 0.25}, float[2, 1] z = {3, 8}, float b = {4}",
        QUANT.format(signed=0, narrow=0),
        shape="2, 3",
    )
    model, _ = check_pass(FoldWeights(), text, ops=["DequantizeLinear", "Mul"])
    assert stored(model).dtype is ir.DataType.UINT4


def test_scales_per_block(check_pass):
    text = weighted(
        "1, 2, 3, 4, 5, 6, 7, 8",
        "float[2, 2, 1] s = {1, 0.5, 0.25, 2}, float z = {0}, float b = {5}",
        "qonnx.custom_op.general.Quant (w, s, z, b)",
        shape="2, 2, 2",
    )
    model, _ = check_pass(FoldWeights(), text, ops=["DequantizeLinear", "Mul"])
    assert model.ir.graph[0].attributes["block_size"].as_int() == 2


def test_a_scale_that_lies_along_two_axes_is_multiplied_afterwards(check_pass):
    text = weighted(
        "1, 2, 3, 4",
        "float[2, 2] s = {1, 0.5, 0.25, 2}, float z = {0}, float b = {5}",
        "qonnx.custom_op.general.Quant (w, s, z, b)",
        shape="2, 2",
    )
    check_pass(FoldWeights(), text, ops=["DequantizeLinear", "Mul", "Mul"])


def test_bipolar_weights(check_pass):
    text = weighted(SIX, "float s = {0.5}", "qonnx.custom_op.general.BipolarQuant (w, s)")
    for opset, dtype in ((None, "INT4"), (25, "INT2")):
        model, _ = check_pass(FoldWeights(opset=opset), text, ops=["DequantizeLinear", "Mul"])
        assert stored(model).dtype.name == dtype
        assert stored(model).const_value.numpy().astype(int).tolist() == [-1, -1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("format_parameters", "opset", "dtype"),
    [
        ((4, 3, 7, 448), None, "FLOAT8E4M3FN"),
        ((5, 2, 15, 57344), None, "FLOAT8E5M2"),
        ((2, 1, 1, 6), 23, "FLOAT4E2M1"),
        ((2, 1, 1, 6), None, "INT8"),
        ((2, 1, 1, 4), None, "INT8"),
    ],
)
def test_minifloats(check_pass, format_parameters, opset, dtype):
    names = ("e", "m", "c", "h")
    numbers = zip(names, format_parameters, strict=True)
    parameters = ", ".join(f"float {name} = {{{number}}}" for name, number in numbers)
    text = weighted(
        SIX,
        f"float s = {{0.3}}, {parameters}",
        "qonnx.custom_op.general.FloatQuant <has_nan = 1> (w, s, e, m, c, h)",
    )
    model, _ = check_pass(FoldWeights(opset=opset), text, ops=["DequantizeLinear", "Mul"])
    assert stored(model).dtype.name == dtype


@pytest.mark.parametrize(
    ("low", "high", "levels"),
    [(-1.27, 1.27, 255), (-12.7, 12.6, 255), (0, 2.55, 256), (-0.73, 1.21, 16), (3, -2, 7)],
)
def test_fake_quantize_keeps_every_value(check_pass, low, high, levels):
    text = weighted(
        SIX,
        f"float low = {{{low}}}, float high = {{{high}}}",
        f"org.openvinotoolkit.FakeQuantize <levels = {levels}> (w, low, high, low, high)",
    )
    model, report = check_pass(FoldWeights(), text)
    assert report.count(SiteStatus.CHANGED) == 1
    assert "w" not in model.ir.graph.initializers


def test_fake_quantize_as_one_dequantize_where_ulps_do_not_matter(check_pass):
    text = weighted(
        SIX,
        "float low = {-1.27}, float high = {1.27}",
        "org.openvinotoolkit.FakeQuantize <levels = 255> (w, low, high, low, high)",
    )
    ops = ["DequantizeLinear", "Mul"]
    check_pass(FoldWeights(exact=Exactness.CODES), text, ops=ops, exactly=Exactness.CODES)


def test_constants_seen_through_transpose_and_reshape(check_pass):
    text = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
        g (float[2, 3] x) => (float[2, 3] y)
        <float[6] w = {1, -2, 3, 4, -5, 6}, int64[2] shape = {3, 2},
         float s = {0.5}, float z = {0}, float b = {5}> {
            r = Reshape (w, shape)
            t = Transpose <perm = [1, 0]> (r)
            q = qonnx.custom_op.general.Quant <signed = 1> (t, s, z, b)
            y = Mul (x, q)
        }"""
    model, _ = check_pass(FoldWeights(), text, ops=["DequantizeLinear", "Mul"])
    expected = np.array([1, -2, 3, 4, -5, 6]).reshape(3, 2).T * 2
    assert stored(model).const_value.numpy().astype(int).tolist() == expected.tolist()


def test_four_bits_are_really_four_bits_in_the_file(tmp_path):
    model = load(ir.from_onnx_text(quant(4)))
    model.apply(FoldWeights())
    model.save(tmp_path / "packed.onnx")
    proto = onnx.load(tmp_path / "packed.onnx")
    (codes,) = [t for t in proto.graph.initializer if t.data_type == onnx.TensorProto.INT4]
    # -5, -1 | 0, 1 | 3, 7 in two's complement, first element in the low half
    assert codes.raw_data == bytes([0xFB, 0x10, 0x73])


def test_weights_in_branches_and_functions():
    text = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1, "local": 1]>
        g (float[2] x, bool c) => (float[2] y)
        <float[2] w = {1, -2}, float s = {0.5}, float z = {0}, float b = {4}> {
            r = If (c) <
                then_branch = t () => (float[2] u) {
                    q = qonnx.custom_op.general.Quant (w, s, z, b)
                    u = Mul (x, q) },
                else_branch = e () => (float[2] v) { v = Neg (x) }>
            y = local.scaled (r)
        }
        <domain: "local", opset_import: ["": 21, "qonnx.custom_op.general": 1]>
        scaled (i) => (o) {
            w = Constant <value = float[2] {3, 4}> ()
            s = Constant <value = float {0.5}> ()
            z = Constant <value = float {0}> ()
            b = Constant <value = float {6}> ()
            q = qonnx.custom_op.general.Quant (w, s, z, b)
            o = Mul (i, q)
        }"""
    model = load(ir.from_onnx_text(text))
    feeds = {"x": np.float32([1, 2]), "c": np.array(True)}
    expected = model.run(feeds, backend="numpy")["y"]
    report = model.apply(FoldWeights())
    assert report.count(SiteStatus.CHANGED) == 2
    assert not list(model.nodes("Quant"))
    onnx.checker.check_model(ir.to_proto(model.ir), full_check=True)
    np.testing.assert_array_equal(model.run(feeds, backend="numpy")["y"], expected)


def test_an_overridable_weight_is_folded_only_when_frozen():
    model = load(ir.from_onnx_text(quant(4)))
    weight = model.ir.graph.initializers["w"]
    model.ir.graph.inputs.append(weight)
    assert model.clone().apply(FoldWeights(), keep_inputs=True).sites == []
    report = model.apply(FoldWeights())
    assert report.frozen_inputs == 1
    assert report.count(SiteStatus.CHANGED) == 1
    assert [value.name for value in model.ir.graph.inputs] == ["x"]


@pytest.mark.parametrize(("scale", "reason"), [("0", "zero"), ("nan", "NaN"), ("inf", "infinite")])
def test_a_useless_scale_is_refused_with_a_reason(scale, reason):
    text = quant(4)
    model = load(ir.from_onnx_text(text))
    model.ir.graph.initializers["s"].const_value = ir.tensor(np.float32(scale), name="s")
    (entry,) = model.apply(FoldWeights()).sites
    assert entry.outcome is SiteStatus.REFUSED
    assert reason in entry.reason


def test_a_negative_scale_is_like_any_other(check_pass):
    model, report = check_pass(FoldWeights(), quant(4).replace("{0.25}", "{-0.25}"))
    assert report.count(SiteStatus.CHANGED) == 1
    assert stored(model).const_value.numpy().astype(int).tolist() == [5, 1, 0, -1, -3, -8]


def test_a_constant_that_cannot_be_read_is_reported():
    text = quant(4).replace("narrow = 0>", 'narrow = 0, rounding_mode = "SIDEWAYS">')
    (entry,) = load(ir.from_onnx_text(text)).apply(FoldWeights()).sites
    assert entry.outcome is SiteStatus.REFUSED
    assert "SIDEWAYS" in entry.reason


def test_different_is_no_level_of_equality():
    with pytest.raises(OptionError, match="would accept any change"):
        FoldWeights(exact=Exactness.DIFFERENT)


def test_a_single_number_without_axes_is_folded() -> None:
    quantizer = QUANT.format(signed=1, narrow=0)
    text = weighted("0.6", "float s = {0.25}, float z = {1}, float b = {4}", quantizer)
    model = load(ir.from_onnx_text(text.replace("float[6] w", "float w")))
    assert [site.outcome for site in model.apply(FoldWeights())] == [SiteStatus.CHANGED]
    # round(0.6 / 0.25 + 1) = 3, and (3 - 1) * 0.25 = 0.5
    y = model.run({"x": np.arange(6, dtype=np.float32)}, backend="numpy")["y"]
    np.testing.assert_array_equal(y, np.arange(6) * np.float32(0.5))
