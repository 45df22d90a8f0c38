"""Operators that are graphs of standard operators: other tools' results, and three readings."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from qgraph import prove
from qgraph.errors import ModelError, OperatorError
from qgraph.inventory.overview import overview
from qgraph.model import Model, load
from qgraph.ops.composite import COMPOSITES
from qgraph.reports import SiteStatus
from qgraph.transforms import ConvertDialect, LowerVendorOperators
from tests.conftest import openvino_core

VECTORS = json.loads((Path(__file__).parent / "vendor_vectors.json").read_text())
"""Small results of other tools. ``tool`` names each; numbers are the bits of float32."""

MICROSOFT, QUARK, QONNX = "com.microsoft", "com.amd.quark", "qonnx.custom_op.general"
RANDOM = np.random.default_rng(7)
IS_OLDER = tuple(map(int, version("onnxruntime").split(".")[:2])) < (1, 32)
F, H, U8, I8, I64 = np.float32, np.float16, np.uint8, np.int8, np.int64


def numbers(*shape: int, dtype: Any = F) -> Any:
    return RANDOM.normal(size=shape).astype(dtype)


def scales(*shape: int, dtype: Any = F) -> Any:
    return RANDOM.uniform(0.1, 2, shape).astype(dtype)


def codes(*shape: int, dtype: Any = U8, top: int = 256) -> Any:
    return RANDOM.integers(0, top, shape).astype(dtype)


def weights(*shape: int) -> Any:
    """Codes that processors without VNNI multiply by UINT8 without saturation."""
    return RANDOM.integers(-64, 65, shape).astype(I8)


BNB4 = {"K": 7, "N": 5, "block_size": 16}
FP8, INT4 = ml_dtypes.float8_e4m3fn, ml_dtypes.int4

EXAMPLES: list[tuple[str, str, dict[str, Any], list[Any]]] = [
    ("MatMulBnb4", MICROSOFT, BNB4 | {"quant_type": kind}, [np.eye(7, dtype=dtype), w, absmax])
    for w in (codes(18),)
    for kind in (0, 1)
    for dtype in (F, H)
    for absmax in (scales(3, dtype=dtype),)
]
EXAMPLES += [
    (
        "GatherBlockQuantized",
        MICROSOFT,
        {"bits": bits, "block_size": 16},
        [
            codes(6, 4 * bits),
            np.asarray([[5, 0], [-1, 2]], I64),
            scales(6, 2, dtype=dtype),
            *([codes(6, -(-bits // 4))] if has_points else []),
        ],
    )
    for bits in (2, 4, 8)
    for dtype, has_points in ((F, True), (H, False))
]
EXAMPLES += [
    (
        "GatherBlockQuantized",
        MICROSOFT,
        {"block_size": 16, "gather_axis": 1, "quantize_axis": 0},
        [codes(32, 4, dtype=kind, top=8), np.asarray([3, 1], I64), scales(2, 4)],
    )
    for kind in (INT4, ml_dtypes.uint4)
]
EXAMPLES += [
    ("MultiThreshold", QONNX, {"out_dtype": "UINT2", "out_scale": 0.3}, [numbers(2, 3, 2, 2), t])
    for t in (np.sort(numbers(3, 3)), np.sort(numbers(1, 3)))
]
WINDOWS = {"kernel_size": [2, 3], "stride": [1, 2], "pad_amount": [1, 0, 0, 1], "pad_value": -3}
POOL = {"kernel": 2, "stride": 1, "ibits": 4, "obits": 3, "signed": 0}
EXAMPLES += [
    ("Im2Col", QONNX, WINDOWS, [numbers(2, 4, 5, 2)]),
    ("QuantAvgPool2d", QONNX, POOL, [codes(2, 3, 4, 4, dtype=F, top=16)]),
    ("QuantAvgPool2d", QONNX, POOL | {"data_layout": "NHWC"}, [codes(1, 4, 4, 2, dtype=F, top=16)]),
    ("MXQuantizeDequantize", QUARK, {"element_dtype": "fp4_e2m1"}, [numbers(2, 40, 3)]),
    ("BFPQuantizeDequantize", QUARK, {"axis": -1}, [numbers(2, 13)]),
    ("ExtendedQuantizeLinear", QUARK, {"axis": 1}, [numbers(2, 3), scales(3), codes(3, dtype=I8)]),
    ("ExtendedDequantizeLinear", QUARK, {}, [codes(4), scales(1), codes(1)]),
    ("ExtendedQuantizeLinear", QUARK, {}, [F(1.5), F(0.25), ml_dtypes.bfloat16(2)]),
    ("TRT_FP8QuantizeLinear", "trt", {}, [numbers(2, 3), F(0.01)]),
    ("TRT_FP8DequantizeLinear", "trt", {}, [numbers(2, 3, dtype=FP8), F(0.3)]),
    ("TRT_INT4QuantizeLinear", "trt", {"axis": 0, "block_size": 2}, [numbers(4, 3), scales(2, 3)]),
    (
        "TRT_INT4DequantizeLinear",
        "trt",
        {"axis": 0, "block_size": 2},
        [codes(4, 3, dtype=INT4, top=8), scales(2, 3)],
    ),
    ("TRT_MXFP8DequantizeLinear", "trt", {}, [numbers(2, 64, dtype=FP8), codes(2, 2)]),
    ("TRT_FP4QDQ", "trt", {"block_size": 16}, [numbers(3, 32)]),
]
EXAMPLES += [
    (name, QUARK, {"axis": 0}, [data, scales(3), point])
    for dtype in (np.int32, np.uint32, ml_dtypes.bfloat16)
    for point in (codes(3, dtype=dtype),)
    for name, data in (
        ("ExtendedQuantizeLinear", numbers(3, 4) * F(1e10)),
        ("ExtendedDequantizeLinear", codes(3, 4, dtype=dtype)),
    )
]
ATTENTION = [codes(2, 1, 6), weights(6, 12), numbers(12), F(0.3), scales(12)]
ATTENTION += [np.asarray([[1], [0]], np.int32), U8(117), I8(0)]
EXAMPLES += [
    ("QAttention", MICROSOFT, {"num_heads": 2, "unidirectional": one_way}, ATTENTION)
    for one_way in (0, 1)
]
EXAMPLES += [
    (f"FakeQuantWithMinMaxVars{suffix}", "", attributes, [numbers(4, 3) * F(3), least, most])
    for suffix, attributes, least, most in (
        ("", {"num_bits": 4}, F(-3), F(3.2)),
        ("", {"narrow_range": 1}, F(-1.1), F(0.7)),
        ("PerChannel", {"num_bits": 6}, F([-1, -2.3, -0.1]), F([1, 2, 0.7])),
    )
]
REFUSED = {
    "ExtendedInstanceNormalization": (QUARK, "Run the model with Quark's library"),
    "ExtendedLSTM": (QUARK, "Run the model with Quark's library"),
    "QuantLSTMCell": (QONNX, "Run the model in Brevitas"),
    "TRT_FP4DynamicQuantize": ("trt", "Run the model in TensorRT"),
    "TRT_MXFP8DynamicQuantize": ("trt", "Run the model in TensorRT"),
}


def model_of(name: str, domain: str, attributes: dict[str, Any], arrays: list[Any]) -> Model:
    """Return a model of one node. Its first input is fed, and indices of a Gather; others not."""
    values = []
    for place, array in enumerate(map(np.asarray, arrays)):
        value = ir.Value(
            name=f"i{place}",
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            shape=ir.Shape(array.shape),
        )
        if place != (1 if name.startswith("Gather") else 0):
            value.const_value = ir.tensor(array, name=value.name)
        values.append(value)
    y = ir.Value(name="y")
    node = ir.node(name, values, attributes, domain=domain, outputs=[y])
    graph = ir.Graph(
        [value for value in values if value.const_value is None],
        [y],
        nodes=[node],
        initializers=[value for value in values if value.const_value is not None],
        opset_imports={domain: 1} | {"": 21},
        name="g",
    )
    if domain == MICROSOFT:
        y.type = ir.TensorType(ir.DataType.from_numpy(arrays[-1 if "Bnb4" in name else 2].dtype))
    return load(ir.Model(graph, ir_version=10))


def fed(model: Model, arrays: list[Any]) -> dict[str, Any]:
    return {value.name: np.asarray(arrays[int(value.name[1:])]) for value in model.ir.graph.inputs}


def bits(array: Any) -> Any:
    return np.asarray(array).reshape(-1).view(np.uint8)


def test_every_operator_has_an_example() -> None:
    assert {name for name, *_ in EXAMPLES} | set(REFUSED) == set(COMPOSITES.names())


@pytest.mark.parametrize(
    ("name", "domain", "attributes", "arrays"),
    {example[0]: example for example in EXAMPLES}.values(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_attributes_of_another_type_are_refused(
    name: str, domain: str, attributes: dict[str, Any], arrays: list[Any]
) -> None:
    for attribute in attributes.keys() - {"out_dtype"}:
        wrong = attributes | {attribute: [ir.tensor([1])]}
        with pytest.raises(ModelError, match=f"{name}.*attribute '{attribute}' is of type TENSORS"):
            model_of(name, domain, wrong, arrays)


@pytest.mark.cases(fast=10)
@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['operator']}-{v['tool']}")
def test_kernels_give_what_other_tools_give(vector: dict[str, Any]) -> None:
    arrays = [
        np.frombuffer(bytes.fromhex(each["bits"]), ">f4").astype(F).reshape(each["shape"])
        for each in vector["inputs"].values()
    ]
    model = model_of(vector["operator"], vector["domain"], vector["attributes"], arrays)
    y = model.run(fed(model, arrays), backend="numpy")["y"]
    assert y.astype(">f4").tobytes() == bytes.fromhex(vector["y"])


@pytest.mark.cases(fast=5, slow=21)
@pytest.mark.runtime
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e[0])
def test_kernel_graph_and_proof_agree(example: Any) -> None:
    """The graph, run in ONNX Runtime, gives the bits of the kernel, and is proved equal."""
    arrays = example[3]
    if IS_OLDER and example[0] == "ExtendedQuantizeLinear":
        pytest.skip("ONNX Runtime before 1.32 gives other codes for this graph")
    model, lowered = model_of(*example), model_of(*example)
    report = lowered.apply(LowerVendorOperators())
    assert [site.outcome for site in report] == [SiteStatus.CHANGED]
    assert {node.domain for node in lowered.nodes()} == {""}
    feeds = fed(model, arrays)
    y = model.run(feeds, backend="numpy")["y"]
    for each in (model, lowered):
        assert bits(each.run(feeds, backend="ort")["y"]).tolist() == bits(y).tolist()
    assert str(prove(model, lowered).verdict) == "proved"


@pytest.mark.runtime
@pytest.mark.parametrize("one_way", [0, 1])
@pytest.mark.parametrize("has_mask", [False, True])
def test_attention_of_many_keys_has_the_bits_of_onnx_runtime(one_way: int, has_mask: bool) -> None:
    """NumPy computes the exponential function otherwise, so its result is only near."""
    x, w = codes(2, 7, 24), weights(24, 48)
    arrays = [x, w, numbers(48), F(0.02), F(0.003), U8(120)]
    attributes = {"num_heads": 2, "unidirectional": one_way}
    model = model_of("QAttention", MICROSOFT, attributes, arrays)
    (node,) = model.nodes()
    zero, mask = node.inputs[5], None
    if has_mask:
        keys = np.asarray([[1, 1, 1, 0, 0, 0, 0], [0, 1, 0, 1, 1, 1, 0]], np.int32)
        mask = ir.Value(name="mask", type=ir.TensorType(ir.DataType.INT32), shape=ir.Shape((2, 7)))
        mask.const_value = ir.tensor(keys, name="mask")
        model.ir.graph.register_initializer(mask)
    node.resize_inputs(7)
    node.replace_input_with(5, mask)
    node.replace_input_with(6, zero)
    lowered = load(model.ir.clone())
    lowered.apply(LowerVendorOperators())
    y, found = (each.run({"i0": x}, backend="ort")["y"] for each in (model, lowered))
    assert bits(found).tolist() == bits(y).tolist()
    np.testing.assert_allclose(model.run({"i0": x}, backend="numpy")["y"], y, atol=1e-5)


@pytest.mark.parametrize(
    ("attributes", "shape", "way"),
    [
        ({"num_heads": 5}, (2, 1), "three equal parts for each head"),
        ({"num_heads": 2, "do_rotary": 1}, (2, 1), "Run it in ONNX Runtime"),
        ({"num_heads": 2}, (2,), "Export it with such a mask"),
    ],
)
def test_other_forms_of_attention_are_refused(attributes: Any, shape: Any, way: str) -> None:
    arrays = [*ATTENTION[:5], np.ones(shape, np.int32), *ATTENTION[6:]]
    (site,) = model_of("QAttention", MICROSOFT, attributes, arrays).apply(LowerVendorOperators())
    assert site.outcome is SiteStatus.REFUSED
    assert way in str(site.reason)


def test_convert_to_standard_operators_writes_the_graph() -> None:
    example = next(e for e in EXAMPLES if e[0] == "TRT_INT4DequantizeLinear")
    model = model_of(*example)
    model.apply(ConvertDialect(to="qdq"))
    assert [node.op_type for node in model.nodes()] == ["DequantizeLinear"]


@pytest.mark.runtime
@pytest.mark.skipif(IS_OLDER, reason="ONNX Runtime before 1.32 has no Reshape of FP8 codes")
def test_a_reshaped_pair_keeps_its_codes_in_onnx_runtime() -> None:
    """It copies the pair behind the Reshape, with codes of UINT8 if no zero point is stated."""
    text = """<ir_version: 9, opset_import: ["": 19, "trt": 1]>
    net (float[2, 3] x) => (float[3, 3] y)
    <float s = {0.01}, int64[2] sizes = {3, 2}, float[2, 3] w = {1, 2, 3, 4, 5, 6}> {
        q = trt.TRT_FP8QuantizeLinear (x, s)
        d = trt.TRT_FP8DequantizeLinear (q, s)
        r = Reshape (d, sizes)
        y = MatMul (r, w)
    }"""
    model, feeds = load(ir.from_onnx_text(text)), {"x": numbers(2, 3)}
    expected = model.run(feeds, backend="numpy")["y"]
    model.apply(ConvertDialect(to="qdq"))
    session = ort.InferenceSession(model.to_proto().SerializeToString())
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-5)


@pytest.mark.slow
def test_openvino_finds_the_exponents_of_blocks() -> None:
    """It joins a product and a difference, which are then rounded once."""
    attributes = {"bit_width": 13, "axis": -1, "block_size": 16}
    model = model_of("BFPQuantizeDequantize", QUARK, attributes, [numbers(2, 16)])
    model.apply(LowerVendorOperators())
    x = numbers(2, 16)
    (name,) = (value.name for value in model.inputs)
    expected = model.run({name: x}, backend="numpy")["y"]
    core, hint = openvino_core(), {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(
        core.read_model(model.to_proto().SerializeToString()), "CPU", hint
    )
    np.testing.assert_array_equal(compiled([x])["y"], expected)


@pytest.mark.parametrize("to", ["qdq", "qonnx", "openvino", "onnx"])
@pytest.mark.parametrize("name", ["BFPQuantizeDequantize", "MultiThreshold"])
def test_each_dialect_gets_the_graph_but_that_of_the_operator(name: str, to: str) -> None:
    model = model_of(*next(e for e in EXAMPLES if e[0] == name))
    model.apply(ConvertDialect(to=to))
    is_own = (name, to) == ("MultiThreshold", "qonnx")
    assert any(node.op_type == name for node in model.nodes()) == is_own


@pytest.mark.parametrize("name", REFUSED)
def test_operators_without_a_published_definition_are_refused(name: str) -> None:
    domain, way_out = REFUSED[name]
    model = model_of(name, domain, {}, [numbers(2, 16), F(1)])
    (site,) = model.apply(LowerVendorOperators())
    assert site.outcome is SiteStatus.REFUSED
    assert way_out in str(site.reason)
    found = overview(model.ir)
    assert found.unsupported == {f"{domain}::{name}": 1}
    assert "lower-vendor-operators" not in (found.instead or "")
    next(iter(model.nodes())).name = None
    with pytest.raises(OperatorError, match=f"producing 'y'.*{way_out}"):
        model.run(fed(model, [numbers(2, 16)]), backend="numpy")


def test_no_row_is_gathered() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
    net (int64[0] i) => (float[0,32] y) <uint8[2,16] w = {WEIGHT}, float[2,2] s = {1, 2, 3, 4}> {
        y = com.microsoft.GatherBlockQuantized <bits = 4, block_size = 16> (w, i, s)
    }""".replace("WEIGHT", ", ".join(map(str, range(32))))
    model = load(ir.from_onnx_text(text))
    model.apply(LowerVendorOperators())
    (y,) = ReferenceEvaluator(model.to_proto()).run(None, {"i": np.zeros(0, I64)})
    assert y.shape == (0, 32)
