"""Raising an opset changes numbers in the file, never numbers in the outputs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import defs

from qgraph.errors import ModelError, UnsupportedError
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.opset.versions import (
    ADAPTERS,
    LATEST,
    OLDEST,
    declare_domains,
    minimum_ir_version,
    require,
)
from qgraph.graph.scopes import check_names

Arrays = Mapping[str, np.ndarray[Any, Any]]

HIGHEST_OF_RUNTIME = 26
UNFIT_FOR_RUNTIME = {"RoiAlign": HIGHEST_OF_RUNTIME}
"""Versions that the runtime used here does not have."""


def parse(source: int, body: str) -> ir.Model:
    text = f'<ir_version: 4, opset_import: ["": {source}, "my": 1]> g {body}'
    return ir.from_onnx_text(text)


def run(model: ir.Model, feeds: Arrays) -> list[Any]:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    model.ir_version = min(max(model.ir_version, minimum_ir_version(model)), 13)
    content = ir.to_proto(model).SerializeToString()
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def feeds_of(model: ir.Model, seed: int = 0) -> Arrays:
    """Normal numbers for every input, with zeros, ties and infinities among them."""
    source = np.random.default_rng(seed)
    feeds = {}
    for value in model.graph.inputs:
        assert value.dtype is not None
        assert value.shape is not None
        array = 2 * source.standard_normal(value.shape.numpy())
        special = [0.0, -0.0, 0.5, 1.0, -1.0, np.inf, -np.inf]
        array.ravel()[: len(special)] = special[: array.size]
        feeds[value.name or ""] = array.astype(value.dtype.numpy())
    return feeds


# name: (opset, graph); rewritten or left alone, the outputs must stay the same to the last bit
KEPT = {
    "Clip": (9, "(float[3,4] x) => (float[3,4] y) { y = Clip <min = -0.5, max = 1.0> (x) }"),
    "Clip, one bound": (9, "(float[3,4] x) => (float[3,4] y) { y = Clip <max = 1.0> (x) }"),
    "Clip, no bound": (9, "(float[3,4] x) => (float[3,4] y) { y = Clip (x) }"),
    "Clip, type not stated": (
        9,
        "(float[3,4] x) => (float[3,4] y) { t = Neg (x) y = Clip <min = 0.0, max = 6.0> (t) }",
    ),
    "Dropout": (9, "(float[3,4] x) => (float[3,4] y) { y = Dropout <ratio = 0.25> (x) }"),
    "BatchNormalization": (
        9,
        """(float[2,3,4] x) => (float[2,3,4] y)
        <float[3] s = {1, 2, 3}, float[3] b = {0.5, 0, -1}, float[3] m = {0, 1, 2},
         float[3] v = {1, 2, 0.5}> { y = BatchNormalization <momentum = 0.5> (x, s, b, m, v) }""",
    ),
    "Pad": (9, "(float[2,3] x) => (float[a,b] y) { y = Pad <pads = [0,1,2,1], value = 1.5> (x) }"),
    "Pad with zeros": (9, "(float[2,3] x) => (float[a,b] y) { y = Pad <pads = [0,1,2,1]> (x) }"),
    "Pad, reflecting": (
        9,
        """(float[3,3] x) => (float[a,b] y)
        { y = Pad <mode = "reflect", pads = [1,0,0,1]> (x) }""",
    ),
    "Slice": (
        9,
        """(float[4,5] x) => (float[a,b] y)
        { y = Slice <starts = [1,-3], ends = [99,-1], axes = [0,1]> (x) }""",
    ),
    "Slice, all axes": (
        9,
        "(float[4,5] x) => (float[a,b] y) { y = Slice <starts = [1,0], ends = [3,2]> (x) }",
    ),
    "Split": (
        9,
        """(float[4,5] x) => (float[a,b] y, float[c,d] z)
        { y, z = Split <axis = 1, split = [2,3]> (x) }""",
    ),
    "Split evenly": (
        9,
        "(float[4,6] x) => (float[a,b] y, float[c,d] z) { y, z = Split <axis = 1> (x) }",
    ),
    "Squeeze": (9, "(float[3,1,4] x) => (float[a,b] y) { y = Squeeze <axes = [1]> (x) }"),
    "Squeeze, all": (9, "(float[3,1,4] x) => (float[a,b] y) { y = Squeeze (x) }"),
    "Unsqueeze": (9, "(float[3,4] x) => (float[a,b,c,d] y) { y = Unsqueeze <axes = [0,2]> (x) }"),
    "TopK": (
        9,
        """(float[3,6] x) => (float[a,b] y, int64[a,b] i)
        { y, i = TopK <axis = 1, k = 3> (x) }""",
    ),
    "Upsample": (
        9,
        """(float[1,1,3,4] x) => (float[a,b,c,d] y) <float[4] s = {1, 1, 2, 3}>
        { y = Upsample <mode = "nearest"> (x, s) }""",
    ),
    "Upsample, linear": (
        9,
        """(float[1,1,3,4] x) => (float[a,b,c,d] y) <float[4] s = {1, 1, 2, 3}>
        { y = Upsample <mode = "linear"> (x, s) }""",
    ),
    "Upsample, scales fed": (
        9,
        """(float[1,1,3,4] x) => (float[a,b,c,d] y) <float[4] s = {1, 1, 2, 3}>
        { t = Identity (s) y = Upsample <mode = "nearest"> (x, t) }""",
    ),
    "Resize": (
        10,
        """(float[1,1,3,4] x) => (float[a,b,c,d] y) <float[4] s = {1, 1, 2.5, 2}>
        { y = Resize <mode = "nearest"> (x, s) }""",
    ),
    "Resize, linear, smaller": (
        10,
        """(float[1,1,4,4] x) => (float[a,b,c,d] y) <float[4] s = {1, 1, 0.5, 0.75}>
        { y = Resize <mode = "linear"> (x, s) }""",
    ),
    "Resize to sizes": (
        11,
        """(float[1,1,3,4] x) => (float[a,b,c,d] y)
        <float[0] r = {}, float[0] s = {}, int64[4] z = {1, 1, 5, 7}>
        { y = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel">
              (x, r, s, z) }""",
    ),
    "Softmax, last": (9, "(float[3,4] x) => (float[3,4] y) { y = Softmax (x) }"),
    "Softmax, last but one": (9, "(float[3,4,2] x) => (float[3,4,2] y) { y = Softmax (x) }"),
    "Softmax, rank not stated": (
        9,
        "(float[3,4,2] x) => (float[3,4,2] y) { t = Neg (x) y = Softmax <axis = 2> (t) }",
    ),
    "Softmax, from the end": (
        11,
        "(float[3,4,2] x) => (float[3,4,2] y) { y = Softmax <axis = -1> (x) }",
    ),
    "LogSoftmax, first": (
        9,
        "(float[3,4] x) => (float[3,4] y) { y = LogSoftmax <axis = 0> (x) }",
    ),
    "Hardmax": (9, "(float[3,4,2] x) => (float[3,4,2] y) { y = Hardmax (x) }"),
    "Scatter": (
        9,
        """(float[3,3] x) => (float[3,3] y) <int64[2,3] i = {1, 0, 2, 0, 2, 1},
        float[2,3] u = {1, 2, 3, 4, 5, 6}> { y = Scatter <axis = 0> (x, i, u) }""",
    ),
    "OneHot": (
        9,
        """(float[1] x) => (float[a,b] y) <int64[3] i = {0, 2, 5}, int64[1] d = {3},
        float[2] v = {0, 1}> { o = OneHot (i, d, v) y = Add (o, x) }""",
    ),
    "MaxPool": (
        9,
        """(float[1,1,7,7] x) => (float[a,b,c,d] y)
        { y = MaxPool <kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]> (x) }""",
    ),
    "MaxPool, rounding up": (
        10,
        """(float[1,1,6,6] x) => (float[a,b,c,d] y)
        { y = MaxPool <ceil_mode = 1, kernel_shape = [3,3], strides = [2,2]> (x) }""",
    ),
    "AveragePool, rounding up": (
        10,
        """(float[1,1,6,6] x) => (float[a,b,c,d] y)
        { y = AveragePool <ceil_mode = 1, kernel_shape = [3,3], strides = [2,2]> (x) }""",
    ),
    "ConvTranspose": (
        9,
        """(float[1,1,3,3] x) => (float[a,b,c,d] y) <float[1,1,2,2] w = {1, 2, 3, 4}>
        { y = ConvTranspose <strides = [2,2]> (x, w) }""",
    ),
    "DFT": (
        17,
        "(float[2,5,6,1] x) => (float[a,b,c,d] y) { y = DFT <onesided = 1, axis = 2> (x) }",
    ),
    "DFT, first axis": (17, "(float[2,5,6,1] x) => (float[a,b,c,d] y) { y = DFT (x) }"),
    "GridSample": (
        16,
        """(float[1,1,3,3] x, float[1,2,2,2] at) => (float[a,b,c,d] y)
        { y = GridSample <mode = "bicubic"> (x, at) }""",
    ),
    "GridSample, default": (
        16,
        "(float[1,1,3,3] x, float[1,2,2,2] at) => (float[a,b,c,d] y) { y = GridSample (x, at) }",
    ),
    "RoiAlign": (
        10,
        """(float[1,1,6,6] x) => (float[a,b,c,d] y)
        <float[1,4] r = {0.5, 0.5, 4, 4}, int64[1] n = {0}>
        { y = RoiAlign <output_height = 2, output_width = 2> (x, r, n) }""",
    ),
    **{
        f"Reduce{name}": (
            9,
            f"""(float[2,3,4] x) => (float[a,b] y)
            {{ t = Abs (x) y = Reduce{name} <axes = [1], keepdims = 0> (t) }}""",
        )
        for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum")
    },
    "ReduceSumSquare, all": (9, "(float[3,4] x) => (float[a,b] y) { y = ReduceSumSquare (x) }"),
    "inside a branch": (
        11,
        """(float[3,1] x) => (float[a] y) <bool c = {1}> {
        t = Identity (c)
        y = If (t) <
            then_branch = p () => (float[a] u) { u = Squeeze <axes = [1]> (x) },
            else_branch = q () => (float[a] v) { v = ReduceSum <axes = [1], keepdims = 0> (x) }>
        }""",
    ),
}


@pytest.mark.cases(fast=40, slow=116)
@pytest.mark.runtime
@pytest.mark.parametrize(
    ("case", "target"),
    [
        (case, target)
        for case, (source, _) in KEPT.items()
        for target in (11, 13, 18, HIGHEST_OF_RUNTIME)
        if target > source and target != UNFIT_FOR_RUNTIME.get(case)
    ],
)
def test_outputs_stay_the_same_to_the_last_bit(case: str, target: int) -> None:
    source, body = KEPT[case]
    model = parse(source, body)
    feeds = feeds_of(model)
    expected = run(parse(source, body), feeds)
    assert require(model, target)
    check_names(model)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for found, wanted in zip(run(model, feeds), expected, strict=True):
        assert found.shape == wanted.shape
        if case.startswith("AveragePool"):
            # The runtime has another kernel for the newer version, with another order of sums.
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
        else:
            assert found.tobytes() == wanted.tobytes()


REFUSED = {
    "mask": (
        9,
        "(float[4] x) => (float[4] y, float[4] m) { y, m = Dropout (x) }",
        13,
        "its mask is used",
    ),
    "training": (
        9,
        """(float[2,3] x, float[3] s) => (float[2,3] y, float[3] m)
        { y, m, v, sm, sv = BatchNormalization (x, s, s, s, s) }""",
        14,
        "outputs of training",
    ),
    "nearest": (
        10,
        """(float[1,1,4,4] x, float[4] s) => (float[a,b,c,d] y)
        { y = Resize <mode = "nearest"> (x, s) }""",
        11,
        "a scale that may be below 1",
    ),
    "transformation": (
        11,
        """(float[1,1,4,4] x, float[0] r, float[4] s) => (float[a,b,c,d] y)
        { y = Resize <coordinate_transformation_mode = "tf_half_pixel_for_nn"> (x, r, s) }""",
        13,
        "'tf_half_pixel_for_nn' was removed",
    ),
    "negative": (
        9,
        """(int64[3] x) => (float[a,b] y) <int64[1] d = {3}, float[2] v = {0, 1}>
        { y = OneHot (x, d, v) }""",
        11,
        "indices may be negative",
    ),
    "padding": (
        9,
        """(float[1,1,3,3] x, float[1,1,2,2] w) => (float[a,b,c,d] y)
        { y = ConvTranspose <strides = [2,2], output_shape = [5,5]> (x, w) }""",
        11,
        "odd padding",
    ),
    "window": (
        10,
        """(float[1,1,6,6] x) => (float[a,b,c,d] y)
        { y = MaxPool <ceil_mode = 1, kernel_shape = [1,1], strides = [2,2]> (x) }""",
        22,
        "windows may begin in the padding",
    ),
    "divisor": (
        11,
        """(float[1,1,5,5] x) => (float[a,b,c,d] y)
        { y = AveragePool <ceil_mode = 1, count_include_pad = 1, kernel_shape = [2,2],
                           strides = [2,2]> (x) }""",
        19,
        "the divisor of its sum was undefined",
    ),
    "divisor, size not known": (
        11,
        """(float[1,1,H,W] x) => (float[a,b,c,d] y)
        { y = AveragePool <ceil_mode = 1, count_include_pad = 1, kernel_shape = [2,2],
                           strides = [2,2]> (x) }""",
        19,
        "the divisor of its sum was undefined",
    ),
    "no kernel": (
        11,
        """(float[1,1,5,5] x) => (float[a,b,c,d] y)
        { y = MaxPool <ceil_mode = 1, strides = [2,2]> (x) }""",
        22,
        "kernel_shape, strides, dilations and pads do not fit",
    ),
    "no stride": (
        11,
        """(float[1,1,5,5] x) => (float[a,b,c,d] y)
        { y = MaxPool <ceil_mode = 1, kernel_shape = [2,2], strides = [0,1]> (x) }""",
        22,
        "kernel_shape, strides, dilations and pads do not fit",
    ),
    "mask that says nothing": (
        10,
        "(float[4] x) => (float[4] y, bool[4] m) { y, m = Dropout (x) }",
        12,
        "its mask is used",
    ),
    "statistics": (
        14,
        """(float16[2,3] x, float16[3] s) => (float16[2,3] y, float16[3] m)
        { y, m, v = BatchNormalization <training_mode = 1> (x, s, s, s, s) }""",
        15,
        "computed in float32 since",
    ),
    "infinity": (
        19,
        "(float[4] x) => (float8e4m3fnuz[4] y) { y = Cast <to = 18> (x) }",
        24,
        "infinity became NaN",
    ),
    "infinity, quantized": (
        19,
        """(float[4] x) => (float8e4m3fnuz[4] y) <float s = {1}, float8e4m3fnuz z = {0}>
        { y = QuantizeLinear (x, s, z) }""",
        24,
        "infinity became NaN",
    ),
    "infinity of a type that is not known": (
        19,
        "(float[4] x, float[4] t) => (float[4] y) { u = my.Op (t) y = CastLike (x, u) }",
        24,
        "infinity became NaN",
    ),
    "whole numbers": (
        13,
        """(int32[4] x) => (uint8[4] y) <float s = {2}, uint8 z = {0}>
        { y = QuantizeLinear (x, s, z) }""",
        19,
        "its data is INT32",
    ),
    "groups": (
        18,
        """(float[1,4,3] x, float[2] s) => (float[1,4,3] y)
        { y = GroupNormalization <num_groups = 2> (x, s, s) }""",
        21,
        "belong to groups",
    ),
    "type": (
        9,
        """(float[4] x, float16[4] z) => (float[4] y, float16[4] h)
        { t = my.Op (x) y = Clip <min = 0.0> (t) h = Neg (z) }""",
        11,
        "type of its input 't' is not known",
    ),
    "cast": (
        9,
        """(float[4] x) => (float[4] y)
        { d = Cast <to = 11> (x) t = my.Op (d) c = Clip <min = 0.0> (t) y = Cast <to = 1> (c) }""",
        11,
        "type of its input 't' is not known",
    ),
    "no input": (9, "(float[4] x) => (float[4] y) { y = Clip <min = 0.0> () }", 11, "no input"),
    "no starts": (9, "(float[4] x) => (float[4] y) { y = Slice (x) }", 10, "no attribute 'starts'"),
    "no k": (9, "(float[4] x) => (float[4] y, int64[4] i) { y, i = TopK (x) }", 10, "'k'"),
    "integers": (
        9,
        "(int32[4] x) => (int32[4] y) { y = Erf (x) }",
        13,
        "its input is INT32",
    ),
    "old": (8, "(float[4] x) => (float[4] y) { y = Neg (x) }", 13, "below 9 cannot be raised"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_said_is_refused_and_nothing_is_changed(case: str) -> None:
    source, body, target, reason = REFUSED[case]
    # An operator that could be raised stands before the one that cannot.
    model = parse(source, body)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    with pytest.raises(UnsupportedError, match=reason) as refusal:
        require(model, target)
    assert "producing 'y" in str(refusal.value) or "producing 'c" in str(refusal.value)
    assert f"with opset {target}" in str(refusal.value)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("source", "body", "target"),
    [
        (13, "(int32[4] x, float s) => (uint8[4] y) { y = QuantizeLinear (x, s) }", 23),
        (19, "(float[4] x) => (float8e4m3fnuz[4] y) { y = Cast <to = 18, saturate = 0> (x) }", 24),
        (19, "(float[4] x) => (float8e5m2[4] y) { y = Cast <to = 19> (x) }", 24),
        (
            14,
            """(float[2,3] x, float[3] s) => (float[2,3] y)
            { y, m, v = BatchNormalization <training_mode = 1> (x, s, s, s, s) }""",
            15,
        ),
        (
            11,
            """(float[1,1,6,H] x) => (float[a,b,c,d] y)
            { y = AveragePool <ceil_mode = 1, count_include_pad = 1, kernel_shape = [2,2],
                               strides = [2,1]> (x) }""",
            22,
        ),
        (
            12,
            """(float[1,1,H,W] x) => (float[a,b,c,d] y)
            { y = MaxPool <ceil_mode = 1, kernel_shape = [1,1], strides = [3,3],
                           auto_pad = "SAME_LOWER"> (x) }""",
            22,
        ),
    ],
)
def test_changes_of_other_attributes_and_types_do_not_matter(
    source: int, body: str, target: int
) -> None:
    model = parse(source, body)
    before = str(model.graph[0])
    assert require(model, target)
    assert str(model.graph[0]) == before


def test_a_shape_that_a_file_states_wrongly_is_not_taken_for_true() -> None:
    """Neither to find the axis of a Softmax nor to count windows."""
    body = "(float[3,4,2] x) => (float[3,4,2] y) { t = Neg (x) y = Softmax <axis = 1> (t) }"
    model = parse(11, body)
    model.graph[0].outputs[0].shape = ir.Shape([3, 8])
    assert require(model, 13)
    assert [node.op_type for node in model.graph] == [
        "Neg",
        "Shape",
        "Flatten",
        "Softmax",
        "Reshape",
    ]
    body = """(float[1,1,5,5] x) => (float[a,b,c,d] y) { t = Neg (x)
        y = AveragePool <ceil_mode = 1, count_include_pad = 1, kernel_shape = [2,2],
                         strides = [2,2]> (t) }"""
    model = parse(11, body)
    model.graph[0].outputs[0].shape = ir.Shape([1, 1, 6, 6])
    with pytest.raises(UnsupportedError, match="the divisor of its sum"):
        require(model, 19)


def test_nothing_is_changed_when_a_later_node_is_refused() -> None:
    model = parse(
        9,
        """(float[4,1] x) => (float[4] y, float[4] m)
        { t = Squeeze <axes = [1]> (x) y, m = Dropout (t) }""",
    )
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    with pytest.raises(UnsupportedError, match="Dropout"):
        require(model, 13)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_a_version_that_is_unknown_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=f"up to opset {LATEST}"):
        require(parse(13, "(float x) => (float y) { y = Neg (x) }"), LATEST + 1)


def test_an_opset_is_never_lowered() -> None:
    model = parse(17, "(float x) => (float y) { y = Neg (x) }")
    assert not require(model, 13)
    assert not require(model, 17)
    assert model.opset_imports[""] == 17


RICH = """
<ir_version: 8, opset_import: ["": 12, "custom": 1, "local": 1], metadata_props: ["k": "v"]>
g (float[2,1] x) => (float[a] y) <float[1] w = {2}> {
    [theirs] q = custom.Quant <bits = 4> (x, w)
    [mine] s = Squeeze <axes = [1]> (q)
    f = local.f (s)
    y = FakeQuantize (f, w)
}
<domain: "local", opset_import: ["": 12]> f (a) => (b) {
    t = Unsqueeze <axes = [1]> (a)
    b = ReduceSum <axes = [1], keepdims = 0> (t)
}"""


def test_functions_and_names_and_foreign_nodes_and_annotations_stay() -> None:
    model = ir.from_onnx_text(RICH)
    nodes = list(model.graph)
    nodes[1].metadata_props["layer"] = "1"
    nodes[1].doc_string = "why"
    nodes[0].outputs[0].meta["quant_parameter_tensor_names"] = {"SCALE_TENSOR": "w"}
    assert require(model, 21)
    assert list(model.graph) == nodes, "nodes are rewritten where they stand"
    proto = ir.to_proto(model)
    assert [n.name for n in proto.graph.node[:2]] == ["theirs", "mine"]
    assert [n.op_type for n in proto.graph.node] == ["Quant", "Squeeze", "f", "FakeQuantize"]
    assert proto.graph.node[0] == ir.to_proto(ir.from_onnx_text(RICH)).graph.node[0]
    assert proto.graph.node[1].metadata_props[0].key == "layer"
    assert proto.graph.node[1].doc_string == "why"
    assert proto.graph.quantization_annotation[0].tensor_name == "q"
    assert list(proto.graph.node[1].input) == ["q", "s_axes"]
    assert [v.name for v in proto.graph.initializer] == ["w", "s_axes"]
    (function,) = proto.functions
    assert [n.op_type for n in function.node] == ["Constant", "Unsqueeze", "Constant", "ReduceSum"]
    assert function.opset_import[0].version == 21
    assert proto.metadata_props[0].value == "v"
    assert model.ir_version == 10


def test_a_function_that_is_higher_already_is_left_alone() -> None:
    model = ir.from_onnx_text(RICH)
    (function,) = model.functions.values()
    function.opset_imports[""] = 13
    function[0].attributes.clear()
    assert require(model, 13)
    assert function.opset_imports[""] == 13
    assert [node.op_type for node in function] == ["Unsqueeze", "ReduceSum"]


def test_an_attribute_that_is_a_parameter_of_a_function_is_refused() -> None:
    model = ir.from_onnx_text(RICH)
    (function,) = model.functions.values()
    function[0].attributes["axes"] = ir.RefAttr("axes", "dims", ir.AttributeType.INTS)
    with pytest.raises(UnsupportedError, match=r"Unsqueeze .*'axes' is a parameter"):
        require(model, 13)


def test_a_function_named_like_a_standard_operator_is_left_alone() -> None:
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["": 12]>
        g (float[2] x) => (float[2] y) { y = Squeeze <axes = [0]> (x) }
        <domain: "", opset_import: ["": 12]> Squeeze <axes> (a) => (b) { b = Neg (a) }""")
    assert require(model, 13)
    assert list(model.graph[0].attributes) == ["axes"]


def test_new_names_avoid_those_in_use() -> None:
    model = parse(
        9,
        """(float[2,1] x) => (float[2] y) <float s_axes = {1}>
        { s = Squeeze <axes = [1]> (x) y = Mul (s, s_axes) }""",
    )
    require(model, 13)
    check_names(model)
    assert model.graph[0].inputs[1].name == "s_axes_1"  # type: ignore[union-attr]


def test_every_change_of_an_operator_is_known() -> None:
    """Each new version of an operator is rewritten, or only offers more.

    It only offers more if every node of the old version is one of the new version, with the same
    defaults. Where the text of the standard says otherwise, the table has an entry by hand.
    """
    history: dict[str, list[defs.OpSchema]] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "":
            history.setdefault(schema.name, []).append(schema)
    unknown = []
    for name, schemas in history.items():
        schemas.sort(key=lambda schema: schema.since_version)
        for old, new in itertools.pairwise(schemas):
            step = new.since_version
            if OLDEST < step <= LATEST and (name, step) not in ADAPTERS and not offers(old, new):
                unknown.append((name, step))
    assert unknown == []


def offers(old: defs.OpSchema, new: defs.OpSchema) -> bool:
    """Whether every node of the old version is a node of the new one, going by its form."""
    if new.deprecated or len(new.inputs) < len(old.inputs) or new.min_input > old.min_input:
        return False
    if len(new.outputs) != len(old.outputs):
        return False
    if any(a.required and name not in old.attributes for name, a in new.attributes.items()):
        return False
    for name, attribute in old.attributes.items():
        successor = new.attributes.get(name)
        if successor is None or successor.type != attribute.type:
            return False
        if successor.default_value != attribute.default_value:
            return False
    types = {c.type_param_str: set(c.allowed_type_strs) for c in new.type_constraints}
    for old_input, new_input in zip(old.inputs, new.inputs, strict=False):
        allowed = types.get(new_input.type_str, {new_input.type_str})
        before = {c.type_param_str: set(c.allowed_type_strs) for c in old.type_constraints}
        if not before.get(old_input.type_str, {old_input.type_str}) <= allowed:
            return False
    return True


class TestDeclareDomains:
    def test_adds_what_nodes_use(self) -> None:
        model = ir.from_onnx_text("""
            <ir_version: 10, opset_import: ["": 9]>
            g (float[2] x, bool c) => (float[2] y) {
                t = onnx.brevitas.Quant (x)
                y = If (c) <then_branch = p () => (float[2] u) { u = com.microsoft.Gelu (t) },
                            else_branch = q () => (float[2] v) { v = Neg (t) }>
            }""")
        assert declare_domains(model) == ["onnx.brevitas 1", "com.microsoft 1"]
        assert model.opset_imports == {"": 9, "onnx.brevitas": 1, "com.microsoft": 1}
        assert declare_domains(model) == []

    @pytest.mark.parametrize(("inputs", "version"), [("x, x, x, x, x", 1), ("x, x, x, x, x, x", 2)])
    def test_the_inputs_of_trunc_tell_its_version(self, inputs: str, version: int) -> None:
        text = f"(float x) => (float y) {{ y = qonnx.custom_op.general.Trunc ({inputs}) }}"
        assert declare_domains(parse(13, text)) == [f"qonnx.custom_op.general {version}"]

    def test_functions_import_what_the_model_imports(self) -> None:
        model = ir.from_onnx_text("""
            <ir_version: 10, opset_import: ["": 21, "local": 1, "custom": 3]>
            g (float[2] x) => (float[2] y) { y = local.f (x) }
            <domain: "local", opset_import: ["": 21]> f (a) => (b) {
                t = custom.Op (a)
                b = other.Op (t)
            }""")
        assert declare_domains(model) == ["custom 3", "other 1"]
        (function,) = model.functions.values()
        assert function.opset_imports == {"": 21, "custom": 3, "other": 1}

    @pytest.mark.parametrize(
        ("node", "version"),
        [
            ("Neg (x)", 9),
            ("Upsample (x, x)", 9),
            ("Clip (x, x)", 11),
            ("Squeeze (x, x)", 13),
            ("Clip <min = 0.0> (x)", 9),
            ("Gelu (x)", 20),
        ],
    )
    def test_the_standard_domain_gets_the_lowest_version_that_fits(
        self, node: str, version: int
    ) -> None:
        model = parse(9, f"(float x) => (float y) {{ y = {node} }}")
        del model.opset_imports[""]
        assert declare_domains(model) == [f"ai.onnx {version}"]

    def test_nodes_that_fit_nowhere_are_refused(self) -> None:
        model = parse(9, "(float x) => (float y) { t = Clip <min = 0.0> (x) y = Squeeze (t, t) }")
        del model.opset_imports[""]
        with pytest.raises(ModelError, match="no opset from 9"):
            declare_domains(model)


@pytest.mark.parametrize(
    ("opset", "dtype", "version"),
    [
        (9, "float", 4),
        (13, "float", 7),
        (13, "uint4", 10),
        (17, "float8e4m3fn", 9),
        (17, "float4e2m1", 11),
        (17, "float8e8m0", 12),
        (17, "uint2", 13),
        (17, "float6e3m2", 14),
        (28, "float", 14),
    ],
)
def test_minimum_ir_version_of_opset_and_types(opset: int, dtype: str, version: int) -> None:
    model = parse(opset, "(float[2] x) => (float[2] y) { y = Neg (x) }")
    model.graph[0].outputs[0].type = ir.TensorType(ir.DataType[dtype.upper()])
    assert minimum_ir_version(model) == version


def test_minimum_ir_version_of_initializers_and_functions() -> None:
    model = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 7}), ir_version=3)
    assert minimum_ir_version(model) == 3
    value = ir.Value(name="w", const_value=ir.tensor(np.float32(1)))
    model.graph.register_initializer(value)
    assert minimum_ir_version(model) == 4
    assert minimum_ir_version(ir.from_onnx_text(RICH)) == 8


def test_quantize_linear_takes_each_type_since_the_version_given() -> None:
    """Against the schemas: the zero point of QuantizeLinear, the input of DequantizeLinear."""
    for name, since in QDQ_SINCE.items():
        operator, place = ("DequantizeLinear", 0) if name == "INT32" else ("QuantizeLinear", 2)
        spelled = f"tensor({name.lower()})"
        for version in range(10, LATEST + 1):
            schema = defs.get_schema(operator, version, "")
            constraints = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
            taken = spelled in constraints[schema.inputs[place].type_str]
            assert taken == (version >= since), (name, version)


@pytest.mark.runtime
@pytest.mark.parametrize("name", ["TFC_1W2A", "kwsmlp_w3a3", "qkeras_jettagging"])
def test_real_models_of_old_opsets_compute_the_same(name: str, models: Path) -> None:
    """With quantizers replaced by Identity: those are not the business of the opset."""

    def plain() -> ir.Model:
        model = ir.load(models / f"{name}.onnx")
        for node in model.graph:
            if node.domain:
                node.domain, node.op_type = "", "Identity"
                node.attributes.clear()
                node.resize_inputs(1)
        return model

    model = plain()
    (value,) = [v for v in model.graph.inputs if not v.is_initializer()]
    assert value.shape is not None
    shape = [size if isinstance(size, int) else 1 for size in value.shape]
    feeds = {value.name or "": np.random.default_rng(1).standard_normal(shape, np.float32)}
    expected = run(plain(), feeds)
    for version in (13, 17, 21, HIGHEST_OF_RUNTIME):
        assert require(model, version)
        for found, wanted in zip(run(model, feeds), expected, strict=True):
            assert found.tobytes() == wanted.tobytes()
