"""Big weights in files stay there until the model is saved, and come out as the same codes."""

from __future__ import annotations

import json
import os
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.errors import ModelError
from qgraph.exactness import Exactness, Method
from qgraph.graph.deferred import DeferredTensor
from qgraph.model import Model, load
from qgraph.quantizers.dialects import qdq_codes
from qgraph.quantizers.dialects.parts import Scales
from qgraph.quantizers.weights import job
from qgraph.reports import SiteStatus
from qgraph.transforms import Writing, rewrite
from qgraph.transforms.convert import FoldWeights

IMPORTS = '["": {}, "qonnx.custom_op.general": 1, "org.openvinotoolkit": 1]'
ROWS, COLUMNS = 12, 96


@pytest.fixture(autouse=True)
def everything_is_big(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of a few bytes are treated like those of gigabytes, in pieces of a few elements."""
    monkeypatch.setattr(qdq_codes, "LEAST_BYTES", 64)
    monkeypatch.setattr(job, "PIECE", 70)
    monkeypatch.setattr(job, "PART_BYTES", 1024)


def weights(shape: tuple[int, ...] = (ROWS, COLUMNS)) -> np.ndarray:
    """Numbers on both sides of every range, on ties, and zeros of both signs."""
    w = np.random.default_rng(1).normal(size=shape).astype(np.float32) * np.float32(2)
    flat = w.reshape(-1)
    flat[:7] = [0.0, -0.0, 0.25, -0.25, 0.375, 1e30, -1e30]
    return w


def stored(
    folder: Path,
    body: str,
    arrays: dict[str, np.ndarray],
    opset: int = 21,
    shape: tuple[int, ...] = (ROWS, COLUMNS),
) -> Path:
    """Write a model ``y = x * q`` in which ``body`` computes q; all arrays lie in a data file."""
    dims = ", ".join(map(str, shape))
    names = ", ".join(f"float[1] {name} = {{0}}" for name in arrays)
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: {IMPORTS.format(opset)}>
        g (float[{dims}] x) => (float[{dims}] y) <{names}> {{ {body}  y = Mul (x, q) }}"""
    )
    for name, array in arrays.items():
        value = model.graph.initializers[name]
        value.const_value = ir.tensor(array, name=name)
        value.shape, value.dtype = ir.Shape(array.shape), value.const_value.dtype
    path = folder / "in.onnx"
    Model(model).save(path, external_data=True, size_threshold=64)
    return path


def scalar(number: float) -> np.ndarray:
    return np.array(number, np.float32)


def check(
    path: Path, step: FoldWeights, *, codes: str, executor: Executor | None = None
) -> tuple[Model, dict]:
    """Fold, save, and compare with the original by the executor; return the result, the entry."""
    original, model = load(path), load(path)
    report = model.apply(step)
    assert report.count(SiteStatus.CHANGED) == 1, report
    (entry,) = report.sites
    tensors = [v.const_value for v in model.ir.graph.initializers.values()]
    (late,) = {id(t): t for t in tensors if isinstance(t, DeferredTensor)}.values()
    assert late.dtype.name == codes
    assert entry.to_json()["stored"]["unchanged"] is None
    out = path.with_name("out.onnx")
    model.save(out, executor=executor, size_threshold=64)
    onnx.checker.check_model(out, full_check=True)
    result = load(out)
    feeds = {"x": np.ones(original.inputs[0].shape.numpy(), np.float32)}
    with np.errstate(all="ignore"):
        expected = original.run(feeds, backend="numpy")["y"]
        np.testing.assert_array_equal(result.run(feeds, backend="numpy")["y"], expected)
    document = entry.to_json()
    assert document["stored"]["elements"] == document["stored"]["unchanged"] == expected.size
    assert document["method"] == str(Method.CONGRUENCE)
    again = load(out).apply(step)
    assert again.count(SiteStatus.CHANGED) == 0
    assert again.count(SiteStatus.REFUSED) == 0
    return result, document


def quant(**more: object) -> str:
    attributes = {"signed": 1, "narrow": 0} | more
    text = ", ".join(f"{k} = {v}" for k, v in attributes.items())
    return f"q = qonnx.custom_op.general.Quant <{text}> (w, s, z, b)"


AXIS0 = np.linspace(0.05, 0.6, ROWS, dtype=np.float32).reshape(ROWS, 1)
AXIS1 = np.linspace(0.05, 0.6, COLUMNS, dtype=np.float32).reshape(1, COLUMNS)
BLOCKS = np.linspace(0.05, 0.6, ROWS * 3, dtype=np.float32).reshape(ROWS, 3)

QUANTS = {
    "2 bits": (quant(), 2, 0.5, 0, 25, "INT2"),
    "2 bits, unsigned": (quant(signed=0), 2, 0.5, 0, 25, "UINT2"),
    "3 bits": (quant(), 3, 0.5, 0, 21, "INT4"),
    "4 bits": (quant(), 4, 0.25, 0, 21, "INT4"),
    "4 bits, narrow": (quant(narrow=1), 4, 0.25, 0, 21, "INT4"),
    "4 bits, unsigned": (quant(signed=0), 4, 0.25, 7, 21, "UINT4"),
    "8 bits": (quant(), 8, 0.03, 0, 21, "INT8"),
    "8 bits, zero point": (quant(signed=0), 8, 0.03, 131, 21, "UINT8"),
    "8 bits, fraction": (quant(signed=0), 8, 0.03, 100.5, 21, "UINT8"),
    "12 bits": (quant(), 12, 0.003, 0, 21, "INT16"),
    "16 bits, unsigned": (quant(signed=0), 16, 0.0003, 32768, 21, "UINT16"),
    "24 bits": (quant(), 24, 1e-6, 0, 21, "INT32"),
    "floor": (quant(rounding_mode='"FLOOR"'), 4, 0.25, 0, 21, "INT4"),
    "negative scale": (quant(), 4, -0.25, 0, 21, "INT4"),
    "rows": (quant(), 4, AXIS0, 0, 21, "INT4"),
    "columns": (quant(), 4, AXIS1, 0, 21, "INT4"),
    "rows, zero points": (quant(signed=0), 4, AXIS0, AXIS0 * 0 + 5, 21, "UINT4"),
}


@pytest.mark.cases(fast=4, slow=10)
@pytest.mark.parametrize("name", QUANTS)
def test_quant(tmp_path, name):
    body, bits, scale, zero, opset, kind = QUANTS[name]
    w, s, z = weights(), np.asarray(scale, np.float32), np.asarray(zero, np.float32)
    path = stored(tmp_path, body, {"w": w, "s": s, "z": z, "b": scalar(bits)})
    _, entry = check(path, FoldWeights(opset=opset), codes=kind)
    # By the definition of Quant, in float32, one operation after the other.
    signed, narrow = "signed = 1" in body, "narrow = 1" in body
    lo = -(2 ** (bits - 1)) + narrow if signed else 0
    hi = 2 ** (bits - 1) - 1 if signed else 2**bits - 1 - narrow
    steps = w / s + z
    rounded = np.floor(steps) if "FLOOR" in body else np.rint(steps)
    if bits <= 16:
        assert entry["stored"]["codes_used"] == np.unique(np.clip(rounded, lo, hi)).size
    if "FLOOR" not in body:
        beyond = np.abs(steps - np.clip(steps, lo, hi)) > 0.5
        assert entry["stored"]["clipped"] == np.count_nonzero(beyond)
    # A narrow range leaves a code of the type without use; the model that is saved shows the same.
    assert entry["stored"]["codes_available"] == 2 ** int(
        kind.removeprefix("U").removeprefix("INT")
    )
    assert entry["stored"]["scale_low"] == pytest.approx(float(s.min()))


def test_codes_are_those_of_small_weights(tmp_path, monkeypatch):
    path = stored(tmp_path, quant(), {"w": weights(), "s": AXIS0, "z": scalar(0), "b": scalar(4)})
    late, _ = check(path, FoldWeights(), codes="INT4")
    monkeypatch.setattr(qdq_codes, "LEAST_BYTES", 1 << 30)
    now = load(path)
    (entry,) = now.apply(FoldWeights()).sites
    found, expected = (
        next(v.const_value for v in m.ir.graph.initializers.values() if v.dtype is ir.DataType.INT4)
        for m in (late, now)
    )
    assert found.tobytes() == expected.tobytes()
    row = entry.to_json()["stored"]
    assert row["elements"] == row["unchanged"] == ROWS * COLUMNS
    assert (row["bytes_before"], row["codes_used"]) == (ROWS * COLUMNS * 4, 16)


def test_blocks_spelled_out_for_each_element(tmp_path):
    scales = np.repeat(BLOCKS, 32, axis=1)
    path = stored(tmp_path, quant(), {"w": weights(), "s": scales, "z": scalar(0), "b": scalar(4)})
    result, _ = check(path, FoldWeights(), codes="INT4")
    node = result.ir.graph[0]
    assert (node.attributes["axis"].as_int(), node.attributes["block_size"].as_int()) == (1, 32)
    np.testing.assert_array_equal(node.inputs[1].const_value.numpy(), BLOCKS)


def test_ragged_last_block(tmp_path):
    scales = np.repeat(np.linspace(0.1, 0.7, 7, dtype=np.float32).reshape(7, 1), 15, 0)[: ROWS * 8]
    scales = np.broadcast_to(scales, (96, ROWS)).copy() * (1 + np.arange(ROWS, dtype=np.float32))
    arrays = {"w": weights((96, ROWS)), "s": scales, "z": scalar(0), "b": scalar(4)}
    path = stored(tmp_path, quant(), arrays, shape=(96, ROWS))
    result, _ = check(path, FoldWeights(), codes="INT4")
    node = result.ir.graph[0]
    assert (node.attributes["axis"].as_int(), node.attributes["block_size"].as_int()) == (0, 15)
    assert node.inputs[1].shape == (7, ROWS)


def test_scales_that_lie_in_no_way_known_to_one_operator(tmp_path):
    scales = np.random.default_rng(0).uniform(0.1, 1, (ROWS, COLUMNS)).astype(np.float32)
    path = stored(tmp_path, quant(), {"w": weights(), "s": scales, "z": scalar(0), "b": scalar(4)})
    result, _ = check(path, FoldWeights(), codes="INT4")
    assert [node.op_type for node in result.ir.graph] == ["DequantizeLinear", "Mul", "Mul"]


RESHAPED = """split = Reshape (w, seen)
    blocks = {} (split, s, {})
    q = Reshape (blocks, back)"""


@pytest.mark.parametrize("seen", [(ROWS, 3, 32), (ROWS * 3, 32)])
@pytest.mark.parametrize("opset", [21, 23])
def test_blocks_between_two_reshapes(tmp_path, seen, opset):
    body = RESHAPED.format("qonnx.custom_op.general.FloatQuant <has_nan = 1>", "e, m, c, t")
    arrays = {"w": weights(), "s": BLOCKS.reshape(*seen[:-1], 1)}
    arrays |= {n: scalar(v) for n, v in (("e", 2), ("m", 1), ("c", 1), ("t", 6))}
    arrays |= {"seen": np.array(seen), "back": np.array([ROWS, COLUMNS])}
    path = stored(tmp_path, body, arrays)
    kind = "FLOAT4E2M1" if opset == 23 else "INT8"
    result, entry = check(path, FoldWeights(opset=opset), codes=kind)
    assert [node.op_type for node in result.ir.graph] == ["DequantizeLinear", "Mul"]
    node = result.ir.graph[0]
    assert (node.attributes["axis"].as_int(), node.attributes["block_size"].as_int()) == (1, 32)
    if opset == 23:
        assert entry["exactness"] == "bits"
        units = weights() / np.repeat(BLOCKS, 32, axis=1)
        assert entry["stored"]["clipped"] == np.count_nonzero(np.abs(units) > 7)
        assert entry["stored"]["codes_available"] == 16


FORMATS = {
    "FLOAT8E4M3FN": ((4, 3, 7, 448), 21),
    "FLOAT8E4M3FNUZ": ((4, 3, 8, 240), 21),
    "FLOAT8E5M2": ((5, 2, 15, 57344), 21),
    "FLOAT8E5M2FNUZ": ((5, 2, 16, 57344), 21),
    "FLOAT4E2M1": ((2, 1, 1, 6), 23),
    "FLOAT6E2M3": ((2, 3, 1, 7.5), 28),
    "FLOAT6E3M2": ((3, 2, 3, 28), 28),
}


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize("kind", FORMATS)
def test_minifloats(tmp_path, kind):
    numbers, opset = FORMATS[kind]
    body = "q = qonnx.custom_op.general.FloatQuant <has_nan = 1> (w, s, e, m, c, t)"
    arrays = {"w": weights(), "s": AXIS0 * np.float32(0.1)}
    arrays |= {name: scalar(n) for name, n in zip("emct", numbers, strict=True)}
    path = stored(tmp_path, body, arrays)
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip("this onnx does not know the opset")
    check(path, FoldWeights(opset=opset), codes=kind)


MX = "q = qonnx.custom_op.general.FloatQuant <has_nan = 1> (w, s, e, m, c, t)"
SCALES = {
    "FLOAT8E8M0": np.exp2(np.arange(ROWS * 3, dtype=np.float32) % 9 - 5),
    "FLOAT8E4M3FN": np.float32(0.0137) * np.float32([3, 7, 104, 0.40625] * 9),
    "FLOAT16": np.float32([0.5009765625, 1.75, 3.001953125] * 12) / 8,
    "BFLOAT16": np.float32([1.0078125 * 2.0**-100, 1.75, 3.015625] * 12),
    "FLOAT": np.linspace(0.05, 0.6, ROWS * 3, dtype=np.float32),
}


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("kind", SCALES)
def test_scales_of_the_smallest_type_that_has_them(tmp_path, kind):
    scales = SCALES[kind].reshape(ROWS, 3)
    arrays = {"w": weights(), "s": np.repeat(scales, 32, axis=1)}
    arrays |= {n: scalar(v) for n, v in (("e", 2), ("m", 1), ("c", 1), ("t", 6))}
    path = stored(tmp_path, MX, arrays)
    plain, _ = check(path, FoldWeights(opset=24), codes="FLOAT4E2M1")
    assert plain.ir.graph[0].inputs[1].dtype is ir.DataType.FLOAT
    result, entry = check(
        path, FoldWeights(opset=24, scale_type=Scales.SMALLEST), codes="FLOAT4E2M1"
    )
    assert entry["stored"]["scale_type"] == kind
    ops = [node.op_type for node in result.ir.graph]
    assert ops == ["DequantizeLinear"] * (2 if kind == "FLOAT8E4M3FN" else 1) + ["Mul"]


OTHERS = {
    "bipolar": ("q = qonnx.custom_op.general.BipolarQuant (w, s)", {"s": AXIS0}, "INT4"),
    "pair": (
        "c = QuantizeLinear <axis = 0> (w, s1, z1)  q = DequantizeLinear <axis = 0> (c, s1, z1)",
        {"s1": AXIS0.ravel(), "z1": np.arange(ROWS, dtype=np.uint8)},
        "UINT8",
    ),
    "blocked pair": (
        """c = QuantizeLinear <axis = 1, block_size = 32> (w, s1, z1)
           q = DequantizeLinear <axis = 1, block_size = 32> (c, s1, z1)""",
        {"s1": BLOCKS, "z1": np.zeros((ROWS, 3), np.int8)},
        "INT8",
    ),
    "cast pair": ("c = Cast <to = 17> (w)  q = Cast <to = 1> (c)", {}, "FLOAT8E4M3FN"),
    "clipped codes": (
        "c = QuantizeLinear (w, s1, z1)  d = Clip (c, lo, hi)  q = DequantizeLinear (d, s1, z1)",
        {"s1": scalar(0.25), "z1": np.int8(0), "lo": np.int8(-8), "hi": np.int8(7)},
        "INT4",
    ),
    "fake quantize": (
        "q = org.openvinotoolkit.FakeQuantize <levels = 256> (w, l, h, l, h)",
        {"l": scalar(-1.28), "h": scalar(1.27)},
        "UINT8",
    ),
    "fake quantize of rows": (
        "q = org.openvinotoolkit.FakeQuantize <levels = 16> (w, l, h, l, h)",
        {"l": -AXIS0, "h": AXIS0 * np.float32(0.8)},
        "UINT8",
    ),
}


@pytest.mark.cases(fast=4)
@pytest.mark.parametrize("name", OTHERS)
def test_quantizers_of_other_dialects(tmp_path, name):
    body, parameters, kind = OTHERS[name]
    arrays = {name: np.asarray(array) for name, array in parameters.items()}
    path = stored(tmp_path, body, {"w": weights(), **arrays})
    if kind == "UINT8" and "fake" in name:
        model = load(path)
        (entry,) = model.apply(FoldWeights()).sites
        assert entry.outcome is SiteStatus.CHANGED
        kind = entry.size_summary.type
        assert kind in ("UINT4", "UINT8", "UINT16", "INT8", "INT4")
    check(path, FoldWeights(), codes=kind)


@pytest.mark.parametrize(
    ("view", "shape"),
    [
        ("v = Transpose (w)", (COLUMNS, ROWS)),
        ("v = Identity (w)", (ROWS, COLUMNS)),
        ("v = Flatten <axis = 0> (w)", (1, ROWS * COLUMNS)),
        ("v = Unsqueeze (w, axes)", (1, ROWS, COLUMNS)),
        ("v = Reshape (w, sizes)", (4, 3, COLUMNS)),
        ("v = Slice (w, from, to)", (5, COLUMNS)),
    ],
)
def test_weights_seen_through_other_operators(tmp_path, view, shape):
    numbers = {"axes": [0], "sizes": [4, 3, -1], "from": [2], "to": [7]}
    arrays = {"w": weights(), "s": scalar(0.25), "z": scalar(0), "b": scalar(4)}
    arrays |= {name: np.array(n) for name, n in numbers.items() if name in view}
    body = f"{view}  {quant().replace('(w,', '(v,')}"
    path = stored(tmp_path, body, arrays, shape=shape)
    result, entry = check(path, FoldWeights(), codes="INT4")
    assert entry["stored"]["tensor"] == "w"
    assert "w" not in result.ir.graph.initializers


def test_weights_of_half_precision_keep_their_type(tmp_path):
    text = f"""<ir_version: 10, opset_import: {IMPORTS.format(21)}>
        g (float16[8, 32] x) => (float16[8, 32] y) <float16[1] w = {{0}}, float16[1] s = {{0}},
        float16 z = {{0}}, float b = {{4}}> {{ {quant()}  y = Mul (x, q) }}"""
    model = ir.from_onnx_text(text)
    for name, array in (("w", weights((8, 32)).clip(-9, 9)), ("s", AXIS0[:8])):
        value = model.graph.initializers[name]
        value.const_value = ir.tensor(array.astype(np.float16), name=name)
        value.shape = ir.Shape(array.shape)
    path = tmp_path / "in.onnx"
    Model(model).save(path, external_data=True, size_threshold=16)
    folded = load(path)
    assert folded.apply(FoldWeights()).count(SiteStatus.CHANGED) == 1
    folded.save(tmp_path / "out.onnx")
    onnx.checker.check_model(tmp_path / "out.onnx", full_check=True)
    feeds = {"x": np.ones((8, 32), np.float16)}
    expected = load(path).run(feeds, backend="numpy")["y"]
    found = load(tmp_path / "out.onnx").run(feeds, backend="numpy")["y"]
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, expected)


def test_a_shared_weight_is_computed_and_stored_once(tmp_path):
    body = f"{quant()}1  {quant()}2  q = Add (q1, q2)".replace(")1", ")").replace(")2", ")")
    body = body.replace("q = qonnx", "q1 = qonnx", 1).replace("  q = qonnx", "  q2 = qonnx", 1)
    arrays = {"w": weights(), "s": AXIS0, "z": scalar(0), "b": scalar(4)}
    model = load(stored(tmp_path, body, arrays))
    report = model.apply(FoldWeights())
    assert report.count(SiteStatus.CHANGED) == 2
    model.save(tmp_path / "out.onnx")
    assert [row.size_summary.tally.elements for row in report] == [ROWS * COLUMNS] * 2
    constants = load(tmp_path / "out.onnx").ir.graph.initializers.values()
    assert [value.dtype for value in constants].count(ir.DataType.INT4) == 1


def test_a_branch_and_a_function_keep_their_weights_in_files(tmp_path):
    arrays = {"w": weights(), "s": AXIS0, "z": scalar(0), "b": scalar(4)}
    path = stored(tmp_path, quant(), arrays)
    model = load(path)
    inner = model.ir.graph
    condition = ir.Value(name="c", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    x = inner.inputs[0]
    inner.inputs.clear()
    branch = ir.node("If", [condition], {"then_branch": inner})
    branch.outputs[0].name, branch.outputs[0].type = "out", ir.TensorType(ir.DataType.FLOAT)
    branch.outputs[0].shape = ir.Shape(x.shape)
    outer = ir.Graph(
        [x, condition], branch.outputs, nodes=[branch], opset_imports=inner.opset_imports, name="o"
    )
    other = ir.node("Neg", [x])
    other.outputs[0].name = "n"
    other.outputs[0].type, other.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), x.shape
    branch.attributes["else_branch"] = ir.AttrGraph(
        "else_branch", ir.Graph([], other.outputs, nodes=[other], name="e")
    )
    whole = load(ir.Model(outer, ir_version=10))
    report = whole.apply(FoldWeights())
    assert report.count(SiteStatus.CHANGED) == 1
    whole.save(tmp_path / "out.onnx", external_data=True)
    feeds = {"x": np.ones((ROWS, COLUMNS), np.float32), "c": np.array(True)}
    found = load(tmp_path / "out.onnx").run(feeds, backend="numpy")["out"]
    with np.errstate(all="ignore"):
        steps = np.clip(np.rint(weights() / AXIS0), -8, 7)
    np.testing.assert_array_equal(found, steps * AXIS0)


def test_a_level_that_zeros_might_miss_is_refused(tmp_path):
    arrays = {"w": weights(), "s": AXIS0, "z": scalar(0), "b": scalar(4)}
    path = stored(tmp_path, quant(), arrays)
    (entry,) = load(path).apply(FoldWeights(exact=Exactness.BITS)).sites
    assert entry.outcome is SiteStatus.REFUSED
    assert "the closest one reaches only level values; expected bits" in entry.reason


def test_values_without_code_stop_the_saving_and_leave_no_file(tmp_path):
    w = weights()
    w[7, 5] = np.nan
    path = stored(tmp_path, quant(), {"w": w, "s": AXIS0, "z": scalar(0), "b": scalar(4)})
    model = load(path)
    model.apply(FoldWeights())
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ModelError, match=r"Quant.*element 677 is nan.*INT4.*Leave this quantizer"):
        model.save(tmp_path / "out.onnx")
    assert sorted(tmp_path.iterdir()) == before


def test_a_data_file_that_has_become_shorter_is_reported(tmp_path):
    arrays = {"w": weights(), "s": AXIS0, "z": scalar(0), "b": scalar(4)}
    path = stored(tmp_path, quant(), arrays)
    model = load(path)
    model.apply(FoldWeights())
    os.truncate(tmp_path / "in.onnx.data", 3000)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ModelError, match=r"in.onnx.data: has 3000 bytes, expected"):
        model.save(tmp_path / "out.onnx")
    with pytest.raises(ModelError, match=r"in.onnx.data: has 3000 bytes, expected"):
        model.save(path)
    assert sorted(tmp_path.iterdir()) == before


def test_folding_in_place_leaves_one_whole_model(tmp_path):
    arrays = {"w": weights(), "s": AXIS0, "z": scalar(0), "b": scalar(4)}
    path = stored(tmp_path, quant(), arrays)
    feeds = {"x": np.ones((ROWS, COLUMNS), np.float32)}
    expected = load(path).run(feeds, backend="numpy")["y"]
    report = tmp_path / "r.json"
    rewrite(
        path,
        path,
        FoldWeights(),
        report=report,
        writing=Writing(in_place=True, shard_bytes=600, size_threshold=16),
    )
    names = {path.name for path in tmp_path.iterdir()}
    assert "in.onnx.data" not in names
    assert all((tmp_path / name).stat().st_size <= 600 for name in names if "data" in name)
    np.testing.assert_array_equal(load(path).run(feeds, backend="numpy")["y"], expected)
    document = json.loads(report.read_text())
    (site,) = document["sites"]
    assert site["stored"]["unchanged"] == ROWS * COLUMNS
    totals = document["summary"]["stored"]
    assert totals["unchanged"] == totals["elements"] == ROWS * COLUMNS
    assert totals["bytes_before"] == 4 * ROWS * COLUMNS


def test_codes_can_be_had_before_the_model_is_saved(tmp_path):
    arrays = {"w": weights(), "s": AXIS0, "z": scalar(0), "b": scalar(4)}
    path = stored(tmp_path, quant(), arrays)
    feeds = {"x": np.ones((ROWS, COLUMNS), np.float32)}
    expected = load(path).run(feeds, backend="numpy")["y"]
    model = load(path)
    model.apply(FoldWeights())
    np.testing.assert_array_equal(model.run(feeds, backend="numpy")["y"], expected)


def test_progress_is_told_in_bytes_that_are_read(tmp_path):
    arrays = {"w": weights(), "s": AXIS0, "z": scalar(0), "b": scalar(4)}
    model = load(stored(tmp_path, quant(), arrays))
    model.apply(FoldWeights())
    told: list[tuple[int, int]] = []
    model.save(tmp_path / "o.onnx", progress=lambda *state: told.append(state))
    done, totals = zip(*told, strict=True)
    assert list(done) == sorted(done)
    assert set(totals) == {done[-1]}
    assert done[-1] >= 4 * ROWS * COLUMNS
    assert len(told) >= 4


def saved_by(executor: Executor | None, path: Path, out: Path) -> bytes:
    model = load(path)
    report = model.apply(FoldWeights())
    model.save(out, executor=executor, size_threshold=64)
    assert all(row.size_summary.tally.unchanged == ROWS * COLUMNS for row in report)
    return out.with_name(f"{out.name}.data").read_bytes()


def test_processes_give_the_same_bytes(tmp_path):
    arrays = {"w": weights(), "s": AXIS0, "z": scalar(0), "b": scalar(4)}
    path = stored(tmp_path, quant(), arrays)
    expected = saved_by(None, path, tmp_path / "a.onnx")
    with ProcessPoolExecutor(2) as pool:
        assert saved_by(pool, path, tmp_path / "b.onnx") == expected
        w = weights()
        w[0, 0] = np.nan
        bad = stored(tmp_path, quant(), arrays | {"w": w})
        model = load(bad)
        model.apply(FoldWeights())
        with pytest.raises(ModelError, match="element 0 is nan"):
            model.save(tmp_path / "c.onnx", executor=pool)
    assert not (tmp_path / "c.onnx").exists()


@pytest.mark.slow
def test_a_cluster_gives_the_same_bytes(tmp_path):
    distributed = pytest.importorskip("distributed")
    arrays = {"w": weights(), "s": AXIS0, "z": scalar(0), "b": scalar(4)}
    path = stored(tmp_path, quant(), arrays)
    expected = saved_by(None, path, tmp_path / "a.onnx")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert saved_by(client.get_executor(), path, tmp_path / "b.onnx") == expected
