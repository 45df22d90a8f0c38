"""Proofs that rest on sizes: what is decided, and what the certificate lists of it."""

from __future__ import annotations

import copy
from typing import Any

import onnx_ir as ir
import pytest

import qgraph
from qgraph.certificate import ProofVerdict
from qgraph.conditions import ONE_SIZE, OPEN_SIZE
from qgraph.errors import EquivalenceError
from tests.verify.checking import texts, verify

CONSTANTS = "int64[1] rest = {-1}, int64 zero = {0}, int64[1] first = {0}, int64[1] second = {1}"


def model(inputs: str, body: str, constants: str = "") -> ir.Model:
    text = f"""<ir_version: 10, opset_import: ["": 17]>
        g ({inputs}) => (float y) <{CONSTANTS}{constants}> {{ {body} }}"""
    made = ir.from_onnx_text(text)
    made.graph.outputs[0].shape = None
    return made


def proved(ours: ir.Model, theirs: ir.Model) -> dict[str, Any]:
    """The certificate of a proof, which the checker accepts."""
    certificate = qgraph.prove(ours, theirs, evidence=True)
    assert certificate.verdict is ProofVerdict.PROVED
    document = certificate.to_json()
    assert verify(document, ours, theirs) == "proved"
    return document


def verdict(ours: ir.Model, theirs: ir.Model) -> ProofVerdict:
    certificate = qgraph.prove(ours, theirs, evidence=True)
    assert verify(certificate.to_json(), ours, theirs) == str(certificate.verdict)
    return certificate.verdict


IMAGE = "float[N,3,8] x"
FLAT = "y = Flatten (x)"
CHAIN = """s = Shape (x) n = Gather (s, zero) u = Unsqueeze (n, first)
    c = Concat <axis = 0> (u, rest) y = Reshape (x, c)"""
SAME = {
    "a chain of shapes": (IMAGE, FLAT, CHAIN, ""),
    "a kept size": (IMAGE, FLAT, "y = Reshape (x, w)", ", int64[2] w = {0, -1}"),
    "an inferred size": (IMAGE, FLAT, "y = Reshape (x, w)", ", int64[2] w = {-1, 24}"),
    "two open sizes": ("float[N,3,M] x", FLAT, CHAIN, ""),
    "a sliced shape": (
        IMAGE,
        FLAT,
        "s = Shape <end = 1> (x) c = Concat <axis = 0> (s, rest) y = Reshape (x, c)",
        "",
    ),
    "products of sizes": (
        "float[N,M,4] x",
        "y = Reshape (x, w)",
        """s = Shape (x) n = Gather (s, first) m = Gather (s, second) p = Mul (n, m)
        c = Concat <axis = 0> (p, four) y = Reshape (x, c)""",
        ", int64[2] w = {-1, 4}, int64[1] four = {4}",
    ),
    "a known value": (
        "float[1,3,100] x",
        "y = Reshape (x, w)",
        "s = Shape <end = 1> (x) c = Concat <axis = 0> (s, e) y = Reshape (x, c)",
        ", int64[2] w = {1, 300}, int64[1] e = {300}",
    ),
    "a known value of another operator": (
        "float[2,3] x", "y = Tile (x, w)", "s = Shape (x) y = Tile (x, s)", ", int64[2] w = {2, 3}",
    ),
    "two reshapes": (
        IMAGE,
        "u = Reshape (x, v) y = Reshape (u, w)",
        FLAT,
        ", int64[3] v = {-1, 8, 3}, int64[2] w = {0, 24}",
    ),
    "a reshape to the same shape": (
        IMAGE, "r = Relu (x) y = Reshape (r, w)", "y = Relu (x)", ", int64[3] w = {-1, 3, 8}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_reshapes_to_one_shape_are_one(name: str) -> None:
    inputs, ours, theirs, constants = SAME[name]
    proved(model(inputs, ours, constants), model(inputs, theirs, constants))


OTHER = {
    "another number of columns": (IMAGE, FLAT, "y = Reshape (x, w)", ", int64[2] w = {-1, 12}"),
    "a size of another input": (
        "float[N,3] x, float[M,3] z",
        "s = Shape (x) y = Reshape (x, s)",
        "s = Shape (z) y = Reshape (x, s)",
        "",
    ),
    "sizes swapped": (
        "float[N,M] x",
        "s = Shape (x) y = Reshape (x, s)",
        """s = Shape (x) b = Gather (s, second) a = Gather (s, first)
        c = Concat <axis = 0> (b, a) y = Reshape (x, c)""",
        "",
    ),
    "a product of open sizes that is 0 keeps one of them": (
        "float[N,M,4] x",
        "y = Reshape (x, w)",
        """s = Shape (x) n = Gather (s, first) m = Gather (s, second) p = Mul (n, m)
        c = Concat <axis = 0> (p, rest) y = Reshape (x, c)""",
        ", int64[2] w = {-1, 4}",
    ),
    "an open size that is 0 keeps another one": (
        "float[2,N,M] x",
        "s = Shape (x) n = Gather (s, second) c = Concat <axis = 0> (n, rest) y = Reshape (x, c)",
        "t = Transpose <perm = [1, 0, 2]> (x) f = Flatten (t) s = Shape (f) y = Reshape (x, s)",
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_other_shapes_are_not_one(name: str) -> None:
    inputs, ours, theirs, constants = OTHER[name]
    found = verdict(model(inputs, ours, constants), model(inputs, theirs, constants))
    assert found is not ProofVerdict.PROVED


CAST = """s = Shape (x) n = Gather (s, first) q = Cast <to = {}> (n) l = Cast <to = 7> (q)
    c = Concat <axis = 0> (l, rest) y = Reshape (x, c)"""


@pytest.mark.cases(fast=4)
@pytest.mark.parametrize(
    ("rows", "to", "is_kept"),
    [
        (255, 2, True),
        (256, 2, True),  # 256 becomes 0, which keeps the size
        (257, 2, False),
        (300, 2, False),
        (127, 3, True),
        (128, 3, False),
        (300, 3, False),
        (1, 9, True),
        (2, 9, False),
        (300, 9, False),
    ],
)
def test_sizes_wrap_around_in_narrow_types(rows: int, to: int, is_kept: bool) -> None:
    ours = model(f"float[{rows},44] x", CAST.format(to))
    theirs = model(f"float[{rows},44] x", "y = Reshape (x, w)", f", int64[2] w = {{{rows}, 44}}")
    assert (verdict(ours, theirs) is ProofVerdict.PROVED) == is_kept


@pytest.mark.parametrize(("size", "windows"), [(3, 2), (5, 3), (7, 4), (4, 3), (6, 4)])
def test_windows_that_start_in_the_padding_are_not_counted(size: int, windows: int) -> None:
    pool = "p = MaxPool <kernel_shape = [2], strides = [2], pads = [1, 1], ceil_mode = 1> (x)"
    ours = model(f"float[1,1,{size}] x", f"{pool} s = Shape (p) y = Reshape (p, s)")
    wrong = model(
        f"float[1,1,{size}] x",
        f"{pool} y = Reshape (p, w)",
        f", int64[3] w = {{1, {windows + 1}, 1}}",
    )
    assert verdict(ours, wrong) is not ProofVerdict.PROVED


@pytest.mark.parametrize("place", [0, 1])
def test_what_a_file_states_of_inner_values_is_not_believed(place: int) -> None:
    pair = [
        model("float[2,3] x", f"r = {name} (x) s = Shape (r) y = Tile (x, s)")
        for name in ("Relu", "Relu")
    ]
    truth = model("float[2,3] x", "r = Relu (x) y = Tile (x, w)", ", int64[2] w = {3, 2}")
    relu = pair[place].graph[0].outputs[0]
    relu.type, relu.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([3, 2])
    assert verdict(pair[place], truth) is not ProofVerdict.PROVED
    assert verdict(*pair) is ProofVerdict.PROVED


def test_a_certificate_lists_what_a_proof_rests_on() -> None:
    inferred_size = "y = Reshape (x, w)"
    theirs = model(IMAGE, inferred_size, ", int64[2] w = {-1, 24}")
    document = proved(model(IMAGE, FLAT), theirs)
    assert document["facts"] == [
        {
            "model": "reference",
            "tensor": "x",
            "type": "float32",
            "shape": ["N", 3, 8],
            "because": "stated for the input",
        },
        {
            "model": "reference",
            "tensor": "y",
            "type": "float32",
            "shape": ["N", 24],
            "because": "Flatten of x",
        },
        {
            "model": "candidate",
            "tensor": "x",
            "type": "float32",
            "shape": ["N", 3, 8],
            "because": "stated for the input",
        },
        {
            "model": "candidate",
            "tensor": "y",
            "type": "float32",
            "shape": ["N", 24],
            "because": "Reshape of x, w",
        },
    ]
    assert OPEN_SIZE("N") in texts(document)


def test_values_that_sizes_determine_are_listed() -> None:
    ours = model("float[2,3] x", "s = Shape (x) y = Tile (x, s)")
    document = proved(ours, model("float[2,3] x", "y = Tile (x, w)", ", int64[2] w = {2, 3}"))
    (fact,) = [fact for fact in document["facts"] if fact["tensor"] == "s"]
    assert (fact["value"], fact["type"], fact["because"]) == ([2, 3], "int64", "Shape of x")


def test_a_size_that_one_model_fixes_is_listed() -> None:
    document = proved(model("float[1,3,8] x", FLAT), model(IMAGE, CHAIN))
    found = {
        f["model"]: (f["shape"], f["because"]) for f in document["facts"] if f["tensor"] == "x"
    }
    assert found == {
        "reference": ([1, 3, 8], "stated for the input"),
        "candidate": ([1, 3, 8], "stated for the inputs of both models"),
    }


def test_dimensions_of_one_name_are_a_condition_where_they_matter() -> None:
    inputs, body = "float[N,3] x, float[N,3] z", "s = Shape ({}) y = Reshape (x, s)"
    document = proved(model(inputs, body.format("x")), model(inputs, body.format("z")))
    assert ONE_SIZE("N", "x[0], z[0]") in texts(document)
    document = proved(model(inputs, "y = Add (x, z)"), model(inputs, "y = Add (z, x)"))
    assert not any("same name" in text for text in texts(document))


def test_a_fact_that_is_changed_is_refused() -> None:
    pair = model(IMAGE, FLAT), model(IMAGE, CHAIN)
    document = proved(*pair)
    for place, fact in enumerate(document["facts"]):
        for key, value in (("shape", ["N", 3, 9, 1, 1]), ("type", "float64")):
            changed = copy.deepcopy(document)
            changed["facts"][place] = fact | {key: value}
            with pytest.raises(EquivalenceError, match="another type or shape"):
                verify(changed, *pair)
    changed = copy.deepcopy(document)
    changed["conditions"].pop()
    with pytest.raises(EquivalenceError, match=r"condition .* is missing"):
        verify(changed, *pair)


def test_an_input_whose_type_is_stated_as_undefined():
    text = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[2,4] x, uint8[2,4] u) => (float[2,4] v) <float s = {0.5}, uint8 z = {128}> {
            q = QuantizeLinear (x, s, z)
            a = com.microsoft.QLinearAdd (u, s, z, q, s, z, s, z)
            v = DequantizeLinear (a, s, z) }"""
    ours, theirs = ir.from_onnx_text(text), ir.from_onnx_text(text)
    theirs.graph.inputs[0].type = ir.TensorType(ir.DataType.UNDEFINED)
    theirs.graph[1].domain = "unknown"
    assert qgraph.prove(ours, theirs).verdict is ProofVerdict.UNDECIDED
