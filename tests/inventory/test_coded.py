"""Lock files and differences of operators on codes, whose parameters are read by hand."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from qgraph.inventory.differences import diff
from qgraph.inventory.lockfile import check_lock, lock_text

PACKED = f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
g (float[N,32] x) => (float[N,2] y)
<float[2,2] s = {{0.5, 0.25, 1, 2}}, uint8[2,1] z = {{135, 95}},
 uint8[2,2,8] w = {{{", ".join(["18"] * 32)}}}> {{
    [product] y = com.microsoft.MatMulNBits <K = 32, N = 2, bits = 4, block_size = 16> (x, w, s, z)
}}"""


def test_packed_weights_are_in_the_lock(tmp_path: Path) -> None:
    model = ir.from_onnx_text(PACKED)
    text = lock_text(model)
    # 135 is 0x87 and 95 is 0x5F, the low half first: 7, 8, 15, 5
    for line in ('format = "uint4"', 'granularity = "per 16 along axis 1"', '"5 .. 15 #'):
        assert line in text
    assert 'scale = "0.25 .. 2 #' in text
    path = tmp_path / "model.lock"
    path.write_text(text)
    assert check_lock(model, path).is_same
    for old, new in (("0.25", "0.125"), ("135", "136")):
        (change,) = check_lock(ir.from_onnx_text(PACKED.replace(old, new)), path).changes
        assert list(change.fields) == ["scale" if old == "0.25" else "zero point"]


def test_differences_show_parameters_of_operators_on_codes() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (uint8[N,2] x) => (uint8[N,1] y)
    <float s = {0.5}, uint8 z = {3}, int8[2,1] w = {1, 2}, int8 o = {0}, float t = {T}> {
        y = QLinearMatMul (x, s, z, w, s, o, t, z)
    }"""
    one, other = (ir.from_onnx_text(text.replace("{T}", f"{{{t}}}")) for t in (2, 4))
    weight, data = diff(one, other).changes
    assert (weight.kind, data.kind) == ("same", "changed")
    assert [old.split()[0] for pair in data.fields.values() for old in pair if old] == ["2", "4"]
