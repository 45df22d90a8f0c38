"""Bounds behind operators that move elements, checked by executing these on numbers of elements."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.conditions import OPEN_SIZE
from qgraph.text import json_text
from tests.verify.checking import checked, leaves

TEXT = """<ir_version: 10, opset_import: ["": 21]>
    net (int8[SIZE,4,4,6] x) => (int8 y)
    <int8[4,4,1,1] w = {W}, float s = {0.3}, float[4] s_w = {S_W}, int8 z = {0}, float s_y = {5},
     float f = {F}, float[4,1,1] g = {G}, float gap = {-1.5}, float[4] scales = {1, 1, 2, 1.5},
     int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3},
     int64[2] pick = {2, 1}, int64[2] pair = {1, 2}, int64[2] parts = {1, 3},
     int64[3] middle = {1, 2, 1}, int64[8] pads = {0, 0, 1, 2, 0, 0, 1, 0},
     int64[8] shifted = {0, 0, 0, 2, 0, 0, 2, 0}, int64[4] wide = {1, 1, 2, 1},
     int64[5] open = {0, 4, 1, 4, 6}, int64[5] whole = {1, 4, 3, 4, 6},
     int64[6] planes = {0, 2, 2, 1, 4, 6}, int64[4] spread = {0, 1, 8, 12},
     int64[4] turned = {0, 4, 4, 6}, int64[2] flat = {1, 96}> {
        a = DequantizeLinear (x, s, z)
        v = DequantizeLinear <axis = 0> (w, s_w)
        m = Conv (a, v)
        k = Mul (m, g)
        n = Mul (k, f)
        MOVE
        y = QuantizeLinear (t, s_y, z)
    }"""

WEIGHTS = [[3, -5, 7, 2], [-1, 6, 90, -101], [4, 8, -2, 7], [5, 3, -9, 1]]
SCALES, FACTORS = [0.05, 0.04, 0.03, 0.02], [0.5, 0.7, 1.1, 1.9]

MOVES = {
    "Transpose": "t = Transpose <perm = [0, 2, 1, 3]> (n)",
    "Reshape": "t = Reshape (n, flat)",
    "Flatten": "i = Transpose <perm = [0, 3, 1, 2]> (n) t = Flatten <axis = 1> (i)",
}
UNKNOWN_MOVES = {
    "Concat": "r = Relu (n) t = Concat <axis = 1> (n, r)",
    "Concat of samples": "t = Concat <axis = 0> (n, n)",
    "Split": "p, q = Split <axis = 1> (n, parts) t = Concat <axis = 1> (q, p)",
    "Slice": "t = Slice (n, one, three, one)",
    "Slice from the end": "i = Neg (one) e = Neg (three) t = Slice (n, i, e, three, i)",
    "Gather": "t = Gather <axis = 1> (n, pick)",
    "Resize": 't = Resize <mode = "nearest"> (n, , scales)',
    "DepthToSpace": "t = DepthToSpace <blocksize = 2> (n)",
    "SpaceToDepth": "t = SpaceToDepth <blocksize = 2> (n)",
    "Expand": "u = Reshape (n, open) t = Expand (u, whole)",
    "Tile": "t = Tile (n, wide)",
    "Pad": "r = Relu (n) t = Pad (r, pads)",
    "Pad with a number": "t = Pad (n, pads, gap)",
    "Pad at its edges": 't = Pad <mode = "reflect"> (n, pads)',
}


def layer(move: str, *, folded: bool, size: str = "1") -> ir.Model:
    """Return a model with factors of its own, or multiplied by that of all channels."""
    text = TEXT.replace("MOVE", move).replace("SIZE", size)
    text = text.replace("{F}", "{1}" if folded else "{1.3}")
    factors = [factor * (1.3001 if folded else 1) for factor in FACTORS]
    for name, numbers in (("{W}", itertools.chain(*WEIGHTS)), ("{S_W}", SCALES), ("{G}", factors)):
        text = text.replace(name, f"{{{', '.join(map(str, numbers))}}}")
    return ir.from_onnx_text(text)


def stated(pair: tuple[ir.Model, ir.Model]) -> dict[str, object]:
    return dict(json.loads(json_text(qgraph.prove(*pair, evidence=True, within="8step").to_json())))


def least_shift(channels: Sequence[int]) -> Fraction:
    """How far both layers lie apart at least, in steps of the codes, where all products add up."""
    exact = lambda number: Fraction(float(np.float32(number)))  # noqa: E731
    apart = []
    for channel in channels:
        total = sum((127 if w > 0 else -128) * w for w in WEIGHTS[channel])
        real = total * exact(0.3) * exact(SCALES[channel]) / 5
        one, other = exact(FACTORS[channel]) * exact(1.3), exact(FACTORS[channel] * 1.3001)
        apart.append(abs(real * (one - other)))
    return max(apart)


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize("move", MOVES)
def test_a_bound_behind_a_movement_is_checked_and_a_smaller_one_is_not(move):
    pair = layer(MOVES[move], folded=False), layer(MOVES[move], folded=True)
    document = stated(pair)
    result = checked(document, *pair)
    assert str(result.verdict) == "bounded", [part.reason for part in result.parts]
    least = float(least_shift(range(4)))
    for figure in ("deviation_steps", "tie_distance_steps", "ideal_shift", "max_steps"):
        tampered = copy.deepcopy(document)
        bound = next(r["bound"] for r in tampered["regions"] if r["verdict"] == "bounded")
        assert bound[figure] >= least
        bound |= {figure: 0.99 * least if figure != "max_steps" else 0, "channels": []}
        assert leaves(tampered, *pair), figure


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize("move", UNKNOWN_MOVES)
def test_a_bound_behind_an_unknown_movement_is_not_checked(move):
    pair = tuple(layer(UNKNOWN_MOVES[move], folded=folded) for folded in (False, True))
    document = stated(pair)
    bound = next(r["bound"] for r in document["regions"] if r["verdict"] == "bounded")
    for figures in ({}, {"ideal_shift": 0.0, "deviation_steps": 0.0, "channels": []}):
        bound |= figures
        result = checked(document, *pair)
        assert str(result.verdict) == "undecided"
        (finding,) = (part for part in result.regions if str(part.status) != "checked")
        assert str(finding.status) == "unchecked"
        assert "the checker has no bound for" in str(finding.reason)


SAME = [
    ("t = Transpose <perm = [0, 2, 3, 1]> (n)",
     "i = Transpose <perm = [0, 3, 2, 1]> (n) t = Transpose <perm = [0, 2, 1, 3]> (i)", "N"),
    ("t = Identity (n)",
     "i = Transpose <perm = [2, 0, 3, 1]> (n) t = Transpose <perm = [1, 3, 0, 2]> (i)", "N"),
]  # fmt: skip
"""Two ways to move the same elements, and the number of samples."""

OTHER = [
    ("t = Slice (n, one, three, two)", "t = Gather <axis = 2> (n, pick)", "1"),
    ("t = Slice (n, zero, one, zero)", "i = Neg (one) t = Gather <axis = 0> (n, i)", "N"),
    ("t = Reshape (n, turned)", "t = Transpose <perm = [0, 2, 1, 3]> (n)", "N"),
    ("t = DepthToSpace <blocksize = 2> (n)",
     """i = Reshape (n, planes) j = Transpose <perm = [0, 3, 4, 2, 5, 1]> (i)
        t = Reshape (j, spread)""", "N"),
    ("t = Pad (n, pads)", "t = Pad (n, shifted)", "1"),
    ("t = Pad (n, pads)", "t = Pad (n, pads, gap)", "1"),
]  # fmt: skip


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize(("one", "other", "size"), SAME)
def test_movements_of_the_same_elements_are_one_movement(one, other, size):
    """The certificate is that of a candidate with the same operator, which may not reshape."""
    pair = layer(one, folded=False, size=size), layer(one, folded=True, size=size)
    document = stated(pair)
    document["conditions"].append(OPEN_SIZE("N").to_json())
    result = checked(document, pair[0], layer(other, folded=True, size=size))
    assert str(result.verdict) == "bounded", [part.reason for part in result.parts]


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize(("one", "other", "size"), OTHER)
def test_movements_of_other_elements_are_others(one, other, size):
    pair = layer(one, folded=False, size=size), layer(one, folded=True, size=size)
    result = checked(stated(pair), pair[0], layer(other, folded=True, size=size))
    assert str(result.regions[0].status) != "checked"


OPEN = """<ir_version: 10, opset_import: ["": 21]>
    net (uint8[SIZES] x) => (uint8[] y)
    <float s = {0.25}, float t = {STEP}, uint8 z = {3}, int64 last = {-1}, int64 third = {2},
     int64[3] before = {2, 3, -1}, int64[3] behind = {2, -1, 3}, float[K,2] w = {WEIGHTS}> {
        a = DequantizeLinear (x, s, z)
        MOVE
        p = MatMul (r, w)
        y = QuantizeLinear (p, t, z) }"""


def open_model(sizes: str, move: str, *, rows: int, step: str = "0.7") -> ir.Model:
    weights = ", ".join(["1", "-0.7", "0.3", "2", "3", "0.1"][: 2 * rows])
    texts = {"SIZES": sizes, "MOVE": move, "K": str(rows), "STEP": step, "WEIGHTS": weights}
    text = OPEN
    for name, value in texts.items():
        text = text.replace(name, value)
    return ir.from_onnx_text(text)


PLANE = "c = Transpose <perm = [2, 0, 1]> (a) "
OUTER = "b = Transpose <perm = [1, 0, 2]> (a) c = Add (a, b) "


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(
    ("sizes", "rows", "one", "other"),
    [
        (
            "N,3,2",
            3,
            PLANE + "b = Reshape (c, before) r = Transpose <perm = [0, 2, 1]> (b)",
            PLANE + "b = Transpose <perm = [0, 2, 1]> (c) r = Reshape (b, behind)",
        ),
        ("N,N,2", 2, "r = Gather (a, last)", "r = Gather (a, third)"),
        ("N,1,2", 2, OUTER + "r = Gather (c, last)", OUTER + "r = Gather (c, third)"),
    ],
)
def test_movements_that_are_one_for_three_samples_are_not_one(sizes, rows, one, other):
    """Where N is 3, a Reshape to ``[3, N]`` is a matrix itself, and the last of N is the third."""
    ours, theirs, forged = (
        open_model(sizes, move, rows=rows, step=step)
        for move, step in ((one, "0.7"), (one, "0.70000005"), (other, "0.70000005"))
    )
    x = np.arange(5 * 6, dtype=np.uint8).reshape(5, 3, 2) * 7
    if sizes == "N,3,2":
        runs = [qgraph.load(model).run({"x": x})["y"].astype(int) for model in (ours, forged)]
        assert np.abs(runs[1] - runs[0]).max() > 5
    document = stated((ours, theirs))
    document["conditions"].append(OPEN_SIZE("N").to_json())
    assert str(checked(document, ours, forged).verdict) == "undecided"


MIXED = """<ir_version: 10, opset_import: ["": 21]> net (int8[2,3] x) => (float[3,2] y)
    <float[3] s = {0.04, 0.3, STEP}, int64[2] sizes = {3, 2}> {
        a = DequantizeLinear <axis = 1> (x, s)
        y = Reshape (a, sizes)
    }"""


def test_steps_of_the_widest_range_are_checked():
    """A step of an output whose channels are mixed is one of the range of all of them."""
    pair = tuple(ir.from_onnx_text(MIXED.replace("STEP", step)) for step in ("0.02", "0.020001"))
    document = stated(pair) | {"facts": []}
    assert document["verdict"] == "bounded"
    assert str(checked(document, *pair).verdict) == "bounded"
