"""The checker's own reading of types and shapes agrees with what is inferred elsewhere."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

import qgraph
from qgraph.graph.inference.rules import UNKNOWN
from qgraph.graph.inference.walk import infer
from qgraph.graph.scopes import nodes_of
from qgraph.verify.reading import ON_CODES_OF_ONE_TYPE, Reading, shape_of

MODELS = ("brev_cnn_w4a4", "nncf_cnn_int8_sym", "brev_mlp_fp4", "field/mo_mbv3_int8")


def disagreements(path: Path) -> tuple[int, list[str]]:
    """How many shapes both readings know, and where they contradict each other."""
    side = Reading(qgraph.load(path).ir, keep_inputs=False)
    facts = infer(qgraph.load(path).ir)
    known = {str(value.name): fact for value, fact in facts.items()}
    both, wrong = 0, []
    for node in nodes_of(side.graph):
        for value in node.outputs:
            fact, shape = known.get(str(value.name), UNKNOWN), shape_of(value)
            if None not in (fact.dtype, value.dtype) and fact.dtype != value.dtype:
                wrong.append(f"{value.name}: {value.dtype}, not {fact.dtype}")
            if fact.shape is None or shape is None:
                continue
            both += 1
            pairs = zip(shape, fact.shape, strict=False)
            numbers = [p for p in pairs if isinstance(p[0], int) and isinstance(p[1], int)]
            if len(shape) != len(fact.shape) or any(a != b for a, b in numbers):
                wrong.append(f"{value.name}: {shape}, not {fact.shape}")
    return both, wrong


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("name", MODELS)
def test_both_readings_agree_on_real_models(models: Path, name: str) -> None:
    both, wrong = disagreements(models / f"{name}.onnx")
    assert both >= 8
    assert wrong == []


@pytest.mark.exhaustive
def test_both_readings_agree_on_all_models(models: Path) -> None:
    found = {file: disagreements(file) for file in sorted(models.rglob("*.onnx"))}
    assert sum(both for both, _ in found.values()) > 1000
    assert not [(file, wrong) for file, (_, wrong) in found.items() if wrong]


def test_what_a_file_states_of_inner_values_is_not_used() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 21]> g (float[2,3] x) => (float[7] y) '
        "<int64[1] n = {-1}, float[5] h> { h = Transpose(x) y = Reshape(h, n) }"
    )
    side = Reading(model, keep_inputs=False)
    shapes = {str(v.name): shape_of(v) for node in nodes_of(side.graph) for v in node.outputs}
    assert shapes == {"h": (3, 2), "y": (6,)}


def test_types_and_shapes_are_those_that_the_operators_define() -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 21]>
        g (float[2,3] x, float[5,1,3] b) => (float[5,2,3] y) <float s = {0.5}, int8 z = {1}> {
            a = Add(x, b)  g = Greater(a, b)  q = QuantizeLinear(a, s, z)
            u = QuantizeLinear(x, s)  d = DequantizeLinear(q, s, z)  h = Cast <to = 10> (x)
            w = Where(g, d, a)  f = Flatten(w)  r = ReduceMax <keepdims = 0> (x)
            n = Shape(x)  y = Neg(w) }"""
    )
    side = Reading(model, keep_inputs=False)
    values = [value for node in nodes_of(side.graph) for value in node.outputs]
    read = {str(v.name): (v.dtype and v.dtype.name, shape_of(v)) for v in values}
    large = (5, 2, 3)
    assert read == {
        "a": ("FLOAT", large),
        "g": ("BOOL", large),
        "q": ("INT8", large),
        "u": ("UINT8", (2, 3)),
        "d": ("FLOAT", large),
        "h": ("FLOAT16", (2, 3)),
        "w": ("FLOAT", large),
        "f": ("FLOAT", (5, 6)),
        "r": ("FLOAT", ()),
        "n": ("INT64", (2,)),
        "y": ("FLOAT", large),
    }


@pytest.mark.runtime
def test_operators_on_codes_keep_the_type_of_their_first_operand() -> None:
    schemas = pytest.importorskip("onnxruntime").capi.onnxruntime_pybind11_state
    names = [
        schema.name
        for schema in schemas.get_all_operator_schema()
        if schema.domain == "com.microsoft" and schema.name in ON_CODES_OF_ONE_TYPE
        if schema.inputs[0].typeStr == schema.outputs[0].typeStr
    ]
    assert sorted(names) == sorted(ON_CODES_OF_ONE_TYPE)
