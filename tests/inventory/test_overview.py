"""What a model contains, read from models of each dialect."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from qgraph.inventory.overview import QuantizerInfo, overview
from qgraph.model import load

QONNX = "qonnx.custom_op.general"


def read(body: str, head: str = "", shape: str = "2,4", opset: int = 21) -> list[QuantizerInfo]:
    """The quantizers of a graph with the input x."""
    imports = f'"": {opset}, "{QONNX}": 2, "org.openvinotoolkit": 1'
    text = f"""
        <ir_version: 10, opset_import: [{imports}]>
        net (float[{shape}] x) => (float[{shape}] y) <float z = {{0}}{head}> {{ {body} }}"""
    return overview(ir.from_onnx_text(text)).quantizers


def quant(bits: int, *, signed: int, narrow: int, mode: str = "ROUND") -> QuantizerInfo:
    attributes = f'signed = {signed}, narrow = {narrow}, rounding_mode = "{mode}"'
    (found,) = read(
        f"[n] y = {QONNX}.Quant <{attributes}> (x, s, z, b)",
        f", float s = {{0.25}}, float b = {{{bits}}}",
    )
    return found


@pytest.mark.parametrize(
    ("bits", "signed", "narrow", "expected"),
    [
        (8, 1, 0, ("int8", 8)),
        (8, 0, 0, ("uint8", 8)),
        (4, 1, 1, ("int4 narrow", 4)),
        (8, 0, 1, ("uint8 narrow", 8)),
        (2, 1, 1, ("int2 narrow", 2)),
        (32, 1, 0, ("int32", 32)),
        (32, 0, 0, ("uint32", 32)),
        (3, 0, 0, ("uint3", 3)),
        (1, 0, 0, ("uint1", 1)),
        (16, 1, 0, ("int16", 16)),
    ],
)
def test_the_format_of_integer_codes(bits, signed, narrow, expected):
    found = quant(bits, signed=signed, narrow=narrow)
    assert (found.format, found.bits) == expected


def test_everything_that_is_constant_is_read():
    assert quant(8, signed=1, narrow=0, mode="floor") == QuantizerInfo(
        node="n",
        op=f"{QONNX}::Quant",
        dialect="qonnx",
        format="int8",
        bits=8,
        granularity="per tensor",
        scale=(0.25, 0.25),
        zero_point=(0.0, 0.0),
        rounding="FLOOR",
    )


@pytest.mark.parametrize(
    ("shape", "values", "granularity"),
    [
        ("", "{0.5}", "per tensor"),
        ("[1, 4]", "{1, 2, 3, 4}", "per channel (4, axis 1)"),
        ("[2, 1]", "{1, 2}", "per channel (2, axis 0)"),
        ("[2, 4]", "{1, 2, 3, 4, 5, 6, 7, 8}", "shape [2, 4]"),
    ],
)
def test_granularity_and_range_of_scales(shape, values, granularity):
    (found,) = read(
        f'y = {QONNX}.Quant <signed=1, narrow=0, rounding_mode="ROUND"> (x, s, z, b)',
        f", float{shape} s = {values}, float b = {{8}}",
    )
    numbers = [float(number) for number in values.strip("{}").split(",")]
    assert found.granularity == granularity
    assert found.scale == (min(numbers), max(numbers))


def test_a_range_is_shown_as_scale_and_zero_point():
    (found,) = read(
        "y = org.openvinotoolkit.FakeQuantize <levels = 256> (x, lo, hi, lo, hi)",
        ", float lo = {-127.5}, float hi = {127.5}",
    )
    assert (found.dialect, found.format, found.bits) == ("openvino", "uint8", 8)
    assert (found.scale, found.zero_point) == ((1.0, 1.0), (127.5, 127.5))
    (found,) = read(
        "y = org.openvinotoolkit.FakeQuantize <levels = 10> (x, lo, hi, lo, hi)",
        ", float lo = {0}, float hi = {9}",
    )
    assert (found.format, found.bits) == ("0 .. 9", 4)


def test_a_pair_is_one_quantizer_and_weights_are_told():
    found = read(
        """q = QuantizeLinear (x, s, zp)
           d = DequantizeLinear (q, s, zp)
           v = DequantizeLinear (w, s, zp)
           y = Add (d, v)""",
        ", float s = {0.5}, int8 zp = {3}, int8[4] w = {1, 2, 3, 4}",
    )
    assert [(f.format, f.zero_point, f.weight) for f in found] == [
        ("int8", (3.0, 3.0), False),
        ("int8", (3.0, 3.0), True),
    ]


def test_blocks_and_float_formats():
    (found,) = read(
        """q = QuantizeLinear <axis = 1, block_size = 2> (x, s, zp)
           y = DequantizeLinear <axis = 1, block_size = 2> (q, s, zp)""",
        ", float[2,2] s = {1, 2, 3, 4}, int8[2,2] zp = {0, 0, 0, 0}",
    )
    assert found.granularity == "per 2 along axis 1"
    (found,) = read(
        f'y = {QONNX}.FloatQuant <rounding_mode = "ROUND"> (x, s, e, m, bias, top)',
        ", float s = {0.5}, float e = {4}, float m = {3}, float bias = {7}, float top = {448}",
    )
    assert (found.format, found.bits, found.scale) == ("e4m3", 8, (0.5, 0.5))
    (found,) = read(f"y = {QONNX}.BipolarQuant (x, s)", ", float s = {0.5}")
    assert (found.format, found.bits, found.zero_point) == ("bipolar", 1, None)


def test_what_cannot_be_read_has_a_reason():
    found = read(
        f"""t = Abs (z)
            y = {QONNX}.Quant <signed = 1, narrow = 0, rounding_mode = "ROUND"> (x, t, z, b)""",
        ", float b = {4}",
    )
    assert found[0].format is None
    assert "unknown before run time" in str(found[0].reason)


def test_head_counts_and_what_cannot_be_run():
    model = ir.from_onnx_text("""
        <ir_version: 9, producer_name: "tool", opset_import: ["": 20, "my.domain": 1, "f": 1]>
        net (float[N,4] x, float s, bool c) => (y) <float s = {2}> {
            a = my.domain.Unknown (x)
            b = If (c) <then_branch = yes () => (float[N,4] t) { t = Mul (a, s) },
                        else_branch = no () => (float[N,4] e) { e = f.Twice (a) }>
            y = NotAnOperator (b)
        }
        <domain: "f", opset_import: ["": 20]> Twice (p) => (q) { q = Add (p, p) }""")
    found = overview(model)
    assert (found.ir_version, found.producer) == (9, "tool")
    assert found.opsets == {"": 20, "my.domain": 1, "f": 1}
    assert [(v.name, v.dtype, v.shape) for v in found.inputs] == [
        ("x", "FLOAT", ["N", 4]),
        ("c", "BOOL", []),
    ]
    assert [(v.name, v.dtype, v.shape) for v in found.outputs] == [("y", None, None)]
    assert found.overridable == 1
    assert len(model.graph.inputs) == 3, "the model itself is left alone"
    assert found.weight_bytes == 4
    assert found.nodes == 6
    assert found.operators["Add"] == 1
    assert found.unsupported == {"NotAnOperator": 1, "my.domain::Unknown": 1}
    assert found.quantizers == []
    assert found.dialects == {}


def test_real_models_are_read_without_a_gap(models):
    for path in sorted(models.glob("*.onnx")):
        found = overview(load(path).ir)
        assert found.quantizers, path.name
        assert found.unsupported == {}, path.name
        unread = [q.node for q in found.quantizers if q.format is None and "Trunc" not in q.op]
        assert unread == [], path.name
