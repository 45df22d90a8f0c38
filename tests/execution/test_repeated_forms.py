"""Quantizers that compute the same are written in one form, which is looked for once."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.graph.edit import Draft
from qgraph.quantizers.standardize import standardize

DOMAIN = "qonnx.custom_op.general"


def form(value: ir.Value | None) -> object:
    """Return how a value is computed, down to the inputs of the graph."""
    if value is None or value.is_graph_input():
        return None if value is None else value.name
    if value.const_value is not None:
        return value.const_value.numpy().tobytes()
    node = value.producer()
    assert node is not None
    attributes = str(sorted((name, str(each)) for name, each in node.attributes.items()))
    return node.op_type, attributes, tuple(map(form, node.inputs)), value.dtype


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

    together = [form(value) for value in standardize(model, bounded=bounded).graph.outputs]
    monkeypatch.setattr(Draft, "again", lambda self, region, scale=None: None)
    assert together == [form(value) for value in standardize(model, bounded=bounded).graph.outputs]
    assert "'Quant'" not in str(together), "nothing was written"


TINY, LARGEST = 2.0**-149, 2.0**128 - 2.0**104
PLANTED = (TINY, 0.25, 3 * TINY, 0.1, 0.0, -0.0, -0.25, -0.1, np.nan, np.inf, -np.inf, 1.0, 3.0)
PLANTED += (LARGEST, LARGEST / 8, LARGEST / 127, 2.0**-126, 2.0**-127, 1e-38, 1e36, 7.0, 2.0, 1 / 3)
"""Scales for some of which a form is not equal that is equal for others, and faulty ones."""


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize(
    ("attributes", "zero_point"),
    [
        ('signed = 1, rounding_mode = "ROUND"', 0),
        ('signed = 0, rounding_mode = "ROUND"', 3),
        pytest.param('signed = 1, rounding_mode = "CEIL"', 0.5, marks=pytest.mark.slow),
    ],
)
def test_sites_that_differ_in_their_scale_get_what_each_would_get(
    attributes: str, zero_point: float, bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [f"float z = {{{zero_point}}}", "float b = {8}"]
    numbers += [f"float s{i} = {{1}}" for i in range(len(PLANTED))]
    lines = [
        f"r{i} = {'Relu' if i % 2 else 'Neg'} (x) q{i} = {DOMAIN}.Quant <{attributes}> "
        f"({'x' if i % 3 else f'r{i}'}, s{i}, z, b)"
        for i in range(len(PLANTED))
    ]
    outputs = ", ".join(f"float[1,4] q{i}" for i in range(len(PLANTED)))
    text = f"""<ir_version: 10, opset_import: ["": 21, "{DOMAIN}": 2]>
    g (float[1,4] x) => ({outputs}) <{", ".join(numbers)}> {{ {" ".join(lines)} }}"""
    model = ir.from_onnx_text(text)
    for i, scale in enumerate(PLANTED):
        model.graph.initializers[f"s{i}"].const_value = ir.tensor(np.float32(scale), name=f"s{i}")
    together = [form(value) for value in standardize(model, bounded=bounded).graph.outputs]
    monkeypatch.setattr(Draft, "again", lambda self, region, scale=None: None)
    assert together == [form(value) for value in standardize(model, bounded=bounded).graph.outputs]
    kept = [scale for scale, each in zip(PLANTED, together, strict=True) if "'Quant'" in str(each)]
    assert all(scale == 0 or not np.isfinite(scale) for scale in kept)
    assert len(kept) == 5
