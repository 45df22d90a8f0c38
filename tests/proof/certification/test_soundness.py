"""Models that differ for some input in ways that are easily overlooked; none may be proved."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import qgraph
from qgraph.errors import EquivalenceError, ModelError
from qgraph.exactness import Exactness
from qgraph.text import json_text
from tests.verify.checking import verify

FLOAT, HALF, INT8, UINT8, INT32, INT64 = (
    getattr(TensorProto, name) for name in ("FLOAT", "FLOAT16", "INT8", "UINT8", "INT32", "INT64")
)
Value = tuple[str, int, list[int | str] | None]
N = helper.make_node


def made(inputs: list[Value], outputs: list[Value], *nodes, opset: int = 21, **constants):
    """A model of nodes and initializers."""
    infos = [[helper.make_tensor_value_info(*v) for v in some] for some in (inputs, outputs)]
    tensors = [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    graph = helper.make_graph(list(nodes), "g", *infos, tensors)
    versions = {"": opset, "my": 1, "ai.onnx.ml": 3, "com.microsoft": 1}
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=10))


def real(*nodes, y: int = FLOAT, kind: int = FLOAT, opset: int = 21, **constants):
    shape = ["N", 4]
    return made([("x", kind, shape)], [("y", y, shape)], *nodes, opset=opset, **constants)


S, ZERO = np.float32(0.1), np.int8(0)
QDQ = (N("QuantizeLinear", ["x", "s", "i"], ["q"]), N("DequantizeLinear", ["q", "s", "i"], ["a"]))
STEPS = (
    N("Div", ["x", "s"], ["d"]),
    N("Round", ["d"], ["r"]),
    N("Clip", ["r", "l", "h"], ["c"]),
    N("Mul", ["c", "s"], ["a"]),
)
BOUNDS = {"s": S, "i": ZERO, "l": np.float32(-128), "h": np.float32(127)}
HALVES = {"s": np.float16(0.5), "l": np.float16(-8), "h": np.float16(7), "o": np.float16(1)}
HALF_CODES = (
    *STEPS[:3],
    N("Cast", ["c"], ["k"], to=INT8),
    N("Cast", ["k"], ["f"], to=HALF),
    N("Mul", ["f", "s"], ["a"]),
)


def codes_of_types() -> tuple[ir.Model, ir.Model]:
    ours = real(QDQ[0], N("Identity", ["q"], ["y"]), y=UINT8, s=S, i=np.uint8(0))
    theirs = real(QDQ[0], N("Cast", ["q"], ["y"], to=INT32), y=INT32, s=S, i=np.uint8(0))
    return ours, theirs


def types_seen_by_others() -> tuple[ir.Model, ir.Model]:
    ours = real(QDQ[0], N("Op", ["q"], ["y"], domain="my"), s=S, i=ZERO)
    cast = N("Cast", ["q"], ["c"], to=INT32)
    return ours, real(QDQ[0], cast, N("Op", ["c"], ["y"], domain="my"), s=S, i=ZERO)


def large_integers() -> tuple[ir.Model, ir.Model]:
    nodes = N("Cast", ["x"], ["q"], to=INT64), N("Max", ["q", "k"], ["y"])
    return tuple(real(*nodes, y=INT64, k=np.int64(k)) for k in (2**24 + 1, 2**24))


def training_dropout() -> tuple[ir.Model, ir.Model]:
    node = N("Dropout", ["x", "r", "t"], ["y"], seed=3)
    return tuple(real(node, r=np.float32(0.5), t=np.array(True)) for _ in range(2))


def training_statistics() -> tuple[ir.Model, ir.Model]:
    node, ones = "BatchNormalization", np.ones(3, np.float32)
    return tuple(
        made(
            [("x", FLOAT, [2, 3])],
            [("y", FLOAT, [3])],
            N(node, ["x", *"wwww"], ["o", "y", "v"], training_mode=1, momentum=momentum),
            w=ones,
        )
        for momentum in (0.9, 0.5)
    )


def shapes_of_inputs() -> tuple[ir.Model, ir.Model]:
    return tuple(
        made([("x", FLOAT, shape)], [("y", FLOAT, shape)], N("Relu", ["x"], ["y"]))
        for shape in ([1, 4], [2, 4])
    )


def unknown_size_may_be_one() -> tuple[ir.Model, ir.Model]:
    x, y = [("x", FLOAT, ["N", "C"])], [("y", FLOAT, None)]
    ours = made(x, y, *QDQ, N("Mul", ["a", "k"], ["y"]), s=S, i=ZERO, k=np.full(4, 2, np.float32))
    return ours, made(x, y, *QDQ, N("Add", ["a", "a"], ["y"]), s=S, i=ZERO)


def outputs_twice() -> tuple[ir.Model, ir.Model]:
    nodes = N("Relu", ["x"], ["a"]), N("Neg", ["x"], ["b"])
    return tuple(
        made([("x", FLOAT, [4])], [(name, FLOAT, [4]) for name in names], *nodes)
        for names in ("aab", "abb")
    )


def zeros_in_a_scale() -> tuple[ir.Model, ir.Model]:
    last = N("QuantizeLinear", ["x", "a", "i"], ["k"]), N("Cast", ["k"], ["y"], to=FLOAT)
    return real(*STEPS, *last, **BOUNDS), real(*QDQ, *last, s=S, i=ZERO)


def zeros_in_a_normalizer() -> tuple[ir.Model, ir.Model]:
    last = N("Normalizer", ["a"], ["y"], domain="ai.onnx.ml", norm="MAX")
    return real(*STEPS, last, **BOUNDS), real(*QDQ, last, s=S, i=ZERO)


def zeros_at_infinity() -> tuple[ir.Model, ir.Model]:
    head = (
        N("Reciprocal", ["x"], ["r"]),
        N("Abs", ["r"], ["k"]),
        N("Clip", ["k", "l", "h"], ["c"]),
        N("Round", ["c"], ["w"]),
    )
    swap = N("Equal", ["x", "m"], ["e"]), N("Where", ["e", "z", "w"], ["v"])
    bounds = {"l": np.float32(0), "h": np.float32(3)}
    ours = real(*head, N("Op", ["w"], ["y"], domain="my"), **bounds)
    last = N("Op", ["v"], ["y"], domain="my")
    infinity, zero = np.float32("-inf"), np.float32(-0.0)
    return ours, real(*head, *swap, last, m=infinity, z=zero, **bounds)


def zeros_inside_a_region_of_short_floats() -> tuple[ir.Model, ir.Model]:
    turn, one = N("Transpose", ["a"], ["e"]), N("Reciprocal", ["e"], ["y"])
    ours = real(*STEPS, turn, one, kind=HALF, y=HALF, **HALVES)
    other = N("Div", ["o", "e"], ["y"])
    return ours, real(*HALF_CODES, turn, other, kind=HALF, y=HALF, **HALVES)


def cast_out_of_range() -> tuple[ir.Model, ir.Model]:
    ours = real(N("Sub", ["x", "k"], ["y"]), kind=UINT8, y=UINT8, k=np.uint8(100))
    nodes = (
        N("Cast", ["x"], ["f"], to=FLOAT),
        N("Sub", ["f", "k"], ["g"]),
        N("Cast", ["g"], ["y"], to=UINT8),
    )
    return ours, real(*nodes, kind=UINT8, y=UINT8, k=np.float32(100))


def reshaped_codes() -> tuple[ir.Model, ir.Model]:
    x, y = [("x", INT8, [4, 1])], [("y", INT8, None)]
    nodes = N("Reshape", ["x", "n"], ["r"]), N("Add", ["r", "x"], ["y"])
    return made(x, y, N("Add", ["x", "x"], ["y"])), made(x, y, *nodes, n=np.array([-1]))


def reshaped_pairs() -> tuple[ir.Model, ir.Model]:
    head = [
        N(op, [a, *more], [b])
        for v in "ab"
        for op, a, more, b in (("Floor", v, "", f"f{v}"), ("Clip", f"f{v}", "lh", f"c{v}"))
    ]
    ends = (
        (N("Neg", ["cb"], ["m"]), N("Sub", ["ca", "m"], ["y"])),
        (N("Reshape", ["ca", "n"], ["m"]), N("Add", ["m", "cb"], ["y"])),
    )
    x, y = [("a", FLOAT, [4, 1]), ("b", FLOAT, [1, 4])], [("y", FLOAT, None)]
    constants = {"l": np.float32(0), "h": np.float32(3), "n": np.array([-1])}
    return tuple(made(x, y, *head, *end, **constants) for end in ends)


def exponents_of_double_precision() -> tuple[ir.Model, ir.Model]:
    node = N("Pow", ["x", "k"], ["y"])
    return real(node, k=np.float64(0.1)), real(node, k=np.float32(0.1))


def texts_in_attributes() -> tuple[ir.Model, ir.Model]:
    return tuple(
        real(N("Op", ["x"], ["y"], domain="my", t=numpy_helper.from_array(np.array(texts, object))))
        for texts in (["a", "b"], ["a", "c"])
    )


def state(model: ir.Model, name: str, kind: int, shape: list[int | str]) -> ir.Model:
    """Let a model say of one of its values what is not so."""
    (value,) = (v for node in model.graph for v in node.outputs if v.name == name)
    value.type, value.shape = ir.TensorType(ir.DataType(kind)), ir.Shape(shape)
    return model


def stated_shape(*nodes, stated: list[int], other: list[int], **constants):
    """Nodes that make ``y`` of ``x [2, 2, 2]``, of a stated shape, and a Reshape to that shape."""
    x, y = [("x", FLOAT, [2, 2, 2])], [("y", FLOAT, None)]
    ours = state(made(x, y, *nodes, **constants), "y", FLOAT, stated)
    return ours, made(x, y, N("Reshape", ["x", "k"], ["y"]), k=np.array(other))


def stated_shape_of_flatten() -> tuple[ir.Model, ir.Model]:
    return stated_shape(N("Flatten", ["x"], ["y"], axis=1), stated=[4, 2], other=[4, 2])


def stated_shape_of_unsqueeze() -> tuple[ir.Model, ir.Model]:
    node, shape = N("Unsqueeze", ["x", "a"], ["y"]), [2, 2, 2, 1]
    return stated_shape(node, stated=shape, other=shape, a=np.array([0]))


def stated_shape_of_reshape() -> tuple[ir.Model, ir.Model]:
    node = N("Reshape", ["x", "n"], ["y"])
    return stated_shape(node, stated=[4, 2], other=[4, 2], n=np.array([0, -1]))


def stated_type_of_a_cast() -> tuple[ir.Model, ir.Model]:
    head = N("Cast", ["x"], ["h"], to=HALF)
    ours = state(real(head, N("Cast", ["h"], ["y"], to=FLOAT)), "h", FLOAT, ["N", 4])
    return ours, real(head, N("Identity", ["h"], ["y"]), y=HALF)


def stated_shape_of_an_entry() -> tuple[ir.Model, ir.Model]:
    x, y, t = [("x", FLOAT, ["C", "N"])], [("y", FLOAT, None)], N("Transpose", ["x"], ["t"])
    steps = (N("Floor", ["t"], ["f"]), N("Clip", ["f", "l", "h"], ["a"]))
    bounds = {"l": np.float32(0), "h": np.float32(3)}
    ends = (N("Mul", ["a", "k"], ["y"]), N("Add", ["a", "a"], ["y"]))
    ours = made(x, y, t, *steps, ends[0], k=np.full(4, 2, np.float32), **bounds)
    theirs = made(x, y, t, *steps, ends[1], **bounds)
    return tuple(state(model, "t", FLOAT, ["N", 4]) for model in (ours, theirs))


def versions(node: dict[str, object], shape: list[int | str], *opsets: int):
    """A node under several opsets."""
    x, y = [("x", FLOAT, shape)], [("y", FLOAT, None)]
    return tuple(made(x, y, N(inputs=["x"], outputs=["y"], **node), opset=v) for v in opsets)


def windows_beyond_the_padding() -> tuple[ir.Model, ir.Model]:
    node = {"op_type": "AveragePool", "kernel_shape": [2], "strides": [2], "ceil_mode": 1}
    return versions(node | {"count_include_pad": 1}, [1, 1, 5], 18, 19)


def windows_in_the_padding() -> tuple[ir.Model, ir.Model]:
    node = {"op_type": "MaxPool", "kernel_shape": [2], "strides": [3], "ceil_mode": 1}
    return versions(node | {"pads": [0, 1]}, [1, 1, 6], 21, 22)


def masks_of_dropout() -> tuple[ir.Model, ir.Model]:
    x, y = [("x", FLOAT, [4])], [("y", FLOAT, [4]), ("m", TensorProto.BOOL, [4])]
    theirs = made(x, y, N("Dropout", ["x", "r"], ["y", "m"]), r=np.float32(0.5))
    return made(x, y, N("Dropout", ["x"], ["y", "m"]), opset=11), theirs


def operators_before_their_time() -> tuple[ir.Model, ir.Model]:
    return versions({"op_type": "Mish"}, [4], 17, 18)


def tensors_in_attributes() -> tuple[ir.Model, ir.Model]:
    arrays = np.zeros((2, 5000), np.float32)
    arrays[1, 2500] = 1
    tensors = [numpy_helper.from_array(array, "t") for array in arrays]
    return tuple(real(N("Op", ["x"], ["y"], domain="my", t=[tensor])) for tensor in tensors)


def types_in_attributes() -> tuple[ir.Model, ir.Model]:
    types = [helper.make_tensor_type_proto(FLOAT, shape) for shape in ([1], [2])]
    return tuple(real(N("Op", ["x"], ["y"], domain="my", t=kind)) for kind in types)


def overloads() -> tuple[ir.Model, ir.Model]:
    return tuple(real(N("Op", ["x"], ["y"], domain="my", overload=name)) for name in "ab")


def channels_or_places() -> tuple[ir.Model, ir.Model]:
    x, y = [("x", FLOAT, ["N", "C"]), ("p", FLOAT, None)], [("y", FLOAT, None)]
    nodes = [N("BatchNormalization", ["x", *"pppp"], ["y"], spatial=k) for k in (0, 1)]
    return tuple(made(x, y, node, opset=7) for node in nodes)


def random_of_the_runtime(name: str, *inputs: str) -> tuple[ir.Model, ir.Model]:
    x, outputs = [("x", FLOAT, [4])], [("y", FLOAT, [4]), ("z", FLOAT, [4])]
    constants = {"r": np.float32(0.5), "t": np.array(True), "b": np.ones(4, np.float32)}
    node = [N(name, list(inputs), [key], domain="com.microsoft") for key in "yz"]
    theirs = made(x, outputs, node[0], N("Identity", ["y"], ["z"]), **constants)
    return made(x, outputs, *node, **constants), theirs


PAIRS: list[Callable[[], tuple[ir.Model, ir.Model]]] = [
    codes_of_types,
    types_seen_by_others,
    large_integers,
    training_dropout,
    training_statistics,
    shapes_of_inputs,
    unknown_size_may_be_one,
    pytest.param(outputs_twice, marks=pytest.mark.slow),
    zeros_in_a_scale,
    zeros_in_a_normalizer,
    zeros_at_infinity,
    zeros_inside_a_region_of_short_floats,
    cast_out_of_range,
    reshaped_codes,
    reshaped_pairs,
    exponents_of_double_precision,
    texts_in_attributes,
    stated_shape_of_flatten,
    stated_shape_of_unsqueeze,
    stated_shape_of_reshape,
    stated_type_of_a_cast,
    stated_shape_of_an_entry,
    windows_beyond_the_padding,
    windows_in_the_padding,
    masks_of_dropout,
    operators_before_their_time,
    tensors_in_attributes,
    types_in_attributes,
    overloads,
    channels_or_places,
]


@pytest.mark.cases(fast=10, slow=11)
@pytest.mark.parametrize("pair", PAIRS)
def test_what_is_not_equal_is_not_proved(pair):
    found = qgraph.prove(*pair())
    assert found.verdict != "proved"
    assert all(r.reason for r in found.regions if r.verdict == "undecided")


DROPOUTS = {"BiasDropout": "xb", "BitmaskDropout": "x", "BitmaskBiasDropout": "xb"}


@pytest.mark.parametrize("name", [*DROPOUTS, "Sampling"])
def test_random_operators_of_the_runtime_are_no_functions(name):
    data = [*DROPOUTS.get(name, "x"), *[""] * (DROPOUTS.get(name) == "xb")]
    pair = random_of_the_runtime(name, *data, "r", "t")
    assert qgraph.prove(*pair).verdict == "undecided"
    if name in DROPOUTS:
        assert qgraph.prove(*random_of_the_runtime(name, *data, "r")).verdict == "proved"


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ({"ceil_mode": 1, "strides": [2], "kernel_shape": [3]}, [1, 1, "N"]),
        ({"ceil_mode": 1, "strides": [2], "kernel_shape": [2], "count_include_pad": 1}, [1, 1, 6]),
        ({"strides": [3], "kernel_shape": [2], "pads": [1, 1], "count_include_pad": 1}, [1, 1, 7]),
        ({"auto_pad": "SAME_UPPER", "ceil_mode": 1, "kernel_shape": [2]}, [1, 1, "N"]),
    ],
)
def test_windows_that_no_version_reads_otherwise_are_proved(attributes, shape, opset):
    node = {"op_type": "AveragePool", **attributes}
    assert qgraph.prove(*versions(node, shape, opset, 22)).verdict == "proved"


@pytest.mark.parametrize(
    "attributes",
    [
        {"t": [numpy_helper.from_array(np.arange(3), "t")]},
        {"t": helper.make_tensor_type_proto(FLOAT, ["N", 2])},
        {"t": ["a", "b"]},
        {"t": b"\xff\xfe"},
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_operators_with_odd_attributes_are_equal_to_themselves(attributes):
    pair = [real(N("Op", ["x"], ["y"], domain="my", **attributes)) for _ in range(2)]
    assert qgraph.prove(*pair).verdict == "proved"


@pytest.mark.parametrize("name", ["prove", "check", "save", "apply"])
def test_nodes_in_a_circle_are_refused(name, tmp_path):
    models = [real(N("Add", ["x", "x"], ["a"]), N("Relu", ["a"], ["y"])) for _ in range(2)]
    loaded = qgraph.load(models[0])
    first, second = loaded.ir.graph
    first.replace_input_with(1, second.outputs[0])
    uses = {
        "prove": lambda: qgraph.prove(models[0], models[1]),
        "check": lambda: qgraph.check(loaded, models[1]),
        "save": lambda: qgraph.load(loaded).save(tmp_path / "out.onnx"),
        "apply": loaded.apply,
    }
    with pytest.raises(ModelError, match="nodes form a cycle"):
        uses[name]()


def test_shapes_that_are_stated_rightly_are_not_needed():
    x, y = [("x", FLOAT, [2, 2, 2])], [("y", FLOAT, None)]
    ours = made(x, y, N("Flatten", ["x"], ["y"], axis=1))
    theirs = made(x, y, N("Reshape", ["x", "n"], ["y"]), n=np.array([0, -1]))
    assert qgraph.prove(ours, theirs).verdict == "proved"


def test_dropout_in_inference_hands_its_data_on():
    ours = real(N("Dropout", ["x", "", "t"], ["y"]), t=np.array(False))
    assert qgraph.prove(ours, real(N("Identity", ["x"], ["y"]))).verdict == "proved"


def test_dropout_in_inference_reads_no_ratio():
    outputs = [("y", FLOAT, [4]), ("m", TensorProto.BOOL, [4])]
    pair = [
        made(
            [("x", FLOAT, [4])],
            outputs,
            N("Dropout", list(names), ["y", "m"], seed=seed),
            r=ratio,
            t=np.array(False),
        )
        for names, seed, ratio in (("xr", 1, np.float32(0.5)), ("xrt", 2, np.float32(0.1)))
    ]
    found = qgraph.prove(*pair, evidence=True)
    assert (found.verdict, found.regions) == ("proved", ())
    assert verify(found.to_json(), *pair) == "proved"


def test_dropout_that_may_train_reads_its_ratio():
    inputs = [("x", FLOAT, [4]), ("t", TensorProto.BOOL, [])]
    pair = [
        made(inputs, [("y", FLOAT, [4])], N("Dropout", ["x", "r", "t"], ["y"]), r=np.float32(ratio))
        for ratio in (0.5, 0.1)
    ]
    assert qgraph.prove(*pair).verdict != "proved"


def test_nan_of_short_floats_counts_where_bits_are_asked_for():
    clip = N("Clip", ["x", "l", "h"], ["c"])
    nodes = N("IsNaN", ["x"], ["n"]), N("Where", ["n", "l", "c"], ["y"])
    bounds = {"l": np.float16(-8), "h": np.float16(7)}
    pair = (
        real(clip, N("Identity", ["c"], ["y"]), kind=HALF, y=HALF, **bounds),
        real(clip, *nodes, kind=HALF, y=HALF, **bounds),
    )
    assert qgraph.prove(*pair, exact=Exactness.BITS).verdict == "different"
    found = qgraph.prove(*pair)
    assert found.verdict == "proved"
    assert any("NaN" in condition for condition in found.conditions)


def test_data_without_elements_cannot_differ():
    x, y = [("x", FLOAT, [0, 4])], [("y", FLOAT, [0, 4])]
    pair = [made(x, y, N("Add", ["x", "k"], ["y"]), k=np.float32(k)) for k in (1, 2)]
    assert qgraph.prove(*pair).verdict == "undecided"


def test_other_numbers_of_outputs_are_refused():
    nodes = N("Relu", ["x"], ["a"]), N("Neg", ["x"], ["b"])
    pair = [
        made([("x", FLOAT, [4])], [(name, FLOAT, [4]) for name in names], *nodes)
        for names in ("ab", "abb")
    ]
    with pytest.raises(ModelError, match="expected as many"):
        qgraph.prove(*pair)


def sees_zeros(kind: int) -> tuple[ir.Model, ir.Model]:
    last = N("Reciprocal", ["a"], ["y"])
    if kind == FLOAT:
        return real(*STEPS, last, **BOUNDS), real(*QDQ, last, s=S, i=ZERO)
    return tuple(real(*nodes, last, kind=HALF, y=HALF, **HALVES) for nodes in (STEPS, HALF_CODES))


def weights() -> tuple[ir.Model, ir.Model]:
    node = N("MatMul", ["x", "w"], ["y"])
    return tuple(real(node, w=np.eye(4, dtype=np.float32) * k) for k in (1, 2))


def scales() -> tuple[ir.Model, ir.Model]:
    last = N("Identity", ["a"], ["y"])
    return tuple(real(*QDQ, last, s=np.float32(s), i=ZERO) for s in (0.1, 0.11))


def leave_undecided_out(document: dict) -> None:
    document["regions"] = [r for r in document["regions"] if r["verdict"] != "undecided"]
    for region in document["regions"]:
        region["zero_sign_inputs"] = 0
    document["exactness"] = "values" if document["regions"] else "bits"


def call_it_bits(document: dict) -> None:
    leave_undecided_out(document)
    for region in (document, *document["regions"]):
        region["exactness"] = "bits"


def call_it_proved(document: dict) -> None:
    for region in document["regions"]:
        region["verdict"] = "proved"


def call_it_equal(document: dict) -> None:
    for region in (document, *document["regions"]):
        region.update(verdict="proved", exactness="values")


def invent_a_verdict(document: dict) -> None:
    for region in document["regions"]:
        region["verdict"] = "fine"


def call_it_one_function(document: dict) -> None:
    for region in document["regions"]:
        region.update(verdict="proved", exactness="bits", method="congruence", boxes=[])
    document["exactness"] = "bits"


@pytest.mark.cases(fast=5, slow=7)
@pytest.mark.parametrize(
    ("pair", "change"),
    [
        *((lambda kind=kind: sees_zeros(kind), leave_undecided_out) for kind in (FLOAT, HALF)),
        *((lambda kind=kind: sees_zeros(kind), call_it_bits) for kind in (FLOAT, HALF)),
        *(
            (pair, change)
            for pair in (weights, scales)
            for change in (call_it_proved, call_it_equal, invent_a_verdict, call_it_one_function)
        ),
        (shapes_of_inputs, leave_undecided_out),
        (codes_of_types, leave_undecided_out),
        (codes_of_types, call_it_one_function),
        (training_dropout, leave_undecided_out),
    ],
)
def test_a_certificate_cannot_be_improved(pair, change):
    models = pair()
    found = json.loads(json_text(qgraph.prove(*models, evidence=True).to_json()))
    assert verify(copy.deepcopy(found), *models) == found["verdict"] != "proved"
    change(found)
    found["verdict"] = "proved"
    with pytest.raises((EquivalenceError, ModelError)):
        verify(found, *models)


@pytest.mark.parametrize("key", ["channel", "starts", "differing"])
def test_evidence_that_cannot_be_read_is_refused(key):
    last = N("Identity", ["a"], ["y"])
    models = real(*STEPS, last, **BOUNDS), real(*QDQ, last, s=S, i=ZERO)
    found = json.loads(json_text(qgraph.prove(*models, evidence=True).to_json()))
    found["regions"][0]["boxes"][0][key] = "99999 x"
    with pytest.raises(ModelError, match="cannot be read"):
        verify(found, *models)
