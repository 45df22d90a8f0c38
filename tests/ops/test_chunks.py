"""Neither where a tensor is cut nor who computes a piece shows in the result."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from qgraph.numerics import chunks
from qgraph.numerics.formats import numpy_dtype
from qgraph.numerics.rounding import Rounding
from qgraph.ops.definitions.fake_quantize import fake_quantize
from qgraph.ops.definitions.float_quant import float_quant
from qgraph.ops.definitions.quant import bipolar_quant, quant
from qgraph.ops.definitions.quantize_linear import dequantize_linear, quantize_linear

F = np.float32
UNDEFINED = ir.DataType.UNDEFINED
SHAPE = (6, 5, 8, 9)
CUTS = [(1 << 30, 1 << 30, 1), (1, 1 << 30, 1), (7, 1 << 30, 1), (50, 1, 3), (400, 1, 2)]
"""Size of a piece, size from which there are threads, number of cores."""


@pytest.fixture(params=CUTS)
def cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes kernels cut tensors in an odd way from then on."""
    piece, threaded, cores = request.param

    def begin() -> None:
        monkeypatch.setattr(chunks, "_PIECE", piece)
        monkeypatch.setattr(chunks, "_WHOLE", min(piece, 100))
        monkeypatch.setattr(chunks, "_THREADED", threaded)
        monkeypatch.setattr(chunks, "available_cores", lambda: cores)
        monkeypatch.setattr(chunks, "_LITTLE", 0)
        monkeypatch.setattr("qgraph.ops.definitions.fake_quantize._LITTLE", -1)

    return begin


def data(hostile: Any, dtype: Any = F) -> Any:
    with np.errstate(over="ignore"):
        return np.resize(hostile(0.1), SHAPE).astype(dtype)


PARAMETERS = [(), (1,), (9,), (8, 1), (5, 1, 1), (6, 1, 1, 1), (6, 1, 8, 1), (1, 5, 1, 9), SHAPE]


def scales(shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(0.05, 2, shape).astype(F)


def numbers(*values: float) -> list[Any]:
    return [np.asarray(value, F) for value in values]


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "Quant": lambda x, s: quant(
        x, s, s - F(1), *numbers(8), signed=True, narrow=False, rounding_mode=Rounding.HALF_UP
    ),
    "Quant of mixed widths": lambda x, s: quant(
        x,
        *numbers(0.1, -0.0),
        np.rint(s + F(0.5)),
        signed=True,
        narrow=False,
        rounding_mode=Rounding.ROUND,
    ),
    "BipolarQuant": bipolar_quant,
    "FakeQuantize": lambda x, s: fake_quantize(x, -s, s, -s, s, levels=255, auto_broadcast="numpy"),
    "FakeQuantize with a top of its own": lambda x, s: fake_quantize(
        x, -s, s * F(1.1), F(0.3) - s, s, levels=16, auto_broadcast="numpy"
    ),
    "FloatQuant": lambda x, s: float_quant(
        x,
        s,
        *numbers(4, 3, 7, 448),
        has_inf=True,
        has_nan=False,
        has_subnormal=True,
        saturation=False,
        rounding_mode=Rounding.ROUND,
    ),
}


def same(left: Any, right: Any) -> bool:
    nan = np.isnan(left)
    bits = np.dtype(f"u{left.itemsize}")
    equal = (left.view(bits) == right.view(bits)) | (nan & np.isnan(right))
    return left.dtype == right.dtype and left.shape == right.shape and bool(equal.all())


@pytest.mark.cases(fast=5, slow=11)
@pytest.mark.parametrize("name", CALLS)
def test_quantizers(name: str, cut: Callable[[], None], hostile_inputs: Any) -> None:
    x = data(hostile_inputs)
    expected = [CALLS[name](x, scales(shape)) for shape in PARAMETERS]
    cut()
    for shape, whole in zip(PARAMETERS, expected, strict=True):
        assert same(CALLS[name](x, scales(shape)), whole), shape


@pytest.mark.cases(fast=5)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_types(dtype: Any, cut: Callable[[], None], hostile_inputs: Any) -> None:
    x, s = data(hostile_inputs, dtype), scales((5, 1, 1)).astype(dtype)
    calls = [CALLS["Quant"], CALLS["BipolarQuant"]]
    expected = [call(x, s) for call in calls]
    cut()
    for call, whole in zip(calls, expected, strict=True):
        assert same(call(x, s), whole)


def test_data_that_is_not_contiguous(cut: Callable[[], None], hostile_inputs: Any) -> None:
    x = data(hostile_inputs).transpose(2, 0, 3, 1)
    expected = CALLS["FakeQuantize"](np.ascontiguousarray(x), scales((5,)))
    cut()
    assert same(CALLS["FakeQuantize"](x, scales((5,))), expected)


LINEAR = [(0, ()), (0, (5,)), (3, (6, 5, 3, 9)), (4, (6, 5, 2, 9))]
"""Block size, and shape of the scale; blocks of 3 leave a rest."""


@pytest.mark.cases(fast=1, slow=15)
@pytest.mark.parametrize("kind", ["INT8", "UINT4", "INT2", "UINT16", "FLOAT8E4M3FN", "FLOAT4E2M1"])
def test_linear_pairs(
    kind: str, cut: Callable[[], None], hostile_inputs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = data(hostile_inputs)

    def pair(size: int, shape: tuple[int, ...]) -> tuple[Any, Any]:
        s = scales(shape)
        z = np.full(shape, 1 if "INT" in kind else 0, np.int8).astype(numpy_dtype(kind))
        axis = {"axis": 2 if size else 1, "block_size": size, "output_dtype": UNDEFINED}
        codes = quantize_linear(x, s, z, saturate=True, precision=UNDEFINED, **axis)
        return codes, dequantize_linear(codes, s, z, **axis)

    expected = list(itertools.starmap(pair, LINEAR))
    cut()
    monkeypatch.setattr("qgraph.numerics.blocks._FEW", 0)
    for each, (codes, values) in zip(LINEAR, expected, strict=True):
        cut_codes, cut_values = pair(*each)
        assert cut_codes.dtype == codes.dtype
        assert np.array_equal(cut_codes.view(np.uint8), codes.view(np.uint8)), each
        assert same(cut_values, values), each


def test_signed_zeros_do_not_depend_on_their_place() -> None:
    """A maximum may take either zero, but the same one in a vector and in what is left over."""
    x = np.full(1000, -0.0, F)
    for length in range(1, 40):
        y = np.maximum(x[:length], F(0))
        assert len(set(np.signbit(y))) == 1
        assert np.signbit(y[0]) == np.signbit(np.maximum(x, F(0))[0])


def test_threads_compute_under_the_error_state_of_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunks, "available_cores", lambda: 2)
    x = np.zeros(1 << 20, F)

    def work(y: Any, x: Any) -> None:
        np.divide(x, x, out=y)

    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("error")
        chunks.fill(work, np.empty_like(x), x)
    with np.errstate(invalid="raise"), pytest.raises(FloatingPointError):
        chunks.fill(work, np.empty_like(x), x)


def test_clamped_data_give_the_ends_where_that_is_taken_for_granted(
    monkeypatch: pytest.MonkeyPatch, hostile_inputs: Any
) -> None:
    """Big tensors are clamped first; each kind of range by itself, and all of them together."""
    random = np.random.default_rng(5)
    ends = [(-1, 1), (0, 2.55), (1, -1), (0.5, 0.5), (-0.0, 1), (-1, -0.0), (-3e38, 3e38)]
    ends += [(-np.inf, 1), (np.nan, 1), (1e-45, 4e-45), (0, 6), *random.normal(size=(30, 2))]
    inputs = np.asarray(ends, F)
    outputs = np.concatenate([inputs, random.permutation(inputs)])
    inputs = np.concatenate([inputs, inputs])
    near = [hostile_inputs(abs(float(end))) for end in (0.01, 1, 6, 0.5)]
    x = np.tile(np.concatenate([*near, inputs.ravel()]), (len(inputs), 1))
    columns = [part.reshape(-1, 1) for part in (*inputs.T, *outputs.T)]

    def results() -> list[Any]:
        rows = zip(x, *columns, strict=True)
        arguments: dict[str, Any] = {"levels": 256, "auto_broadcast": "numpy"}
        alone = [fake_quantize(*row, **arguments) for row in rows]
        return [*alone, fake_quantize(x, *columns, **arguments)]

    monkeypatch.setattr("qgraph.ops.definitions.fake_quantize._LITTLE", 1 << 30)
    chosen = results()
    monkeypatch.setattr("qgraph.ops.definitions.fake_quantize._LITTLE", -1)
    for left, right in zip(results(), chosen, strict=True):
        assert same(left, right)


def test_put_changes_what_the_mask_says() -> None:
    random = np.random.default_rng(0)
    for dtype in (np.float32, np.float16, np.float64, ml_dtypes.bfloat16):
        y, value = random.normal(size=(2, 50, 60)).astype(dtype)
        mask = random.random((50, 60)) < 0.5
        for wanted in (value, value[:, :1].copy(), value[:1].copy(), np.asarray(value[0, 0])):
            expected = np.where(mask, wanted, y)
            changed = y.copy()
            chunks.put(changed, wanted, mask)
            assert same(changed, expected)
