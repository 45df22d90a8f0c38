"""Codes found by levels are those that are found by comparing each element."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.graph.deferred import DeferredTensor, MemorySink
from qgraph.graph.draft_parts import Tally
from qgraph.graph.streaming import Sink
from qgraph.model import Model, load
from qgraph.numerics.float32 import look_up
from qgraph.numerics.minifloat import MINIFLOATS, decode
from qgraph.numerics.rounding import Rounding
from qgraph.ops.definitions.float_quant import FloatStages, float_quant
from qgraph.quantizers.dialects import qdq_codes
from qgraph.quantizers.weights import job
from qgraph.quantizers.weights.codes_job import CodesJob, CodesPlan
from qgraph.quantizers.weights.level_table import LevelTable, distinct
from qgraph.transforms.convert import FoldWeights

IMPORTS = '["": 24, "qonnx.custom_op.general": 1, "org.openvinotoolkit": 1]'
ROWS, COLUMNS = 96, 288
QUANT = "qonnx.custom_op.general.Quant"
FLOAT = "qonnx.custom_op.general.FloatQuant <has_nan = 1>"


@pytest.fixture(autouse=True)
def everything_is_big(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of a few bytes are treated like those of gigabytes, in pieces of a few elements."""
    monkeypatch.setattr(qdq_codes, "LEAST_BYTES", 64)
    monkeypatch.setattr(job, "PIECE", 2000)
    monkeypatch.setattr(job, "PART_BYTES", 24000)


def weights(scale: np.ndarray, seed: int) -> np.ndarray:
    """Numbers in and beyond each range, ties of every kind, their neighbours, zeros, infinities."""
    random = np.random.default_rng(seed)
    w = random.normal(size=(ROWS, COLUMNS)).astype(np.float32) * np.float32(3)
    ties = random.integers(-40, 40, size=w.shape).astype(np.float32) / np.float32(4)
    w = np.where(random.random(w.shape) < 0.5, w, ties) * scale
    nudged = np.nextafter(w, random.choice(np.float32([-np.inf, np.inf]), size=w.shape))
    w = np.where(random.random(w.shape) < 0.3, nudged, w).astype(np.float32)
    places = random.permutation(w.size)[:240]
    w.reshape(-1)[places] = np.resize(
        np.float32([0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-39, 3e38, -3e38]), 240
    )
    return w


def stored(folder: Path, body: str, arrays: dict[str, np.ndarray]) -> Path:
    names = ", ".join(f"float[1] {name} = {{0}}" for name in arrays)
    model = ir.from_onnx_text(
        f"""<ir_version: 13, opset_import: {IMPORTS}>
        g (float[{ROWS}, {COLUMNS}] x) => (float[{ROWS}, {COLUMNS}] y) <{names}>
        {{ {body}  y = Mul (x, q) }}"""
    )
    for name, array in arrays.items():
        value = model.graph.initializers[name]
        value.const_value = ir.tensor(array, name=name)
        value.shape, value.dtype = ir.Shape(array.shape), value.const_value.dtype
    path = folder / "in.onnx"
    Model(model).save(path, external_data=True, size_threshold=64)
    return path


def planned(path: Path) -> CodesPlan:
    model = load(path)
    model.apply(FoldWeights(opset=24))
    tensors = [value.const_value for value in model.ir.graph.initializers.values()]
    (late,) = (tensor for tensor in tensors if isinstance(tensor, DeferredTensor))
    assert isinstance(late.job, CodesJob)
    return late.job.plan


def carried_out(plan: CodesPlan) -> tuple[bytes, Tally]:
    job, sink, total = CodesJob(), MemorySink(plan.weight.size * 2), Tally()
    job.plan = plan
    sinks: list[Sink] = [sink]
    for part in job.parts():
        total.add(part(sinks))
    return sink.data.tobytes(), total


SCALAR = np.float32([[0.25]])
RANDOM = np.random.default_rng(3)
PER_ROW = RANDOM.uniform(0.05, 1, (ROWS, 1)).astype(np.float32)
PER_COLUMN = RANDOM.uniform(0.05, 1, (1, COLUMNS)).astype(np.float32)
ALONG_ROWS = RANDOM.uniform(0.05, 1, (ROWS, COLUMNS // 32)).astype(np.float32).repeat(32, 1)
ALONG_COLUMNS = RANDOM.uniform(0.05, 1, (ROWS // 32, COLUMNS)).astype(np.float32).repeat(32, 0)
POWERS = np.exp2(RANDOM.integers(-9, 9, (ROWS, COLUMNS // 32))).astype(np.float32).repeat(32, 1)
GRANULARITIES = {
    "tensor": SCALAR,
    "rows": PER_ROW,
    "columns": PER_COLUMN,
    "blocks in rows": ALONG_ROWS,
    "blocks in columns": ALONG_COLUMNS,
    "powers of two": POWERS,
    "negative": -PER_ROW,
}
CASES = {
    f"{bits} bits {more} of {name}": (bits, more, name)
    for bits, more in [(2, ""), (4, "narrow"), (4, "unsigned"), (4, "FLOOR"), (7, "")]
    for name in GRANULARITIES
    if bits < 7 or name in ("tensor", "rows")
}
MEANINGS = {"": (1, 0, "ROUND"), "narrow": (1, 1, "ROUND"), "unsigned": (0, 0, "ROUND")}
MEANINGS["FLOOR"] = (1, 0, "FLOOR")


def both(plan: CodesPlan) -> None:
    """Compare bytes and counts, and with what the size summary means by clipped."""
    assert plan.table is not None
    codes, tally = carried_out(plan)
    expected, slow = carried_out(replace(plan, table=None))
    assert codes == expected
    assert (tally.elements, tally.unchanged) == (ROWS * COLUMNS,) * 2
    assert (slow.elements, slow.unchanged) == (ROWS * COLUMNS,) * 2
    assert tally.clipped == slow.clipped > 0
    np.testing.assert_array_equal(tally.used, slow.used)


@pytest.mark.cases(fast=10, slow=20)
@pytest.mark.parametrize("name", CASES)
def test_whole_codes(tmp_path, name):
    bits, more, granularity = CASES[name]
    signed, narrow, rounding = MEANINGS[more]
    scale = GRANULARITIES[granularity]
    zero = np.float32(0 if signed else 5)
    body = f"""q = {QUANT} <signed = {signed}, narrow = {narrow}, rounding_mode = "{rounding}">
        (w, s, z, b)"""
    arrays = {"w": weights(scale, 1), "s": scale, "z": zero, "b": np.float32(bits)}
    plan = planned(stored(tmp_path, body, arrays))
    both(plan)


@pytest.mark.cases(fast=6)
@pytest.mark.parametrize("kind", ["FLOAT4E2M1", "FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"])
@pytest.mark.parametrize("granularity", ["tensor", "rows", "powers of two", "blocks in columns"])
def test_minifloats(tmp_path, kind, granularity):
    grid, scale = MINIFLOATS[kind], GRANULARITIES[granularity]
    numbers = grid.exponent_bits, grid.mantissa_bits, grid.bias, grid.max_value
    arrays = {"w": weights(scale, 2), "s": scale}
    arrays |= {n: np.float32(v) for n, v in zip("emct", numbers, strict=True)}
    plan = planned(stored(tmp_path, f"q = {FLOAT} (w, s, e, m, c, t)", arrays))
    if kind != "FLOAT4E2M1" and granularity == "blocks in columns":
        # So many different scales that the table would be longer than the weight.
        assert plan.table is None
        return
    both(plan)


def test_blocks_that_are_an_axis_of_their_own(tmp_path):
    scale = ALONG_ROWS[:, ::32].reshape(ROWS, -1, 1)
    arrays = {"w": weights(ALONG_ROWS, 5), "s": np.ascontiguousarray(scale)}
    arrays |= {n: np.float32(v) for n, v in zip("emct", (2, 1, 1, 6), strict=True)}
    arrays |= {"seen": np.array([ROWS, COLUMNS // 32, 32]), "back": np.array([ROWS, COLUMNS])}
    body = f"v = Reshape (w, seen)  u = {FLOAT} (v, s, e, m, c, t)  q = Reshape (u, back)"
    plan = planned(stored(tmp_path, body, arrays))
    assert plan.table is not None
    assert plan.table.shape == (ROWS * COLUMNS // 32, 32)
    both(plan)


RANGE = "org.openvinotoolkit.FakeQuantize"


@pytest.mark.parametrize("granularity", ["tensor", "rows", "columns"])
@pytest.mark.parametrize(("low", "high", "is_exact"), [(-8, 7, True), (-7.7, 8.3, False)])
def test_ranges(tmp_path, granularity, low, high, is_exact):
    scale = GRANULARITIES[granularity]
    scale = scale if is_exact else (scale * np.float32(1.1)).astype(np.float32)
    ends = {"low": (low * scale).astype(np.float32), "high": (high * scale).astype(np.float32)}
    body = f"q = {RANGE} <levels = 16> (w, low, high, low, high)"
    plan = planned(stored(tmp_path, body, {"w": weights(scale, 4), **ends}))
    assert plan.table is not None
    codes, tally = carried_out(plan)
    expected, slow = carried_out(replace(plan, table=None))
    assert codes == expected
    assert tally.elements == tally.unchanged == slow.unchanged == ROWS * COLUMNS
    np.testing.assert_array_equal(tally.used, slow.used)


@pytest.mark.parametrize("granularity", ["rows", "negative"])
def test_signs(tmp_path, granularity):
    scale = GRANULARITIES[granularity]
    body = "q = qonnx.custom_op.general.BipolarQuant (w, s)"
    w = weights(np.abs(scale), 6)
    w[:2, :4] = np.float32([[-1e-45, 1e-45, -0.0, 0.0]] * 2)
    both(planned(stored(tmp_path, body, {"w": w, "s": scale})))


def test_signs_of_numbers_that_a_large_scale_makes_zero(tmp_path):
    body = "q = qonnx.custom_op.general.BipolarQuant (w, s)"
    scale = np.float32([[1e30]])
    plan = planned(stored(tmp_path, body, {"w": weights(SCALAR, 6), "s": scale}))
    assert plan.table is None


@pytest.mark.parametrize("granularity", ["rows", "columns"])
@pytest.mark.parametrize("code", [ir.DataType.INT4, ir.DataType.UINT8, ir.DataType.FLOAT4E2M1])
def test_pairs(tmp_path, granularity, code):
    scale = GRANULARITIES[granularity]
    axis = int(granularity == "columns")
    points = np.arange(scale.size) % 7 if code is ir.DataType.UINT8 else np.zeros(scale.size)
    body = f"""c = QuantizeLinear <axis = {axis}> (w, s, z)
        q = DequantizeLinear <axis = {axis}> (c, s, z)"""
    arrays = {"w": weights(scale, 8), "s": scale.reshape(-1), "z": points.astype(code.numpy())}
    plan = planned(stored(tmp_path, body, arrays))
    if (code, axis) == (ir.DataType.UINT8, 1):
        # The table of all codes of all columns would be longer than the weight.
        assert plan.table is None
        return
    both(plan)


def test_operators_behind_the_quantizer_count_as_its_values(tmp_path):
    arrays = {"w": weights(SCALAR, 1), "one": np.float32(1), "z": np.float32(0)}
    arrays |= {"b": np.float32(4), "s": PER_ROW}
    body = f"r = {QUANT} <signed = 1> (w, one, z, b)  q = Mul (r, s)"
    plan = planned(stored(tmp_path, body, arrays))
    codes, _ = carried_out(plan)
    assert codes == carried_out(replace(plan, table=None))[0]


@pytest.mark.parametrize("place", [0, 7, ROWS - 1])
def test_a_decoder_that_is_wrong_in_one_row_proves_nothing(tmp_path, place):
    arrays = {"w": weights(PER_ROW, 1), "s": PER_ROW, "z": np.float32(0), "b": np.float32(4)}
    body = f"q = {QUANT} <signed = 1, narrow = 0> (w, s, z, b)"
    plan = planned(stored(tmp_path, body, arrays))
    assert plan.table is not None
    (call,) = plan.dequantize.calls
    codes, scale, *rest = call.operands
    near = scale.array.copy()
    near[place] = np.nextafter(near[place], np.float32(9))
    wrong = replace(call, operands=(codes, replace(scale, held=near), *rest))
    dequantize = replace(plan.dequantize, calls=(wrong,))
    ends = plan.coding.ends
    assert LevelTable.of(plan.quantize, plan.dequantize, "INT4", ends) is not None
    assert LevelTable.of(plan.quantize, dequantize, "INT4", ends) is None


def test_codes_too_narrow_for_all_levels_prove_nothing(tmp_path):
    arrays = {"w": weights(PER_ROW, 1), "s": PER_ROW, "z": np.float32(0), "b": np.float32(4)}
    body = f"q = {QUANT} <signed = 1, narrow = 0> (w, s, z, b)"
    plan = planned(stored(tmp_path, body, arrays))
    for kind in ("INT2", "UINT4", "FLOAT4E2M1"):
        assert LevelTable.of(plan.quantize, plan.dequantize, kind, plan.coding.ends) is None


@pytest.mark.parametrize("kind", ["FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2", "FLOAT8E4M3FN"])
@pytest.mark.parametrize("mode", Rounding)
def test_levels_of_minifloats_are_known_from_the_upper_half(kind, mode):
    grid = MINIFLOATS[kind]
    numbers = [np.float32(n) for n in (grid.exponent_bits, grid.mantissa_bits, grid.bias)]
    flags = {"has_inf": False, "has_nan": True, "has_subnormal": True, "saturation": True}
    parameters = [np.float32(1), *numbers, np.float32(grid.max_value)]
    stages = FloatStages.of(np.dtype(np.float32), *parameters, **flags, rounding_mode=mode)
    if mode in (Rounding.HALF_UP, Rounding.HALF_DOWN):
        assert not stages.by_upper_half
        assert stages.levels() is None
        return
    assert stages.by_upper_half
    values = decode(np.arange(1 << grid.bits, dtype=np.uint8).view(np.uint8).view(_type(kind)))
    values = np.unique(values[np.isfinite(values)])
    thresholds = np.concatenate([values, (values[1:] + values[:-1]) / np.float32(2)])
    x = np.concatenate([np.nextafter(thresholds, n) for n in np.float32([-np.inf, np.inf])])
    x = np.concatenate([x, thresholds, np.float32([np.inf, -np.inf, 1e-45, -1e-45, 0.0, -0.0])])
    table = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    places = table.view(np.float32).copy()
    with np.errstate(all="ignore"):
        stages.level(places, *stages.arrays)
    expected = float_quant(x, *parameters, **flags, rounding_mode=mode)
    np.testing.assert_array_equal(look_up(x, places).view(np.int32), expected.view(np.int32))
    levels = stages.levels()
    assert levels is not None
    assert np.isin(expected, levels).all()


def _type(kind: str) -> np.dtype:
    return ir.DataType[kind].numpy()


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize(("values", "most"), [(7, 1 << 20), (7, 4), (1 << 14, 1 << 20)])
def test_distinct_parameters_are_the_combinations_that_occur(
    columns: int, values: int, most: int
) -> None:
    random = np.random.default_rng(values)
    pool = random.random((values, columns), np.float32)
    drawn = pool[random.integers(0, values, 1 << 13)]
    found, entries = distinct([*drawn.T, np.float32(3).reshape(())], most)
    assert {*zip(*found[:-1], strict=True)} == {*map(tuple, drawn)}
    assert found[-1] == 3
    assert entries == (values if values == 7 else len(drawn))


def test_repeated_parameters_are_left_out_where_there_are_too_many() -> None:
    scales = np.repeat(np.random.default_rng(0).random(1 << 12, np.float32), 3)
    assert distinct([scales], scales.size)[1] == scales.size
    assert distinct([scales], scales.size - 1)[1] == 1 << 12
