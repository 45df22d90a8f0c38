"""Quantizers that compute the same are written in one form, which is looked for once."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from qgraph.graph.edit import Draft
from qgraph.quantizers.standardize import standardize

DOMAIN = "qonnx.custom_op.general"


@pytest.mark.parametrize("bounded", [False, True])
def test_sites_alike_get_what_each_would_get(
    bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [
        ("Relu", f'{DOMAIN}.Quant <signed = 0, rounding_mode = "ROUND">', "s0, z0, b"),
        ("Neg", f'{DOMAIN}.Quant <signed = 1, rounding_mode = "FLOOR">', "s1, z0, b"),
        ("Relu", f'{DOMAIN}.Quant <signed = 1, rounding_mode = "ROUND">', "s1, z1, b"),
    ]
    lines, last = [], "x"
    for i in range(9):
        before, quant, parameters = kinds[i % 3]
        lines.append(f"r{i} = {before} ({last}) q{i} = {quant} (r{i}, {parameters})")
        last = f"q{i}"
    numbers = "float s0 = {0.1}, float s1 = {0.25}, float z0 = {0}, float z1 = {3}, float b = {4}"
    text = f"""<ir_version: 10, opset_import: ["": 21, "{DOMAIN}": 2]>
    g (float[1,4] x) => (float[1,4] q8) <{numbers}> {{ {" ".join(lines)} }}"""
    model = ir.from_onnx_text(text)

    def form(value: ir.Value | None) -> object:
        if value is None or value.is_graph_input():
            return None if value is None else value.name
        if value.const_value is not None:
            return value.const_value.numpy().tobytes()
        node = value.producer()
        assert node is not None
        attributes = str(sorted((name, str(each)) for name, each in node.attributes.items()))
        return node.op_type, attributes, tuple(map(form, node.inputs)), value.dtype

    together = [form(value) for value in standardize(model, bounded=bounded).graph.outputs]
    monkeypatch.setattr(Draft, "again", lambda self, region: None)
    assert together == [form(value) for value in standardize(model, bounded=bounded).graph.outputs]
    assert "'Quant'" not in str(together), "nothing was written"
