"""What holds for every operator."""

from __future__ import annotations

import inspect

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.graph.schema import OpSchema
from qgraph.numerics.formats import IntFormat
from qgraph.ops import operator as operators
from qgraph.ops.definitions.quantize_linear import quantize_linear
from qgraph.ops.operator import OPERATORS, operator, operator_of
from qgraph.verify.reading import meaning

NAMES = OPERATORS.names()
QUANTIZERS = [name for name in NAMES if not OPERATORS.find(name).schema.standard]
UNDEFINED = ir.DataType.UNDEFINED

EXAMPLES = {
    "Quant-1": ((0.1, 0, 4), {}),
    "BipolarQuant-1": ((0.7,), {}),
    "Trunc-1": ((0.1, 0, 8, 6), {}),
    "Trunc-2": ((0.1, 0, 8, 0.4, 6), {}),
    "FloatQuant-1": ((0.5, 4, 3, 7, 448), {}),
    "FakeQuantize-1": ((-1, 1, -1, 1), {"levels": 16}),
}


def example(name):
    parameters, attributes = EXAMPLES[name]
    schema = OPERATORS.find(name).schema
    inputs = [ir.Value(name=i, type=ir.TensorType(ir.DataType.FLOAT)) for i in schema.inputs]
    node = ir.node(schema.name, inputs, attributes, domain=schema.domains[0])
    return node, [np.asarray(value, np.float32) for value in parameters]


@pytest.mark.parametrize("name", NAMES)
def test_signatures_follow_the_schema(name):
    operator = OPERATORS.find(name)
    attributes = {attribute.name for attribute in operator.schema.attributes}
    kernel = inspect.signature(operator.kernel).parameters.values()
    assert [p.name for p in kernel if p.kind is not p.KEYWORD_ONLY] == list(operator.schema.inputs)
    assert {p.name for p in kernel if p.kind is p.KEYWORD_ONLY} == attributes
    defined = inspect.signature(operator.define).parameters.values()
    positional = [p.name for p in defined if p.kind is not p.KEYWORD_ONLY]
    assert positional == ["op", *operator.schema.inputs]
    assert {p.name for p in defined if p.kind is p.KEYWORD_ONLY} >= attributes
    required = [p for p in defined if p.kind is not p.KEYWORD_ONLY and p.default is p.empty]
    assert len(required) == 1 + len(operator.schema.inputs) - operator.schema.optional


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_tell_formula_shapes_and_source(name):
    text = inspect.getdoc(OPERATORS.find(name).kernel)
    assert "=" in text.split("Args:")[0] or name.startswith("Cast")
    for part in ("Args:", "[*shape]", "Returns:", "Raises:", "Source:"):
        assert part in text
    for attribute in OPERATORS.find(name).schema.attributes:
        assert f"{attribute.name}: " in text


@pytest.mark.parametrize("name", QUANTIZERS)
def test_every_spelling_is_found(name):
    operator = OPERATORS.find(name)
    for key in operator.schema.keys:
        inputs = [ir.Value(name=i) for i in operator.schema.inputs]
        assert operator_of(ir.node(key.name, inputs, domain=key.domain)) is operator


@pytest.mark.parametrize("name", ["Add", "Conv"])
def test_other_operators_are_none_of_ours(name):
    assert operator_of(ir.node(name, [ir.Value(name="x")])) is None
    assert operator_of(ir.node("Quant", [ir.Value(name="x")], domain="elsewhere")) is None


@pytest.mark.parametrize("name", QUANTIZERS)
def test_every_quantizer_has_an_example(name):
    assert name in EXAMPLES


@pytest.mark.parametrize("name", QUANTIZERS)
def test_scalars_are_batches_of_one(name, hostile_inputs):
    node, parameters = example(name)
    x = hostile_inputs(0.1)
    batch = operator_of(node).run(node, [x, *parameters])
    for i in range(0, x.size, 17):
        single = operator_of(node).run(node, [x[i], *parameters])
        assert isinstance(single, np.ndarray)
        assert (single.shape, single.dtype) == ((), np.float32)
        assert np.array_equal(single, batch[i], equal_nan=True)
    assert operator_of(node).run(node, [x[:0], *parameters]).shape == (0,)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_inputs_are_left_alone(name, hostile_inputs):
    node, parameters = example(name)
    arrays = [hostile_inputs(0.1), *parameters]
    before = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    operator_of(node).run(node, arrays)
    for array, copy in zip(arrays, before, strict=True):
        assert np.array_equal(array, copy, equal_nan=True)


@pytest.mark.parametrize("name", [name for name in QUANTIZERS if name != "FloatQuant-1"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_float_types_are_computed_in(name, dtype):
    """Near what float32 gives, in the type of the data."""
    node, parameters = example(name)
    x = np.linspace(-3, 3, 21).astype(dtype)
    result = operator_of(node).run(node, [x, *parameters])
    assert result.dtype == dtype
    single = operator_of(node).run(node, [x.astype(np.float32), *parameters])
    assert np.abs(result.astype(np.float32) - single).max() < 0.42


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float64])
def test_parameters_of_another_type_mean_the_same(name, dtype):
    """Exporters write zero points and bit widths as int64."""
    node, parameters = example(name)
    x = np.linspace(-3, 3, 41, dtype=np.float32)
    expected = operator_of(node).run(node, [x, *parameters])
    converted = [p.astype(dtype) if p == np.rint(p) else p for p in parameters]
    result = operator_of(node).run(node, [x, *converted])
    assert result.dtype == np.float32
    assert result.tolist() == expected.tolist()


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_codes_are_those_of_the_integer_format(bits):
    """Unit scale and whole values: the bounds come from exact integers."""
    exact = IntFormat(bits, signed=True)
    x = np.asarray([exact.lo - 1, exact.lo, exact.hi, exact.hi + 1], np.float32)
    node, _ = example("Quant-1")
    parameters = [np.asarray(value, np.float32) for value in (1, 0, bits)]
    result = operator_of(node).run(node, [x, *parameters])
    assert result.tolist() == [exact.lo, exact.lo, exact.hi, exact.hi]


def test_resolved_types():
    """The type of codes comes from the zero point, its constant, or output_dtype."""

    def node(zero_point, **attributes):
        inputs = [ir.Value(name="x"), ir.Value(name="s"), zero_point]
        return ir.node("QuantizeLinear", inputs[: 3 if zero_point else 2], attributes)

    typed = ir.Value(name="z", type=ir.TensorType(ir.DataType.INT4))
    constant = ir.Value(name="z", const_value=ir.tensor(np.asarray(0, np.int16)))
    spelled = ir.node("Constant", [], {"value": ir.tensor(np.asarray(0, np.int8))}).outputs[0]
    for made, expected in (
        (node(typed), "INT4"),
        (node(constant), "INT16"),
        (node(spelled), "INT8"),
        (node(None), "UINT8"),
        (node(None, output_dtype=ir.DataType.FLOAT8E5M2), "FLOAT8E5M2"),
    ):
        arguments = operator_of(made).arguments(made)
        assert arguments["to"].name == expected
        assert arguments["axis"] == 1


def test_kernels_can_be_called_as_functions():
    """Without warnings, whatever the values."""
    x = np.asarray([np.inf, np.nan, 0, 3e38], np.float32)
    codes = quantize_linear(
        x,
        np.asarray(0, np.float32),
        axis=1,
        saturate=True,
        block_size=0,
        output_dtype=UNDEFINED,
        precision=UNDEFINED,
    )
    assert codes.tolist() == [255, 0, 0, 255]


@pytest.mark.slow
def test_operators_of_other_domains_may_have_names_of_known_ones(monkeypatch):
    monkeypatch.setattr(OPERATORS, "_entries", dict(OPERATORS._entries))
    monkeypatch.setattr(operators, "_BY_KEY", {})
    schema = OpSchema("Quant", ("com.example",), ("x", "scale", "zero_point", "bit_width"))

    @operator(schema, define=lambda op, x, *_: op.Min(op.Max(op.Round(x), 0.0), 3.0))
    def whole(x, scale, zero_point, bit_width):
        return np.clip(np.rint(x), np.float32(0), np.float32(3))

    text = """<ir_version: 8, opset_import: ["": 17, "DOMAIN": 1]>
    net (float[N] x) => (float[N] y) <float s = {0.5}, float z = {0}, float b = {8}> {
        y = DOMAIN.Quant (x, s, z, b)
    }"""
    own, other = (
        qgraph.load(ir.from_onnx_text(text.replace("DOMAIN", domain)))
        for domain in ("com.example", "qonnx.custom_op.general")
    )
    x = np.array([0.3, 1], np.float32)
    assert np.array_equal(own.run({"x": x}, backend="numpy")["y"], [0, 1])
    assert np.array_equal(other.run({"x": x}, backend="numpy")["y"], np.array([0.5, 1], "f4"))
    certificate = qgraph.prove(other, own)
    assert certificate.verdict == "different"
    assert not qgraph.verify(certificate, other, own).is_refuted
    # nothing but the domain tells the two apart
    assert meaning(own.ir.graph[0], {}) != meaning(other.ir.graph[0], {})
