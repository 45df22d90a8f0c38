"""Weights in blocks that share an exponent are folded to codes and powers of two."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from qgraph import prove
from qgraph.model import Model, load
from qgraph.reports import SiteStatus
from qgraph.transforms import FoldWeights

WEIGHT = [[0.3, -1.25, 2.5, 7.0], [0, 0, 0, 0], [1e-3, 0.5, -6.5, 3e-9]]


def model(name: str, attributes: dict[str, Any], weight: Any = WEIGHT) -> Model:
    w = ir.Value(name="w", const_value=ir.tensor(np.asarray(weight, np.float32), name="w"))
    x, y = ir.Value(name="x"), ir.Value(name="y")
    x.type = y.type = ir.TensorType(ir.DataType.FLOAT)
    x.shape = y.shape = ir.Shape([3, 4])
    q = ir.node(name, [w], attributes, domain="com.amd.quark", name="q")
    add = ir.node("Add", [x, q.outputs[0]], outputs=[y])
    imports = {"": 23, "com.amd.quark": 1}
    graph = ir.Graph([x], [y], nodes=[q, add], initializers=[w], opset_imports=imports, name="g")
    return load(ir.Model(graph, ir_version=11))


@pytest.mark.parametrize(
    ("name", "attributes", "codes", "scale"),
    [
        # exponents 0 and 2, -127, -1 and 2 in blocks of two; a step is 2**(e - 6)
        (
            "MXQuantizeDequantize",
            {"axis": 1, "block_size": 2, "element_dtype": "int8"},
            [[19, -80, 40, 112], [0, 0, 0, 0], [0, 64, -104, 0]],
            [[2.0**-6, 2.0**-4], [2.0**-133, 2.0**-133], [2.0**-7, 2.0**-4]],
        ),
        # element_dtype fp4_e2m1: the scale is 2**(e - 2), elements 0, 0.5, 1, 1.5, 2, 3, 4, 6
        (
            "MXQuantizeDequantize",
            {"axis": -1, "block_size": 4, "element_dtype": "fp4_e2m1"},
            [[0.5, -1, 2, 6], [0, 0, 0, 0], [0, 0.5, -6, 0]],
            [[1], [2.0**-129], [1]],
        ),
        # 13 bits: 4 of the mantissa, steps of 2**(e - 3)
        (
            "BFPQuantizeDequantize",
            {"axis": 1, "block_size": 4, "bit_width": 13},
            [[1, -3, 5, 14], [0, 0, 0, 0], [0, 1, -13, 0]],
            [[2.0**-1], [2.0**-130], [2.0**-1]],
        ),
    ],
)
def test_codes_and_scales_are_those_computed_by_hand(
    name: str, attributes: dict[str, Any], codes: Any, scale: Any
) -> None:
    folded, x = model(name, attributes), {"x": np.zeros((3, 4), np.float32)}
    before = folded.run(x, backend="numpy")["y"]
    (site,) = folded.apply(FoldWeights())
    assert site.outcome is SiteStatus.CHANGED
    decode, _ = folded.nodes()
    found = [value.const_value.numpy().astype(np.float32) for value in decode.inputs]
    assert found[0].tolist() == np.asarray(codes, np.float32).tolist()
    assert found[1].tolist() == np.asarray(scale, np.float32).tolist()
    assert folded.run(x, backend="numpy")["y"].tolist() == before.tolist()
    assert str(prove(model(name, attributes), folded).verdict) == "proved"


@pytest.mark.runtime
def test_a_weight_of_one_block_loads_in_the_runtime() -> None:
    """ONNX Runtime refuses blocks if there is one scale."""
    import onnxruntime as ort

    attributes = {"axis": 1, "block_size": 32, "element_dtype": "int8"}
    folded = model("MXQuantizeDequantize", attributes, [[1, -2, 0.25, 3]])
    assert folded.apply(FoldWeights()).count("changed") == 1
    session = ort.InferenceSession(folded.to_proto().SerializeToString())
    (y,) = session.run(None, {"x": np.zeros((3, 4), np.float32)})
    assert y.tolist() == [[1, -2, 0.25, 3]] * 3


def test_a_weight_with_infinities_stays() -> None:
    (site,) = model("MXQuantizeDequantize", {}, [[np.inf, 1]]).apply(FoldWeights())
    assert site.outcome is SiteStatus.REFUSED
    assert "infinities" in str(site.reason)


@pytest.mark.parametrize(
    ("names", "domain", "kind"),
    [
        (("TRT_FP8QuantizeLinear", "TRT_FP8DequantizeLinear"), "trt", "FLOAT8E4M3FN"),
        (("ExtendedQuantizeLinear", "ExtendedDequantizeLinear"), "com.amd.quark", "INT8"),
    ],
)
def test_linear_quantizers_of_vendors_are_folded(
    names: tuple[str, str], domain: str, kind: str
) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 21, "{domain}": 1]>
    g (float[2, 3] x) => (float[2, 3] y)
    <float[3] w = {{0.26, -1.5, 9}}, float s = {{0.25}}, int8 z = {{1}}> {{
        q = {domain}.{names[0]} (w, ZERO)
        d = {domain}.{names[1]} (q, ZERO)
        y = Add (x, d)
    }}""".replace("ZERO", "s, z" if kind == "INT8" else "s")
    folded, x = load(ir.from_onnx_text(text)), {"x": np.zeros((2, 3), np.float32)}
    folded.apply(FoldWeights())
    assert [node.op_type for node in folded.nodes()] == ["DequantizeLinear", "Add"]
    (codes, *_), _ = (node.inputs for node in folded.nodes())
    assert codes.dtype.name == kind
    assert folded.run(x, backend="numpy")["y"].tolist() == [[0.25, -1.5, 9]] * 2
