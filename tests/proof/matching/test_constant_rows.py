"""Big constants are compared by rows as they are compared whole."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.numerics import values
from qgraph.ops.known_values import KnownValues
from qgraph.proof.matching import constant_rows
from qgraph.proof.matching.constant_rows import compare_constants, rows_of

QUANT = "qonnx.custom_op.general.Quant<signed = 1, narrow = 0>"
FORMS = {
    "per tensor": f"y = {QUANT}(w, s, z, b)",
    "per row": f"y = {QUANT}(w, r, z, b)",
    "per column": f"y = {QUANT}(w, c, z, b)",
    "codes by row": "q = QuantizeLinear<axis = 0>(w, r1) y = DequantizeLinear<axis = 0>(q, r1)",
    "codes by column": "q = QuantizeLinear<axis = 1>(w, c1) y = DequantizeLinear<axis = 1>(q, c1)",
    "blocks of rows": "q = QuantizeLinear<axis = 0, block_size = 4>(w, br) "
    "y = DequantizeLinear<axis = 0, block_size = 4>(q, br)",
    "blocks of columns": "q = QuantizeLinear<axis = 1, block_size = 4>(w, bc) "
    "y = DequantizeLinear<axis = 1, block_size = 4>(q, bc)",
    "another shape": f"v = Reshape(w, seen) t = {QUANT}(v, s, z, b) y = Reshape(t, back)",
    "pairs of rows": f"t = {QUANT}(wp, p, z, b) y = Reshape(t, rows)",
    "pairs of rows, then rows": "t = Mul(wp, p) v = Reshape(t, rows) y = Mul(v, r)",
    "joined rows": "t = Cast<to = 1>(w) v = Reshape(t, pairs) u = Mul(v, p) y = Reshape(u, rows)",
    "plain": "t = Mul(w, r) y = Add(t, w)",
}
ROWS, COLUMNS = 22, 12


def side(body: str, change: float) -> tuple[KnownValues, ir.Value]:
    names = ["w", "s", "z", "b", "r", "c", "r1", "c1", "br", "bc", "wp", "p"]
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
        g (float[N] x) => (float[{ROWS},{COLUMNS}] y)
        <{", ".join(f"float {n} = {{0}}" for n in names)},
         int64[3] seen = {{{ROWS}, 3, 4}}, int64[2] back = {{{ROWS}, -1}},
         int64[3] pairs = {{-1, 2, {COLUMNS}}}, int64[2] rows = {{-1, {COLUMNS}}}> {{ {body} }}"""
    )
    rng = np.random.default_rng(1)
    w = rng.normal(0, 1, (ROWS, COLUMNS)).astype(np.float32)
    w[17, 5] += np.float32(change)

    def positive(*shape: int) -> np.ndarray:
        return (rng.random(shape) * 0.3 + 0.05).astype(np.float32)

    arrays = {
        "w": w,
        "s": np.float32(0.1),
        "z": np.float32(0),
        "b": np.float32(4),
        "r": positive(ROWS, 1),
        "c": positive(1, COLUMNS),
        "r1": positive(ROWS),
        "c1": positive(COLUMNS),
        "br": positive(6, COLUMNS),
        "bc": positive(ROWS, 3),
        "wp": w.reshape(ROWS // 2, 2, COLUMNS),
        "p": positive(ROWS // 2, 1, COLUMNS),
    }
    for name, array in arrays.items():
        value = model.graph.initializers[name]
        value.const_value = ir.tensor(array, name=name)
        value.shape = ir.Shape(np.shape(array))
    known = KnownValues(model.graph.opset_imports)
    known.enter(list(model.graph))
    return known, model.graph.outputs[0]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constant_rows, "_WHOLE_ELEMENTS", 1)
    monkeypatch.setattr(constant_rows, "_PIECE", 5 * COLUMNS)
    monkeypatch.setattr(values, "_PIECE", 7)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("name", FORMS)
def test_rows_are_those_of_the_whole(name: str) -> None:
    known, value = side(FORMS[name], 0)
    rows, whole = rows_of(known, value), known.array(value)
    assert rows is not None
    assert whole is not None
    for start in range(0, ROWS, 4):
        piece = rows.read(start, min(start + 4, ROWS))
        assert piece.dtype == whole.dtype
        assert piece.tobytes() == whole[start : start + 4].tobytes()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("change", [0, 1e-7, 1])
@pytest.mark.parametrize("name", FORMS)
def test_comparison_is_that_of_the_whole(
    name: str, change: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = side(FORMS[name], 0), side(FORMS[name], change)
    by_rows = compare_constants(*sides)
    monkeypatch.setattr(constant_rows, "_WHOLE_ELEMENTS", 1 << 30)
    assert by_rows == compare_constants(*sides)
    assert by_rows is not None
    ours, theirs = (known.array(value) for known, value in sides)
    assert ours is not None
    assert theirs is not None
    differing = np.flatnonzero(ours != theirs)
    assert by_rows[0].differing == len(differing)
    if len(differing):
        assert by_rows[0].index == differing[0] == 17 * COLUMNS + 5
        assert by_rows[1] is not None
        assert by_rows[1].reference == ours.flat[differing[0]]


@pytest.mark.usefixtures("small_pieces")
def test_signs_of_zeros_are_counted() -> None:
    sides = side("y = Mul(w, z)", 0), side("t = Mul(w, z) y = Abs(t)", 0)
    found = compare_constants(*sides)
    negative = np.signbit(sides[0][0].array(sides[0][1]))
    assert found is not None
    assert Exactness.of(found[0]) is Exactness.VALUES
    assert found[0].zero_sign == np.count_nonzero(negative) > 0
    assert found[0].index == int(np.argmax(negative))


@pytest.mark.parametrize("body", ["y = Transpose(w)", "y = Add(s, w)", "y = Softmax(w)"])
@pytest.mark.usefixtures("small_pieces")
def test_others_are_computed_whole(body: str) -> None:
    assert rows_of(*side(body, 0)) is None


@pytest.mark.usefixtures("small_pieces")
def test_constants_that_are_computed_at_once_are_computed_once() -> None:
    ours, theirs = (side(FORMS["codes by row"], change) for change in (0, 1))
    value = theirs[1].producer().inputs[0].producer().inputs[0]
    array, calls = value.const_value.numpy(), []

    def computed() -> ir.Tensor:
        calls.append(1)
        return ir.tensor(array)

    value.const_value = ir.LazyTensor(computed, ir.DataType.FLOAT, ir.Shape(array.shape))
    rows = rows_of(*theirs)
    assert rows is not None
    found = compare_constants(ours, theirs)
    assert found is not None
    assert found[0].index == 17 * COLUMNS + 5
    assert len(calls) == 2  # by rows_of, once each
