"""Old versions of operators against the new ones that stand for them, run by others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qgraph.errors import UnsupportedError
from qgraph.graph.opset.history import SAME, first_version, is_known, versions_between
from qgraph.graph.opset.rewrites import ADAPTERS, CONCERNS
from qgraph.graph.opset.versions import LATEST, OLDEST, changes, minimum_ir_version, require

HISTORY: dict[str, list[int]] = {}
for _schema in defs.get_all_schemas_with_history():
    if _schema.domain == "":
        HISTORY.setdefault(_schema.name, []).append(_schema.since_version)

HIGHEST_OF_RUNTIME = 26
ABSENT: Any = object()
EMPTY: list[int] = []
Array = np.ndarray[Any, Any]


def test_every_version_stands_in_one_of_the_two_tables() -> None:
    """Counted from the list of all schemas, not from those found version by version."""
    steps = {
        (name, step)
        for name, versions in HISTORY.items()
        for step in versions
        if max(OLDEST, min(versions)) < step <= LATEST
    }
    same = {(name, step) for name, versions in SAME.items() for step in versions}
    assert same & set(ADAPTERS) == set()
    assert same | set(ADAPTERS) == steps
    assert set(CONCERNS) <= set(ADAPTERS)


@pytest.mark.parametrize("name", ["Upsample", "AveragePool", "Gelu", "Cast"])
def test_versions_and_first_ones_are_those_of_all_schemas(name: str) -> None:
    versions = sorted(HISTORY[name])
    assert first_version(name) == versions[0]
    assert versions_between(name, 0, LATEST) == tuple(versions)
    assert versions_between(name, versions[0], LATEST) == tuple(versions[1:])


def test_a_version_that_no_table_has_is_a_change_and_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qgraph.graph.opset.versions.SAME", {**SAME, "Relu": (13,)})
    assert changes("Relu", 13, 14) == [14]
    text = '<ir_version: 7, opset_import: ["": 13]> g (float[2] x) => (float[2] y) { y = Relu (x) }'
    with pytest.raises(UnsupportedError, match="the change by its version 14 is unknown"):
        require(ir.from_onnx_text(text), 14)


def test_operators_mean_nothing_before_their_first_version() -> None:
    assert is_known("Gelu", 20)
    assert not is_known("Gelu", 19)
    assert is_known("FakeQuantize", 9)  # a foreign one, whatever the opset
    assert is_known("LayerNormalization", 11)  # which files contain
    text = '<ir_version: 7, opset_import: ["": 13]> g (float[2] x) => (float[2] y) { y = Gelu (x) }'
    with pytest.raises(UnsupportedError, match=r"Gelu .*came with opset 20"):
        require(ir.from_onnx_text(text), 21)


def floats(*shape: int, seed: int = 0, positive: bool = False) -> Array:
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return np.abs(x) + np.float32(0.1) if positive else x


def ints(*values: Any) -> Array:
    return np.asarray(values, np.int64)


def test_an_operator_that_files_contain_early_is_raised() -> None:
    model = ir.from_onnx_text("""<ir_version: 7, opset_import: ["": 11]>
        g (float[2,3] x, float[3] s) => (float[2,3] y) { y = LayerNormalization (x, s) }""")
    assert require(model, 21)
    assert changes("LayerNormalization", 11, 21) == []
    assert changes("Gelu", 9, LATEST) == []


@dataclass(frozen=True)
class Recipe:
    """Nodes of one operator: inputs, and the values that its attributes take in turn.

    ``ABSENT`` leaves an attribute out. Inputs from ``fed`` on are constants. ``until`` is the last
    opset under which a node may be written so.
    """

    inputs: Sequence[Array | None]
    choices: dict[str, Sequence[Any]] = field(default_factory=dict)
    outputs: int = 1
    fed: int = 99
    since: int = OLDEST
    until: int = LATEST

    def models(self, name: str, opset: int) -> Iterator[tuple[onnx.ModelProto, dict[str, Array]]]:
        for values in itertools.product(*self.choices.values()):
            attributes = dict(zip(self.choices, values, strict=True))
            given = {
                key: value
                for key, value in attributes.items()
                if value is not ABSENT and value != EMPTY
            }
            names = ["" if x is None else f"x{place}" for place, x in enumerate(self.inputs)]
            feeds = {
                f"x{place}": x
                for place, x in enumerate(self.inputs)
                if x is not None and place < self.fed
            }
            constants = [
                numpy_helper.from_array(x, f"x{place}")
                for place, x in enumerate(self.inputs)
                if x is not None and place >= self.fed
            ]
            results = [f"y{place}" for place in range(self.outputs)]
            node = helper.make_node(name, names, results, **given)
            node.attribute.extend(
                helper.make_attribute(key, EMPTY, attr_type=onnx.AttributeProto.INTS)
                for key, value in attributes.items()
                if value == EMPTY
            )
            infos = [
                helper.make_tensor_value_info(
                    key, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape
                )
                for key, x in feeds.items()
            ]
            untyped = [onnx.ValueInfoProto(name=result) for result in results]
            graph = helper.make_graph([node], "g", infos, untyped, constants)
            imports = [helper.make_opsetid("", opset)]
            model = helper.make_model(graph, opset_imports=imports, ir_version=8)
            yield onnx.shape_inference.infer_shapes(model), feeds


IMAGE, PAIR = floats(1, 2, 6, 7), (floats(2, 3, 4), floats(3, 1, seed=1))
NONE = ABSENT
AXES = (NONE, EMPTY, [1], [0, -1])
UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor HardSigmoid "
    "HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg NonZero Reciprocal Relu Round Selu "
    "Shape Sigmoid Sign Sin Sinh Size Softplus Softsign Sqrt Tan Tanh ThresholdedRelu Clip Dropout"
)
SPECIAL = np.float32([0, -0.0, 0.5, -0.5, 1, -1, 2.5, 1e30, -1e30, np.inf, -np.inf, np.nan])
LOGITS = {"axis": (NONE, 0, 1, 2, -1)}
WINDOWS = {
    "kernel_shape": ([2, 3],),
    "strides": (NONE, [3, 2]),
    "pads": (NONE, [1, 0, 1, 1]),
}
RECURRENT = (floats(4, 2, 3), floats(1, 20, 3, seed=1), floats(1, 20, 5, seed=2))

RECIPES: dict[str, list[Recipe]] = {
    **{name: [Recipe([SPECIAL]), Recipe([floats(2, 3, 4)])] for name in UNARY.split()},
    **{
        name: [Recipe(PAIR)]
        for name in [
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Pow",
            "Max",
            "Min",
            "Mean",
            "Sum",
            "Greater",
            "Less",
            "GreaterOrEqual",
            "LessOrEqual",
            "Equal",
            "PRelu",
        ]
    },
    **{
        f"Reduce{name}": [
            Recipe(
                [floats(2, 3, 4, positive=True)],
                {"axes": AXES, "keepdims": (NONE, 0)},
                until=12 if name == "Sum" else 17,
            ),
            Recipe([floats(2, 3, 4, positive=True)], {"keepdims": (NONE, 0)}),
        ]
        for name in [
            "L1",
            "L2",
            "LogSum",
            "LogSumExp",
            "Max",
            "Mean",
            "Min",
            "Prod",
            "Sum",
            "SumSquare",
        ]
    },
    **{
        f"Arg{name}": [
            Recipe(
                [np.float32([[1, 3, 3], [2, 2, 0]])], {"axis": (NONE, 1, -1), "keepdims": (0, 1)}
            )
        ]
        for name in ("Max", "Min")
    },
    **{
        name: [Recipe([floats(2, 3, 4)], LOGITS), Recipe([floats(2, 3)], {"axis": (NONE, 0, 1)})]
        for name in ("Softmax", "LogSoftmax", "Hardmax")
    },
    "AveragePool": [
        Recipe([IMAGE], {**WINDOWS, "count_include_pad": (NONE, 1), "ceil_mode": (NONE, 1)}),
        Recipe([IMAGE], {"kernel_shape": ([3, 3],), "auto_pad": ("VALID", "SAME_UPPER")}),
    ],
    "MaxPool": [
        Recipe([IMAGE], {**WINDOWS, "ceil_mode": (NONE, 1), "dilations": (NONE, [2, 1])}, since=10),
        Recipe([IMAGE], WINDOWS, outputs=2),
    ],
    "LpPool": [Recipe([IMAGE], {**WINDOWS, "p": (NONE, 1)})],
    "GlobalAveragePool": [Recipe([IMAGE])],
    "GlobalMaxPool": [Recipe([IMAGE])],
    "LpNormalization": [Recipe([floats(2, 3)], {"axis": (NONE, 0), "p": (NONE, 1)})],
    "InstanceNormalization": [
        Recipe([IMAGE, floats(2), floats(2, seed=1)], {"epsilon": (NONE, 0.1)})
    ],
    "MeanVarianceNormalization": [Recipe([IMAGE], {"axes": (NONE, [0, 2])})],
    "LRN": [Recipe([IMAGE], {"size": (1, 3), "alpha": (NONE, 0.1)})],
    "BatchNormalization": [
        Recipe(
            [IMAGE, *(floats(2, seed=k, positive=True) for k in range(4))], {"epsilon": (NONE, 0.1)}
        )
    ],
    "Conv": [
        Recipe(
            [IMAGE, floats(3, 2, 2, 3)], {k: v for k, v in WINDOWS.items() if k != "kernel_shape"}
        )
    ],
    "ConvTranspose": [
        Recipe(
            [IMAGE, floats(2, 3, 2, 3)], {"strides": (NONE, [2, 2]), "pads": (NONE, [1, 0, 0, 1])}
        )
    ],
    "MatMul": [Recipe([floats(2, 3), floats(3, 4)])],
    "Gemm": [
        Recipe(
            [floats(2, 3), floats(3, 4), floats(4)], {"alpha": (NONE, 0.5), "beta": (NONE, 2.0)}
        ),
        Recipe([floats(3, 2), floats(4, 3), floats(4)], {"transA": (1,), "transB": (1,)}),
    ],
    "Concat": [Recipe([floats(2, 3), floats(2, 3, seed=1)], {"axis": (0, 1)})],
    "Flatten": [Recipe([floats(2, 3, 4)], {"axis": (NONE, 0, 2, 3)})],
    "Transpose": [Recipe([floats(2, 3, 4)], {"perm": (NONE, [1, 0, 2])})],
    "Reshape": [Recipe([floats(2, 3, 4), ints(0, -1)], fed=1)],
    "Expand": [Recipe([floats(3, 1), ints(2, 3, 4)], fed=1)],
    "Tile": [Recipe([floats(2, 3), ints(2, 1)], fed=1)],
    "Squeeze": [Recipe([floats(3, 1, 1)], {"axes": (NONE, EMPTY, [1], [2])}, until=12)],
    "Unsqueeze": [Recipe([floats(3, 4)], {"axes": ([0], [1, 3])}, until=12)],
    "Slice": [
        Recipe(
            [floats(4, 5)],
            {"starts": ([1, -3],), "ends": ([9, -1],), "axes": (NONE, [1, 0])},
            until=9,
        ),
        Recipe([floats(4, 5), ints(3), ints(-9), ints(0), ints(-2)], fed=1, since=10),
    ],
    "Split": [
        Recipe([floats(4, 6)], {"axis": (NONE, 1), "split": (NONE, [2, 2])}, outputs=2, until=12)
    ],
    "Pad": [
        Recipe(
            [floats(3, 4)],
            {
                "pads": ([1, 0, 0, 2],),
                "mode": (NONE, "reflect", "edge"),
                "value": (NONE, 1.5, -0.0),
            },
            until=10,
        ),
        Recipe([floats(3, 4), ints(1, 0, 0, 2)], {"mode": (NONE, "edge")}, fed=1, since=11),
    ],
    "TopK": [
        Recipe(
            [np.float32([[1, 3, 3, 0], [2, 2, 5, 2]])], {"k": (3,), "axis": (NONE, 1)}, 2, until=9
        ),
        Recipe(
            [np.float32([[1, 3, 3, 0], [2, 2, 5, 2]]), ints(3)], {"axis": (NONE, 1)}, 2, 1, since=10
        ),
    ],
    "Upsample": [
        Recipe([IMAGE, np.float32([1, 1, 2, s])], {"mode": (NONE, "linear")}, fed=1, until=9)
        for s in (1.5, 3)
    ],
    "Resize": [
        Recipe(
            [IMAGE, np.float32([1, 1, 2, s])], {"mode": (NONE, "linear")}, fed=1, since=10, until=10
        )
        for s in (1.5, 3)
    ]
    + [
        Recipe(
            [IMAGE, np.zeros(0, np.float32), np.float32([1, 1, 0.6, 1.7])],
            {
                "mode": (NONE, "linear", "cubic"),
                "coordinate_transformation_mode": (NONE, "align_corners", "asymmetric"),
                "nearest_mode": (NONE, "ceil"),
            },
            fed=1,
            since=11,
        ),
        Recipe(
            [IMAGE, np.zeros(0, np.float32), np.zeros(0, np.float32), ints(1, 2, 9, 3)],
            {"mode": (NONE, "linear")},
            fed=1,
            since=11,
            until=12,
        ),
    ],
    "Gather": [Recipe([floats(3, 4), ints(0, 2)], {"axis": (NONE, 1)}, fed=1)],
    "GatherElements": [Recipe([floats(3, 3), ints([0, 2, 1])], {"axis": (NONE, 0)}, fed=1)],
    "GatherND": [Recipe([floats(3, 4), ints([0, 2], [1, 1])], fed=1)],
    "ScatterElements": [
        Recipe([floats(3, 3), ints([0, 2, 1]), floats(1, 3)], {"axis": (NONE, 1)}, fed=1)
    ],
    "Scatter": [
        Recipe([floats(3, 3), ints([0, 2, 1]), floats(1, 3)], {"axis": (NONE, 1)}, fed=1, until=10)
    ],
    "ScatterND": [Recipe([floats(3, 3), ints([0], [2]), floats(2, 3, seed=1)], fed=1)],
    "OneHot": [Recipe([ints(0, 2, 5), ints(3), np.float32([0, 1])], {"axis": (NONE, 0)}, fed=0)],
    "Where": [Recipe([np.array([True, False, True]), floats(3), floats(3, seed=1)])],
    "Compress": [Recipe([floats(3, 4), np.array([True, False, True])], {"axis": (NONE, 0)})],
    "CumSum": [
        Recipe([floats(3, 4), np.array(1)], {"exclusive": (NONE, 1), "reverse": (NONE, 1)}, fed=1)
    ],
    "Range": [Recipe([np.float32(0.5), np.float32(3), np.float32(0.5)])],
    "EyeLike": [Recipe([floats(3, 4)], {"k": (NONE, 1)})],
    "Det": [Recipe([floats(2, 3, 3)])],
    "Einsum": [Recipe([floats(2, 3), floats(3, 4)], {"equation": ("ij,jk->ki",)})],
    "Mod": [
        Recipe([ints(-5, 5, 7), ints(3, -3, 4)]),
        Recipe([floats(4), floats(4, seed=1)], {"fmod": (1,)}),
    ],
    "BitShift": [Recipe([np.uint8([1, 200]), np.uint8([3, 1])], {"direction": ("LEFT", "RIGHT")})],
    "Unique": [Recipe([np.float32([2, 1, 1, 3])], {"sorted": (NONE, 0)}, outputs=4)],
    "ReverseSequence": [
        Recipe([floats(4, 2), ints(3, 4)], {"batch_axis": (NONE,), "time_axis": (NONE,)})
    ],
    "DepthToSpace": [
        Recipe([floats(1, 8, 2, 3)], {"blocksize": (2,), "mode": (NONE, "CRD")}, since=11)
    ],
    "SpaceToDepth": [Recipe([floats(1, 2, 4, 6)], {"blocksize": (2,)})],
    "ConstantOfShape": [Recipe([ints(2, 3)])],
    "Cast": [Recipe([SPECIAL[:7]], {"to": (1, 3, 7, 9, 10, 11)})],
    "CastLike": [Recipe([SPECIAL[:7], x]) for x in (np.float16([1]), np.int32([1]))],
    "QuantizeLinear": [
        Recipe([4 * floats(2, 3), np.float32(0.1), z], fed=1) for z in (np.uint8(7), np.int8(-3))
    ]
    + [
        Recipe([4 * floats(2, 3), np.float32(0.1)], fed=1),
        Recipe(
            [4 * floats(2, 3), floats(3, positive=True), np.uint8([1, 2, 3])],
            {"axis": (NONE, -1)},
            fed=1,
            since=13,
        ),
        Recipe([np.int32([[5, -7]]), np.float32(2)], fed=1),
    ],
    "DequantizeLinear": [
        Recipe([np.uint8([[1, 200, 7]]), np.float32(0.1), np.uint8(7)], fed=1),
        Recipe([np.int32([[1, 200, 7]]), np.float32(0.1)], fed=1),
        Recipe(
            [np.int8([[1, -9, 7]]), floats(3, positive=True)], {"axis": (NONE, -1)}, fed=1, since=13
        ),
    ],
    "QLinearMatMul": [
        Recipe(
            [np.uint8([[1, 2], [3, 4]]), np.float32(0.1), np.uint8(1)] * 2
            + [np.float32(0.05), np.uint8(3)],
            fed=1,
        )
    ],
    "GridSample": [
        Recipe(
            [IMAGE, np.clip(floats(1, 3, 3, 2), -1.2, 1.2)],
            {
                "mode": (NONE, "nearest", "bicubic"),
                "padding_mode": (NONE, "border", "reflection"),
                "align_corners": (NONE, 1),
            },
            until=19,
        )
    ],
    "RoiAlign": [
        Recipe(
            [IMAGE, np.float32([[0.5, 0.5, 4, 4]]), ints(0)],
            {
                "output_height": (2,),
                "output_width": (2,),
                "mode": (NONE, "max"),
                "sampling_ratio": (NONE, 2),
            },
        )
    ],
    "MaxUnpool": [
        Recipe(
            [floats(1, 1, 2, 2), ints([[[0, 3], [9, 14]]])],
            {"kernel_shape": ([2, 2],), "strides": ([2, 2],)},
        )
    ],
    "NonMaxSuppression": [
        Recipe(
            [
                np.float32([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11], [0, 0, 1, 1]]]),
                np.float32([[[0.9, 0.75, 0.6, 0.9]]]),
                ints(3),
                np.float32([0.5]),
                np.float32([0.1]),
            ],
            {"center_point_box": (NONE, 1)},
            fed=2,
        )
    ],
    "DFT": [
        Recipe([floats(2, 5, 6, 1)], {"axis": (NONE, 2), "onesided": (NONE, 1)}, until=19),
        Recipe([floats(2, 5, 6, 2)], {"axis": (NONE, 2, -2), "inverse": (NONE, 1)}, until=19),
    ],
    "GRU": [
        Recipe(
            [RECURRENT[0], RECURRENT[1][:, :15], RECURRENT[2][:, :15]],
            {"hidden_size": (5,), "linear_before_reset": (NONE, 1)},
            2,
        )
    ],
    "LSTM": [Recipe(RECURRENT, {"hidden_size": (5,), "clip": (NONE, 0.5)}, outputs=3)],
    "RNN": [
        Recipe([RECURRENT[0], RECURRENT[1][:, :5], RECURRENT[2][:, :5]], {"hidden_size": (5,)}, 2)
    ],
    "NegativeLogLikelihoodLoss": [
        Recipe(
            [floats(3, 4), ints(0, 2, 1)],
            {"reduction": (NONE, "none", "sum"), "ignore_index": (NONE, 2)},
        )
    ],
    "SoftmaxCrossEntropyLoss": [
        Recipe(
            [floats(3, 4), ints(0, 2, 1)],
            {"reduction": (NONE, "none", "sum"), "ignore_index": (NONE, 2)},
            2,
        )
    ],
    "Attention": [
        Recipe(
            [floats(1, 2, 3, 4), floats(1, 2, 5, 4, seed=1), floats(1, 2, 5, 4, seed=2), mask],
            {"is_causal": (NONE, 1), "softcap": (NONE, 2.0), "qk_matmul_output_mode": (NONE,)},
        )
        for mask in (None, floats(3, 5), np.array([[True, True, True, False, True]] * 3))
    ],
    "DeformConv": [
        Recipe(
            [floats(1, 1, 4, 4), floats(1, 1, 2, 2), floats(1, 8, 3, 3)],
            {"kernel_shape": ([2, 2],)},
        )
    ],
}

UNTESTED = {
    "Bernoulli": "random",
    "Multinomial": "random",
    "RandomNormal": "random",
    "RandomNormalLike": "random",
    "RandomUniform": "random",
    "RandomUniformLike": "random",
    "Constant": "no input; its versions add types and attributes",
    "If": "its versions add types",
    "Loop": "its versions add types",
    "Scan": "its versions add types and negative axes",
    "Optional": "its versions add types",
    "OptionalGetElement": "its versions add types",
    "OptionalHasElement": "its versions add types",
    "SplitToSequence": "its versions add types",
    "GroupNormalization": "its change is refused",
    "GlobalLpPool": "no engine has the new version, which adds types",
    "MaxRoiPool": "no engine has the new version, which adds types",
}


MISREAD = {"BatchNormalization": 14, "Hardmax": 13, "LogSoftmax": 13, "RoiAlign": 16, "Softmax": 13}
"""Versions that the reference implementation reads as the later ones."""


def by_runtime(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Any]:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    content = model.SerializeToString()
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def by_reference(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Any]:
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model).run(None, feeds))


def raised(model: onnx.ModelProto, target: int) -> onnx.ModelProto | None:
    """The model under a higher opset; None if that is refused."""
    copy = ir.from_proto(model)
    try:
        require(copy, target)
    except UnsupportedError:
        return None
    copy.ir_version = max(8, minimum_ir_version(copy))
    return ir.to_proto(copy)


def result(run: Any, model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Any] | None:
    try:
        return list(run(model, feeds))
    except pytest.skip.Exception:
        raise
    except Exception:
        return None


def agree(found: Any, expected: Any) -> bool:
    found, expected = np.asarray(found), np.asarray(expected)
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if found.dtype.kind != "f":
        return bool((found == expected).all())
    # kernels of other versions may sum in another order
    close = np.isclose(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    zeros = (found == 0) & (expected == 0) & (np.signbit(found) != np.signbit(expected))
    return bool(close.all() and not zeros.any())


def pairs(name: str) -> list[tuple[int, int]]:
    """Opsets of old and new versions, each to the next and to the last."""
    versions = [max(v, OLDEST) for v in sorted(HISTORY[name])]
    versions = [v for v in sorted(set(versions)) if v <= LATEST]
    found = list(itertools.pairwise(versions))
    return found + [(old, HIGHEST_OF_RUNTIME) for old in versions[:-2] if old < HIGHEST_OF_RUNTIME]


def test_every_operator_with_versions_is_compared() -> None:
    changed = {name for name in HISTORY if pairs(name)}
    assert set(RECIPES) | set(UNTESTED) == changed
    assert not set(RECIPES) & set(UNTESTED)


@pytest.mark.cases(fast=0, slow=20)
@pytest.mark.slow
@pytest.mark.runtime
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_raised_node_computes_what_the_old_version_did(name: str) -> None:
    compared = 0
    for recipe in RECIPES[name]:
        for old, new in pairs(name):
            if not recipe.since <= old <= recipe.until:
                continue
            for model, feeds in recipe.models(name, old):
                higher = raised(model, new)
                if higher is None:
                    continue
                for run in (by_runtime, by_reference)[: 1 if old < MISREAD.get(name, 0) else 2]:
                    expected = result(run, model, feeds)
                    found = None if expected is None else result(run, higher, feeds)
                    if expected is None or found is None:
                        continue
                    compared += 1
                    same = all(map(agree, found, expected))
                    assert same, (run.__name__, old, new, str(model.graph.node[0]))
    assert compared
