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
from qgraph.files import json_text
from qgraph.verification.verify import verify

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


PAIRS: list[Callable[[], tuple[ir.Model, ir.Model]]] = [
    codes_of_types,
    types_seen_by_others,
    large_integers,
    training_dropout,
    training_statistics,
    shapes_of_inputs,
    unknown_size_may_be_one,
    outputs_twice,
    zeros_in_a_scale,
    zeros_in_a_normalizer,
    zeros_at_infinity,
    zeros_inside_a_region_of_short_floats,
    cast_out_of_range,
    reshaped_codes,
    reshaped_pairs,
    exponents_of_double_precision,
    texts_in_attributes,
]


@pytest.mark.parametrize("pair", PAIRS)
def test_what_is_not_equal_is_not_proved(pair):
    found = qgraph.prove(*pair())
    assert found.verdict != "proved"
    assert all(r.reason for r in found.regions if r.verdict == "undecided")


def test_dropout_in_inference_hands_its_data_on():
    ours = real(N("Dropout", ["x", "", "t"], ["y"]), t=np.array(False))
    assert qgraph.prove(ours, real(N("Identity", ["x"], ["y"]))).verdict == "proved"


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
    with pytest.raises(EquivalenceError, match="cannot be read"):
        verify(found, *models)
