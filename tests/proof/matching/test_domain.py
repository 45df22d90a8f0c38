"""The inputs that both of two models take."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from qgraph.graph.interface import common_domain


def model(inputs: str) -> ir.Model:
    name = inputs.split()[1].rstrip(",")
    return ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 17]>
        g ({inputs}) => (float y) {{ y = Relu ({name}) }}"""
    )


def shapes(reference: str, candidate: str) -> list[str]:
    domain = common_domain(model(reference), model(candidate))
    return [
        " ".join(f"{name}{list(shape)}" for name, shape in sorted(side.items()))
        for side in domain.interfaces
    ]


CASES = {
    "open in both": ("float[N,3] x", "float[M,3] x", "x[N, 3]", "x[N, 3]"),
    "fixed in one": ("float[N,3] x", "float[1,3] x", "x[1, 3]", "x[1, 3]"),
    "fixed in the other": ("float[1,K] x", "float[N,3] x", "x[1, 3]", "x[1, 3]"),
    "another name, by position": ("float[N] x", "float[M] z", "x[N]", "z[N]"),
    "one name, one size": (
        "float[N] x, float[N] z", "float[N] x, float[M] z", "x[N] z[N]", "x[N] z[N]",
    ),
    "one name, fixed elsewhere": (
        "float[N] x, float[N] z", "float[4] x, float[M] z", "x[4] z[4]", "x[4] z[4]",
    ),
    "a name is its own model's": (
        "float[N] x, float[M] z", "float[M] x, float[N] z", "x[N] z[M]", "x[N] z[M]",
    ),
    "contradictory": ("float[2] x", "float[3] x", "x[2]", "x[3]"),
    "contradictory by a name": (
        "float[N] x, float[N] z", "float[2] x, float[3] z", "x[2] z[3]", "x[2] z[3]",
    ),
    "other ranks": ("float[N] x", "float[N,M] x", "x[N]", "x[N_1, M]"),
    "no rank": ("float[...] x", "float[N,3] x", "x[N, 3]", "x[N, 3]"),
    "no name": ("float[?] x", "float[?] x", "x[size_x_0]", "x[size_x_0]"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_shape_for_each_pair(case: str) -> None:
    reference, candidate, ours, theirs = CASES[case]
    if "..." in reference:
        first, second = model("float[N] x"), model(candidate)
        first.graph.inputs[0].shape = None
        domain = common_domain(first, second)
        assert [str(list(side["x"])) for side in domain.interfaces] == ["[N, 3]", "[N, 3]"]
        assert domain.reasons[0]["x"] == "stated for the input of the other model"
        return
    assert shapes(reference, candidate) == [ours, theirs]


def test_names_cannot_pass_for_polynomials() -> None:
    one, other = model("float[A] x, float[B] z"), model("float[A] x, float[B] z")
    for value, name in zip(
        (*one.graph.inputs, *other.graph.inputs), ["2*n", "n", "floor", "m"], strict=True
    ):
        value.shape = ir.Shape([name])
    names = [
        str(size) for side in common_domain(one, other).interfaces for (size,) in side.values()
    ]
    assert all(name.isidentifier() and name != "floor" for name in names)
    assert names[0] != names[1]
    assert names[:2] == names[2:]


def test_sizes_of_several_dimensions_are_listed() -> None:
    domain = common_domain(model("float[N,N] x, float[M] z"), model("float[A,B] x, float[A] z"))
    assert domain.shared == {"N": "x[0], x[1], z[0]"}
    (size,) = {str(size) for side in domain.interfaces for shape in side.values() for size in shape}
    assert size == "N", "one model equates the dimensions of x, and the other that of z with them"


def test_models_with_other_numbers_of_inputs_have_no_pairs() -> None:
    assert shapes("float[N] x", "float[3] a, float[N] b") == ["x[N]", "a[3] b[N_1]"]


def test_a_negative_size_is_open() -> None:
    one, other = model("float[N] x"), model("float[5] x")
    one.graph.inputs[0].shape = ir.Shape([-1])
    assert [str(list(side["x"])) for side in common_domain(one, other).interfaces] == ["[5]", "[5]"]
