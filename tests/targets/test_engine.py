"""Which kernel takes a layer, or which condition fails: layers and kernels written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qgraph.targets.engine import KernelMatch, NoKernel, kernel_of
from qgraph.targets.layer import (
    BehindLayer,
    CodedOperand,
    Granularity,
    LayerBias,
    ProductAxis,
    QuantizedLayer,
    ZeroPoint,
)
from qgraph.targets.reader import profile_of
from qgraph.targets.rules import UNMET

DATA = CodedOperand("UINT8")
SIGNED = CodedOperand("INT8")
WEIGHT = CodedOperand("INT8", "DequantizeLinear", is_constant=True, is_direct=False)
LAYER = QuantizedLayer("conv1", "Conv", DATA, WEIGHT, DATA)
CLIPPED = replace(SIGNED, written="QuantizeLinear+Clip+DequantizeLinear", is_direct=False)
PER_AXIS = replace(WEIGHT, granularity=Granularity.AXIS, axis=ProductAxis.INPUT)


def names(layer: QuantizedLayer, target: str = "onnxruntime-cpu", **options: str) -> list[str]:
    """Return the name of the kernel, or of the conditions that fail."""
    found = kernel_of(layer, profile_of(target), **options)
    if isinstance(found, KernelMatch):
        return [found.kernel.id]
    return [UNMET[reason.id].name for reason in found.reasons]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ["conv"]),
        ({"x": SIGNED, "y": SIGNED}, ["conv"]),
        ({"x": SIGNED, "y": CLIPPED}, ["indirect-pair"]),
        ({"w": replace(WEIGHT, codes="INT4")}, ["types-of-codes"]),
        ({"w": PER_AXIS}, ["axis"]),
        ({"w": replace(PER_AXIS, axis=ProductAxis.OUTPUT)}, ["conv"]),
        ({"x": replace(DATA, granularity=Granularity.AXIS)}, ["granularity"]),
        ({"x": replace(DATA, before=("Reshape", "Pad"))}, ["conv"]),
        ({"x": replace(DATA, before=("Flatten",))}, ["before-layer"]),
        ({"x": replace(DATA, written="Div+Round+Clip+Mul")}, ["form-of-quantizer"]),
        ({"y": None}, ["no-quantizer"]),
        ({"bias": LayerBias("INT32", 0.009)}, ["conv"]),
        ({"bias": LayerBias("INT32", 0.011)}, ["bias-scale"]),
        ({"bias": LayerBias("INT32", 1.1, 9e-7)}, ["conv"]),
        ({"bias": LayerBias("INT32", 1.1, 2e-6)}, ["bias-scale"]),
        ({"bias": LayerBias("computed")}, ["bias-type", "bias-scale"]),
        ({"behind": (BehindLayer("Relu", is_redundant=True),)}, ["conv"]),
        ({"behind": (BehindLayer("Relu"),)}, ["behind-layer"]),
        ({"behind": (BehindLayer("MaxPool"),)}, ["conv"]),
        ({"behind": (BehindLayer("BatchNormalization"),)}, ["behind-layer"]),
        ({"consumers": 2}, ["several-readers"]),
        ({"is_graph_output": True}, ["graph-output"]),
        ({"op": "ConvTranspose"}, ["no-kernel"]),
        ({"op": "Gemm", "w": replace(WEIGHT, has_zero_input=False)}, ["zero-point-input"]),
        ({"op": "Gemm", "attributes": {"beta": 2.0}}, ["attributes"]),
    ],
)
def test_conditions_of_onnx_runtime(change, expected):
    """As the tables of its optimizer say; the tests of runs compare them with sessions."""
    assert names(replace(LAYER, **change)) == expected


def test_conditions_of_other_targets():
    assert names(LAYER, "openvino-cpu") == ["conv"]
    odd = replace(WEIGHT, zero=ZeroPoint.EQUAL)
    assert names(replace(LAYER, w=odd), "openvino-cpu") == ["zero-point"]
    few = replace(DATA, written="FakeQuantize", levels=64)
    assert names(replace(LAYER, x=few), "openvino-cpu") == ["levels"]
    assert names(replace(LAYER, x=SIGNED, y=SIGNED), "tensorrt") == ["convolution"]
    below = replace(WEIGHT, is_positive=False)
    assert names(replace(LAYER, x=SIGNED, w=below, y=SIGNED), "tensorrt") == ["scale"]
    assert names(LAYER, "vitis-ai") == ["scale", "scale", "scale"]
    assert names(LAYER, "iree") == ["no-kernel"]


def test_a_processor_selects_kernels():
    shifted = replace(DATA, zero=ZeroPoint.EQUAL)
    layer = replace(LAYER, x=shifted)
    assert names(layer, "tidl") == ["convolution"]
    assert names(layer, "tidl", processor="j721e") == ["zero-point"]
    assert names(LAYER, processor="arm64") == ["processor"]


def test_what_is_not_known_is_said():
    found = kernel_of(LAYER, profile_of("qnn-htp"))
    assert isinstance(found, KernelMatch)
    assert found.unknown == ()
    found = kernel_of(replace(LAYER, x=SIGNED, y=SIGNED), profile_of("stm32"))
    assert isinstance(found, KernelMatch)
    assert {UNMET[reason.id].name for reason in found.unknown} == {"form-of-quantizer"}
    found = kernel_of(replace(LAYER, op="ConvTranspose"), profile_of("stm32"))
    assert isinstance(found, NoKernel)
    assert not found.is_certain
    four_bits = replace(WEIGHT, codes="INT4")
    found = kernel_of(replace(LAYER, op="Gemm", w=four_bits), profile_of("openvino-cpu"))
    assert isinstance(found, NoKernel)
    assert not found.is_certain
    assert str(found.reasons[0]).startswith("INT4 weights with one scale")


def test_slower_forms_are_named():
    unsigned = replace(WEIGHT, codes="UINT8", zero=ZeroPoint.DIFFER)
    found = kernel_of(replace(LAYER, w=unsigned, group="depthwise"), profile_of("onnxruntime-cpu"))
    assert isinstance(found, KernelMatch)
    assert [form.ratio for form in found.slower] == [100, 9, 3.3]
    assert kernel_of(LAYER, profile_of("onnxruntime-cpu")).slower == ()


STABLE = {
    201: "no-kernel", 202: "not-recorded", 203: "types-of-codes", 204: "indirect-pair",
    205: "form-of-quantizer", 206: "levels", 207: "granularity", 208: "axis", 209: "blocks",
    210: "zero-point", 211: "zero-point-input", 212: "scale", 213: "constant-codes",
    214: "before-layer", 215: "bias-type", 216: "bias-scale", 217: "behind-layer",
    218: "no-quantizer", 219: "quantized-result", 220: "several-readers", 221: "graph-output",
    222: "attributes", 223: "processor", 224: "slower", 225: "packed", 226: "operands-not-codes",
    227: "not-as-predicted", 239: "products-saturate",
}  # fmt: skip
"""Ids that users script against: a new condition is added here, no other entry ever changes."""


def test_ids_of_conditions_are_stable():
    assert {cause.id: cause.name for cause in UNMET.values()} == {
        f"QG{number}": name for number, name in STABLE.items()
    }
