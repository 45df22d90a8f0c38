"""Forms of operators, and what the checker and shape inference make of published ones."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from qgraph.errors import OperatorError
from qgraph.graph.schema import Attribute, OpKey, OpSchema
from qgraph.ops.operator import OPERATORS

SCHEMA = OpSchema(
    name="Snap",
    also=("Snapped",),
    domains=("a", "b"),
    inputs=("x", "scale", "offset"),
    optional=1,
    attributes=(
        Attribute("mode", "near", also=("kind",), parse=str.upper, kind=ir.AttributeType.STRING),
        Attribute("width"),
    ),
)


def node(*inputs, name="Snap", domain="a", **attributes):
    values = [None if i is None else ir.Value(name=i) for i in inputs]
    return ir.node(name, values, attributes, domain=domain, name="n1")


def test_keys_are_all_spellings():
    assert set(SCHEMA.keys) == {OpKey(d, n) for d in "ab" for n in ("Snap", "Snapped")}


@pytest.mark.parametrize("count", range(5))
def test_accepts_goes_by_name_and_number_of_inputs(count):
    assert SCHEMA.accepts(node(*"xsoq"[:count])) is (count in (2, 3))
    assert not SCHEMA.accepts(node("x", "s", name="Other"))
    assert not SCHEMA.accepts(node("x", "s", domain="c"))


def test_absent_optional_inputs_are_none():
    assert [v and v.name for v in SCHEMA.values(node("x", "s"))] == ["x", "s", None]
    with pytest.raises(OperatorError, match=r"Snap 'n1': input 'scale' is missing"):
        SCHEMA.values(node("x", None, "o"))


def test_attributes_are_parsed_and_filled_in():
    assert SCHEMA.attributes_of(node("x", "s", width=3)) == {"mode": "NEAR", "width": 3}
    assert SCHEMA.attributes_of(node("x", "s", width=3, kind="far"))["mode"] == "FAR"
    both = node("x", "s", width=3, kind="far", mode="up", unknown=1)
    assert SCHEMA.attributes_of(both) == {"mode": "UP", "width": 3}


def test_bad_attributes_are_named():
    with pytest.raises(OperatorError, match=r"Snap 'n1': attribute 'width' is absent"):
        SCHEMA.attributes_of(node("x", "s"))
    with pytest.raises(OperatorError, match=r"'width' is of type STRING, expected INT"):
        SCHEMA.attributes_of(node("x", "s", width="3"))


QUANT = "qonnx.custom_op.general"


@pytest.fixture(autouse=True)
def published():
    """Looking an operator up publishes all of them."""
    OPERATORS.names()


def infer(body, *, inputs="float[2,3] x, float s, float z, float b", opset=f'"{QUANT}": 1'):
    """Check a model of one node and return the inferred type of its output."""
    body = body if "\n" in body else f"y = {body}"
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21, {opset}]> g ({inputs}) => (int64[R] out) {{\n'
        f"{body}\nout = Shape(y)\n}}"
    )
    onnx.checker.check_model(model)
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    kind = next(v for v in inferred.graph.value_info if v.name == "y").type.tensor_type
    assert kind.elem_type == model.graph.input[0].type.tensor_type.elem_type
    if not kind.HasField("shape"):
        return None
    return [d.dim_value or d.dim_param or None for d in kind.shape.dim]


@pytest.mark.parametrize(
    ("x", "s", "shape"),
    [
        ("[2,3]", "", [2, 3]),
        ("[2,3]", "[1]", [2, 3]),
        ("[2,3]", "[2,1]", [2, 3]),
        ("[3]", "[2,1]", [2, 3]),
        ("[N,3]", "[1,3]", ["N", 3]),
        ("[N,3]", "[N,1]", ["N", 3]),
        ("[N,3]", "[2,1]", [2, 3]),
        ("[N,3]", "[M,1]", ["unk__0", 3]),
        ("[?,3]", "[1,3]", ["unk__0", 3]),
        ("[1,1]", "[1]", [1, 1]),
        ("[0,3]", "[1,3]", [None, 3]),
        ("", "", []),
    ],
)
def test_the_output_has_the_broadcast_shape(x, s, shape):
    inputs = f"float{x} x, float{s} s, float z, float b"
    assert infer(f"{QUANT}.Quant(x, s, z, b)", inputs=inputs) == shape


def test_data_of_unknown_rank():
    body = f"u = Reshape(x, n)\ny = {QUANT}.Quant(u, s, z, b)"
    inputs = "float[6] x, int64[K] n, float s, float z, float b"
    assert infer(body, inputs=inputs) is None


def test_shapes_that_do_not_broadcast_are_an_error():
    with pytest.raises(onnx.shape_inference.InferenceError, match="do not broadcast"):
        infer(f"{QUANT}.Quant(x, s, z, b)", inputs="float[2,3] x, float[4] s, float z, float b")


def test_the_output_has_the_type_of_the_data():
    inputs = "float16[2] x, float s, float z, int64 b"
    assert infer(f"{QUANT}.Quant(x, s, z, b)", inputs=inputs) == [2]


@pytest.mark.parametrize("domain", ["onnx.brevitas", "finn.custom_op.general", "finn", QUANT])
@pytest.mark.parametrize("version", [1, 2, 7])
@pytest.mark.parametrize("name", ["Quant", "IntQuant"])
def test_all_domains_and_versions(domain, version, name):
    assert infer(f"{domain}.{name}(x, s, z, b)", opset=f'"{domain}": {version}') == [2, 3]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("parameters", ["s, z, b, b", "s, z, b, s, b"])
def test_trunc_passes_with_five_or_six_inputs(version, parameters):
    body = f'{QUANT}.Trunc<rounding_mode = "FLOOR">(x, {parameters})'
    assert infer(body, opset=f'"{QUANT}": {version}') == [2, 3]


def test_integer_parameters_and_both_spellings_of_has_inf_pass():
    inputs = "float[2,3] x, float s, int64 z, int32 b"
    assert infer(f"{QUANT}.Quant(x, s, z, b)", inputs=inputs) == [2, 3]
    for name in ("has_inf", "has_infinity"):
        assert infer(f"{QUANT}.FloatQuant<{name} = 1>(x, s, z, b, b, s)") == [2, 3]


@pytest.mark.parametrize("body", [f"{QUANT}.Quant(x, s)", f"{QUANT}.Trunc(x, s, z)"])
def test_the_checker_counts_inputs(body):
    with pytest.raises(onnx.checker.ValidationError, match="input"):
        infer(body)


@pytest.mark.parametrize("domain", ["org.openvinotoolkit.", ""])
def test_fake_quantize_in_both_domains(domain):
    body = f'{domain}FakeQuantize<levels = 4, auto_broadcast = "numpy">(x, s, z, b, b)'
    assert infer(body, opset='"org.openvinotoolkit": 1') == [2, 3]
    with pytest.raises(onnx.checker.ValidationError, match="levels"):
        infer(f"{domain}FakeQuantize(x, s, z, b, b)", opset='"org.openvinotoolkit": 1')


def test_publishing_twice_changes_nothing():
    schema = OPERATORS.find("Quant-1").schema
    schema.publish()
    assert onnx.defs.get_schema("Quant", 5, QUANT).since_version == 1


def test_real_models_pass(models):
    """With the domains declared that their exporters forgot."""
    paths = sorted(models.glob("*.onnx"))
    assert paths
    for path in paths:
        model = onnx.load(path, load_external_data=False)
        for domain in {n.domain for n in model.graph.node} - {o.domain for o in model.opset_import}:
            model.opset_import.add(domain=domain, version=1)
        onnx.checker.check_model(model)
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        known = {value.name for value in (*inferred.graph.value_info, *inferred.graph.output)}
        assert {name for n in model.graph.node for name in n.output} <= known, path.name
