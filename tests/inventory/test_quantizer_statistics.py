"""Statistics of tensors and quantizers, against counts by hand."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from qgraph.execution.prepare import Batches, prepare, run_batches
from qgraph.inventory.statistics import QuantizerStatistics, Statistics, TensorStatistics
from qgraph.model import load
from qgraph.transforms import ConvertDialect

HEAD = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2,
    "org.openvinotoolkit": 1]> g (float[N,4] x) => (float[N,4] y)"""
QONNX = "qonnx.custom_op.general"


def gathered(body: str, head: str, x: np.ndarray, size: int | None = None) -> QuantizerStatistics:
    """The statistics of the one quantizer of a graph."""
    model = ir.from_onnx_text(f"{HEAD} <{head}> {{ {body} }}")
    return collect(model, x, size).quantizers[0]


def collect(model: ir.Model, x: np.ndarray, size: int | None = None) -> Statistics:
    found = Statistics(model, ["y"])
    batches = Batches(model.graph, {"x": x}, size)
    run_batches(prepare(model, "numpy"), batches, found.add, taps=found.taps)
    return found


X = np.float32([[-9, -4.4, -4.6, 0.4], [0.6, 3.4, 3.6, 12], [np.nan, np.inf, -np.inf, 0]])
QUANT = f'y = {QONNX}.Quant <signed = 1, narrow = 0, rounding_mode = "ROUND"> (x, s, z, b)'


@pytest.mark.parametrize("size", [None, 1, 2])
def test_codes_and_clipping_of_integers(size):
    found = gathered(QUANT, "float s = {1}, float z = {0}, float b = {3}", X, size)
    assert (found.format, found.levels) == ("int3", 8)
    # nearest codes -9, -5, 4, 12 and both infinities are outside -4 .. 3; -4.4 rounds into it
    assert (found.inputs, found.clipped) == (12, 6)
    assert found.clipped_share == 0.5
    assert found.codes == [(-4, 4), (0, 2), (1, 1), (3, 4)]
    assert (found.values.elements, found.values.nan) == (12, 1)
    assert (found.values.min, found.values.max) == (-4, 3)


def test_the_order_of_offset_and_rounding_decides_what_is_clipped():
    """3.5 steps and an offset of 4: 7.5 goes to 8, which is clipped; 3.5 alone goes to 4."""
    x = np.float32([[3.5, 0, 0, 0]])
    body = f'y = {QONNX}.Quant <signed = 0, narrow = 0, rounding_mode = "ROUND"> (x, s, z, b)'
    assert gathered(body, "float s = {1}, float z = {4}, float b = {3}", x).clipped == 1
    assert gathered(body, "float s = {1}, float z = {3}, float b = {3}", x).clipped == 0
    body = "q = QuantizeLinear (x, s, z)  y = DequantizeLinear (q, s, z)"
    x = np.float32([[127.5, -128.5, -129, 0]])
    found = gathered(body, "float s = {1}, int8 z = {0}", x)
    assert (found.clipped, found.codes) == (2, [(-128, 2), (0, 1), (127, 1)])


def test_ranges_count_from_their_lower_end():
    body = "y = org.openvinotoolkit.FakeQuantize <levels = 5> (x, lo, hi, lo, hi)"
    x = np.float32([[-1.1, -2.2, 0, 3], [1, -0.9, -3, 9]])
    found = gathered(body, "float lo = {-2}, float hi = {2}", x)
    assert found.levels == 5
    # -2.2 rounds to the lower end; 3, -3 and 9 do not
    assert found.clipped == 3
    assert found.codes == [(0, 2), (1, 2), (2, 1), (3, 1), (4, 2)]


def test_float_formats_count_by_value():
    body = f'y = {QONNX}.FloatQuant <rounding_mode = "ROUND"> (x, s, e, m, bias, top)'
    head = """float s = {0.5}, float e = {2}, float m = {1}, float bias = {1}, float top = {6}"""
    x = np.float32([[3, 3.4, 3.6, -0.2], [0.3, -0.0, 1.1, 0]])
    found = gathered(body, head, x)
    assert (found.format, found.bits, found.levels) == ("e2m1", 4, 15)
    # in units of the scale: 6, 6.8, 7.2, -0.4, 0.6, 0, 2.2, 0; 7.2 is nearer to 8 than to 6
    assert found.clipped == 1
    assert found.codes == [(-0.5, 1), (0, 2), (0.5, 1), (2, 1), (6, 3)]


def test_signs_are_never_clipped():
    found = gathered(f"y = {QONNX}.BipolarQuant (x, s)", "float s = {0.5}", X[:2])
    assert (found.clipped, found.clipped_share) == (None, None)
    assert found.codes == [(-1, 3), (1, 5)]


def test_weights_are_looked_at_once():
    body = QUANT.replace("(x,", "(w,").replace("y =", "q =") + " y = Add (x, q)"
    head = "float[4] w = {-9, 0, 1, 2}, float s = {1}, float z = {0}, float b = {3}"
    found = gathered(body, head, X[:2], 1)
    assert found.weight
    assert (found.inputs, found.clipped) == (4, 1)
    assert found.codes == [(-4, 1), (0, 1), (1, 1), (2, 1)]
    body = "d = DequantizeLinear (w, s)  y = Add (x, d)"
    found = gathered(body, "int8[4] w = {-9, 0, 1, 1}, float s = {0.5}", X[:2])
    assert (found.clipped, found.codes) == (None, [(-9, 1), (0, 1), (1, 2)])


def test_what_cannot_be_known_has_a_reason():
    body = f"t = Abs (z) {QUANT.replace('s, z', 't, z')}"
    found = gathered(body, "float z = {0}, float b = {4}", X)
    assert "unknown before run time" in str(found.reason)
    assert found.to_json()["codes"] is None
    inner = QUANT.replace("y =", "t =")
    body = f"""c = ReduceMax <keepdims = 0> (x)  h = Cast <to = 9> (c)
        y = If (h) <then_branch = a () => (float[N,4] t) {{ {inner} }},
                    else_branch = e () => (float[N,4] u) {{ u = Neg (x) }}>"""
    found = gathered(body, "float s = {1}, float z = {0}, float b = {4}", X[:2])
    assert "subgraph" in str(found.reason)


def test_wide_formats_are_not_counted_code_by_code():
    found = gathered(QUANT, "float s = {1}, float z = {0}, float b = {24}", X)
    assert (found.levels, found.codes) == (None, None)
    assert found.clipped == 2


def test_a_conversion_does_not_change_the_statistics(models):
    """Codes and clipping are told from values, whatever the dialect."""
    images = np.load(models / "brev_cnn_w4a4.npz")["x"][:32]
    model = load(models / "brev_cnn_w4a4.onnx")
    before = collect(model.ir, images, 10).quantizers
    model.apply(ConvertDialect(to="qdq"))
    after = collect(model.ir, images, 10).quantizers
    assert [each.codes for each in after] == [each.codes for each in before]
    for old, new in zip(before, after, strict=True):
        if not old.weight:
            assert new.clipped == old.clipped
            assert sum(count for _, count in new.codes) == new.values.elements
        counts = Counter(dict(new.codes))
        assert len(counts) <= old.levels


def test_tensors_in_parts_are_as_in_one_piece():
    whole = np.float32([[1, np.nan], [-3, 2], [0, np.inf]])
    found, single = TensorStatistics("t"), TensorStatistics("t")
    single.add(whole)
    for row in whole:
        found.add(row[None])
    assert found == single
    assert found.to_json() == {
        "name": "t", "dtype": "float32", "shape": [3, 2], "elements": 6, "nan": 1,
        "min": -3, "max": np.inf, "mean": np.inf,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros((0, 3), np.float32), (None, None, None)),
        (np.array(["a"], object), (None, None, None)),
        (np.array([True, False]), (0, 1, 0.5)),
        (np.array([1, 2], ml_dtypes.bfloat16), (1, 2, 1.5)),
        (np.array([-8, 7], ml_dtypes.int4), (-8, 7, -0.5)),
        (np.full(3, np.nan, np.float32), (None, None, None)),
        # exact in double precision only
        (np.float32([2**24, 1, 1, -(2**24)]), (-(2**24), 2**24, 0.5)),
    ],
)
def test_tensors_of_every_kind(array, expected):
    found = TensorStatistics("t")
    found.add(array)
    assert (found.min, found.max, found.mean) == expected
    assert found.elements == array.size


def test_means_of_both_infinities_and_shapes_that_differ():
    found = TensorStatistics("t")
    found.add(np.float32([np.inf, -np.inf]))
    assert np.isnan(found.mean)
    found.add(np.zeros((2, 2), np.float32))
    assert found.shape is None
    scalar = TensorStatistics("s")
    for _ in range(3):
        scalar.add(np.asarray(1.0))
    assert scalar.shape == (3,)


def test_elements_of_a_sequence_have_their_own():
    model = ir.from_onnx_text(f"{HEAD} {{ y = Neg (x) }}")
    found = Statistics(model, ["q"], quantizers=False)
    found.add("q", [np.float32([1]), np.float32([2])])
    found.add("q", None)
    assert [each.name for each in found.tensors] == ["q.0", "q.1"]
    assert (found.quantizers, found.taps) == ([], [])
