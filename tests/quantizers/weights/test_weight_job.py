"""Codes and scales against formulas on whole arrays, for all granularities and sizes of pieces."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest

from qgraph.errors import ModelError
from qgraph.graph.deferred import MemorySink
from qgraph.graph.streaming import Stream
from qgraph.numerics.formats import FORMATS, IntFormat, unpack
from qgraph.numerics.minifloat import cast
from qgraph.quantizers.weights import job, search, weight_job
from qgraph.quantizers.weights.job import Groups
from qgraph.quantizers.weights.scheme import (
    E4M3,
    E8M0,
    Losses,
    ScaleSearch,
    Scheme,
    extremes,
    parameters,
    spanned,
    unit_of,
)
from qgraph.quantizers.weights.weight_job import WeightJob

SHAPES = [(64, 48), (70, 7), (5, 33), (3, 64, 10), (1, 32), (128, 1), (4, 3, 3, 3)]


@pytest.fixture(params=["whole", "pieces"])
def cutting(request, monkeypatch):
    """Once as it is, once in the smallest pieces."""
    if request.param == "pieces":
        monkeypatch.setattr(job, "PIECE", 64)
        monkeypatch.setattr(weight_job, "_TILE", 16)
        monkeypatch.setattr(weight_job, "PART_BYTES", 1024)


def weight(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def run(w, groups, scheme):
    kinds = {"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}
    found: list[Losses] = []
    job = WeightJob("w", Stream(kinds[w.dtype.name], w.shape, w), groups, scheme, found.append)
    outputs = job.run()
    assert [data.size for data in outputs] == job.sizes()
    return outputs, found[0]


def per_block(w, axis, size, function):
    """``function`` of each block along ``axis``, and the same spread over the weight."""
    count = -(-w.shape[axis] // size)
    cuts = [np.arange(k * size, min((k + 1) * size, w.shape[axis])) for k in range(count)]
    small = np.stack([function(np.take(w, cut, axis), axis) for cut in cuts], axis)
    return small, np.repeat(small, size, axis).take(range(w.shape[axis]), axis)


@pytest.mark.cases(fast=14)
@pytest.mark.parametrize("size", [32, 16, 7])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("cutting")
def test_symmetric_blocks_along_every_axis(shape, size):
    w = weight(shape)
    for axis in range(w.ndim):
        outputs, losses = run(w, Groups.blocks(shape, axis, size), Scheme("INT4"))
        scale, spread = per_block(w, axis, size, lambda b, a: np.abs(b).max(a) / np.float32(7))
        q = np.clip(np.rint(w / spread), -8, 7)
        np.testing.assert_array_equal(
            unpack(outputs[0], 4, w.size).reshape(shape), q.astype(np.int8).view(np.uint8) & 15
        )
        np.testing.assert_array_equal(outputs[1].view(np.float32), scale.ravel())
        error = (q * spread).astype(np.float64) - w
        assert losses.noise == pytest.approx((error**2).sum(), rel=1e-4, abs=1e-12)
        assert losses.signal == pytest.approx((w.astype(np.float64) ** 2).sum(), rel=1e-5)
        assert losses.worst == pytest.approx(np.abs(error).max(), rel=1e-5, abs=1e-7)
        assert losses.worst_steps == pytest.approx(
            (np.abs(error) / spread).max(), rel=1e-4, abs=1e-6
        )
        assert losses.clipped == 0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("cutting")
def test_zero_points_per_channel_of_every_axis(shape):
    w = weight(shape)
    for axis in range(w.ndim):
        outputs, _ = run(w, Groups.channels(shape, axis), Scheme("UINT8", symmetric=False))
        others = tuple(i for i in range(w.ndim) if i != axis)
        low = np.minimum(w.min(others, keepdims=True), 0)
        high = np.maximum(w.max(others, keepdims=True), 0)
        scale = high / np.float32(255) - low / np.float32(255)
        point = np.rint(-low / scale)
        q = np.clip(np.rint(w / scale) + point, 0, 255)
        np.testing.assert_array_equal(outputs[0].reshape(shape), q)
        np.testing.assert_array_equal(outputs[1].view(np.float32), scale.ravel())
        np.testing.assert_array_equal(outputs[2], point.ravel())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("cutting")
def test_one_scale_for_all(shape):
    w = weight(shape)
    outputs, _ = run(w, Groups.tensor(shape), Scheme("INT8"))
    scale = np.abs(w).max() / np.float32(127)
    np.testing.assert_array_equal(outputs[0].view(np.int8).reshape(shape), np.rint(w / scale))
    np.testing.assert_array_equal(outputs[1].view(np.float32), [scale])


def test_an_unsigned_symmetric_type_has_its_zero_in_the_middle():
    w = np.float32([[-2, -1, 0, 1, 2, 0.4, -0.4, 1.6]])
    outputs, _ = run(w, Groups.tensor(w.shape), Scheme("UINT4", symmetric=True))
    scale = np.float32(2) / np.float32(7)
    np.testing.assert_array_equal(unpack(outputs[0], 4, 8), np.rint(w[0] / scale) + 8)
    assert outputs[2].tolist() == [8]


@pytest.mark.parametrize(("codes", "largest"), [("FLOAT4E2M1", 2), ("FLOAT8E4M3FN", 8)])
@pytest.mark.usefixtures("cutting")
def test_microscaling_scales_are_the_powers_of_two_of_the_specification(codes, largest):
    w = weight((64, 40)) * np.float32(2.0) ** np.arange(-20, 20, dtype=np.float32)
    outputs, _ = run(w, Groups.blocks(w.shape, 0, 32), Scheme(codes, scales=E8M0))
    highest = np.abs(w).reshape(2, 32, 40).max(axis=1)
    exponent = np.floor(np.log2(highest.astype(np.float64))).astype(int) - largest
    np.testing.assert_array_equal(outputs[1], (exponent + 127).ravel())
    dtype, top = {
        "FLOAT4E2M1": (ml_dtypes.float4_e2m1fn, 6),
        "FLOAT8E4M3FN": (ml_dtypes.float8_e4m3fn, 448),
    }[codes]
    scaled = w / np.repeat(np.float32(2.0) ** exponent, 32, axis=0)
    expected = np.clip(scaled, -top, top).astype(dtype).view(np.uint8)
    found = unpack(outputs[0], 4, w.size) if largest == 2 else outputs[0]
    np.testing.assert_array_equal(found.reshape(w.shape), expected)


@pytest.mark.usefixtures("cutting")
def test_two_levels_of_scales():
    w = weight((48, 20))
    w[16:32, 3] = 0
    outputs, _ = run(w, Groups.blocks(w.shape, 0, 16), Scheme("FLOAT4E2M1", scales=E4M3))
    unit = outputs[2].view(np.float32)
    np.testing.assert_array_equal(unit, np.abs(w).max() / np.float32(6 * 448))
    highest = np.abs(w).reshape(3, 16, 20).max(axis=1) / np.float32(6)
    stored = np.maximum((highest / unit).astype(ml_dtypes.float8_e4m3fn), np.float32(2.0**-9))
    stored = stored.astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(outputs[1], stored.view(np.uint8).ravel())
    scale = np.repeat(stored.astype(np.float32) * unit, 16, axis=0)
    expected = np.clip(w / scale, -6, 6).astype(ml_dtypes.float4_e2m1fn)
    np.testing.assert_array_equal(
        unpack(outputs[0], 4, w.size).reshape(w.shape), expected.view(np.uint8)
    )


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_short_floats_keep_their_type_in_the_scales(dtype):
    w = weight((64, 8), dtype)
    kind = "FLOAT16" if dtype is np.float16 else "BFLOAT16"
    scheme = Scheme("INT8", scales=kind, result=kind)
    outputs, losses = run(w, Groups.channels(w.shape, 1), scheme)
    wide = w.astype(np.float32)
    scale = (np.abs(wide).max(0) / np.float32(127)).astype(dtype)
    np.testing.assert_array_equal(outputs[1].view(dtype), scale)
    q = np.clip(np.rint(wide / scale.astype(np.float32)), -128, 127)
    np.testing.assert_array_equal(outputs[0].view(np.int8).reshape(w.shape), q)
    decoded = (q * scale.astype(np.float32)).astype(dtype).astype(np.float64)
    assert losses.noise == pytest.approx(((decoded - wide) ** 2).sum(), rel=1e-4)


SEARCHES = [
    Scheme("INT2", search=ScaleSearch.MSE),
    Scheme("INT4", search=ScaleSearch.MSE),
    Scheme("UINT2", False, ScaleSearch.MSE),
    Scheme("FLOAT4E2M1", search=ScaleSearch.MSE),
    Scheme("FLOAT4E2M1", search=ScaleSearch.MSE, scales=E8M0),
    Scheme("FLOAT4E2M1", search=ScaleSearch.MSE, scales=E4M3),
]


@pytest.mark.cases(fast=2, slow=7)
@pytest.mark.parametrize("scheme", SEARCHES, ids=lambda s: f"{s.codes}-{s.scales}")
@pytest.mark.usefixtures("cutting")
def test_a_search_loses_less_than_the_extremes(scheme):
    w = weight((64, 24))
    plain = Scheme(scheme.codes, scheme.symmetric, scales=scheme.scales)
    groupings = [Groups.blocks(w.shape, 0, 16)]
    if scheme.scales == "FLOAT":
        groupings += [Groups.tensor(w.shape), *(Groups.channels(w.shape, a) for a in (0, 1))]
    for groups in groupings:
        _, best = run(w, groups, scheme)
        _, usual = run(w, groups, plain)
        assert best.noise < usual.noise


def test_a_search_comes_near_the_best_of_all_scales():
    w = weight((4096,), seed=3)
    _, losses = run(w, Groups.tensor(w.shape), Scheme("INT2", search=ScaleSearch.MSE))
    errors = []
    for scale in np.linspace(0.2, 4, 2000):
        error = np.clip(np.rint(w.astype(np.float64) / scale), -2, 1) * scale - w
        errors.append((error**2).sum())
    assert losses.noise <= min(errors) * 1.01
    assert losses.clipped > 0


@pytest.mark.parametrize("grouping", ["blocks", "channels", "tensor"])
@pytest.mark.parametrize(
    ("codes", "symmetric", "scales"),
    [
        ("INT4", True, "FLOAT"),
        ("UINT4", False, "FLOAT"),
        ("INT8", True, "FLOAT"),
        ("FLOAT4E2M1", True, E4M3),
        ("FLOAT4E2M1", True, E8M0),
    ],
)
def test_a_search_that_ends_early_finds_the_scale_of_a_whole_search(
    monkeypatch, codes, symmetric, scales, grouping
):
    scheme = Scheme(codes, symmetric, ScaleSearch.MSE, scales)
    w = weight((48, 64), seed=3) ** 3
    w[::5] = -np.abs(w[::5])
    groups = {
        "blocks": Groups.blocks(w.shape, 1, 16),
        "channels": Groups.channels(w.shape, 1),
        "tensor": Groups.tensor(w.shape),
    }[grouping]
    found, _ = run(w, groups, scheme)
    monkeypatch.setattr(weight_job.search, "may_be_better", lambda *_: True)
    expected, _ = run(w, groups, scheme)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_scales_that_repeat_are_offered_once(monkeypatch):
    """E4M3 scales: consecutive candidates are 4% apart, consecutive numbers 6 to 12%."""
    scheme = Scheme("FLOAT4E2M1", True, ScaleSearch.MSE, E4M3)
    w = weight((48, 64), seed=4)
    w[:16] = 0
    found, _ = run(w, Groups.blocks(w.shape, 0, 16), scheme)
    offers = []

    def every(given):
        for offer in given:
            offers.append(offer)
            yield offer

    monkeypatch.setattr(search, "distinct", every)
    monkeypatch.setattr(search, "may_be_better", lambda *_: True)
    expected, _ = run(w, Groups.blocks(w.shape, 0, 16), scheme)
    monkeypatch.undo()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    kept = list(search.distinct(iter(offers)))
    assert len(kept) <= 0.6 * len(offers)
    group = [[float(offer.scale[0, 1, 0, 5]) for offer in some] for some in (offers, kept)]
    assert set(group[0]) == set(group[1])


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize(
    "scheme",
    [
        *SEARCHES,
        Scheme("INT8", search=ScaleSearch.MSE),
        Scheme("FLOAT8E4M3FN", True, ScaleSearch.MSE),
    ],
    ids=lambda s: f"{s.codes}-{s.scales}",
)
def test_compiled_loops_choose_what_numpy_chooses(monkeypatch, scheme):
    pytest.importorskip("numba")
    w = weight((96, 40, 3), seed=5) ** 3
    w[::7], w[:, 3] = 0, w[:, 3] * np.float32(2.0**-130)
    groupings = [Groups.blocks(w.shape, axis, 16) for axis in range(3)]
    if scheme.scales == "FLOAT":
        groupings += [Groups.channels(w.shape, axis) for axis in range(3)]
        groupings += [Groups.tensor(w.shape)]
    for groups in groupings:
        results = []
        for worth in (0, 1 << 62):
            monkeypatch.setattr(search, "_WORTH", worth)
            results.append(run(w, groups, scheme)[0])
        for one, other in zip(*results, strict=True):
            np.testing.assert_array_equal(one, other)
    assert search._compiled.cache_info().currsize


def in_turn(w, scheme, unit):
    """The search as it is defined: one candidate after the other, a later one only if better."""
    ends = spanned(*extremes(w, (2,), np.empty_like(w)), scheme)
    factors = [np.float32(1), *np.asarray([0.5, 2.0], np.float32)]
    if scheme.scales != E8M0:
        lowest = 0.2 if FORMATS[scheme.codes].bits == 2 else 0.4
        steps = [1.05]
        while steps[-1] > lowest:
            steps.append(steps[-1] * 0.96)
        factors[1:] = np.asarray(steps, np.float32)
    best = [None, None, None]
    for factor in factors:
        offer = parameters(*ends, scheme, unit, factor)
        scale = np.broadcast_to(offer.scale, w.shape)
        zero = np.float32(0) if offer.zero_point is None else offer.zero_point
        q = w / scale
        if isinstance(form := FORMATS[scheme.codes], IntFormat):
            q = np.clip(np.rint(q) + zero, np.float32(form.lo), np.float32(form.hi)) - zero
        else:
            q = cast(q, scheme.codes)
        error = q * scale - w
        if w.shape[-1] > 1:
            noise = np.square(error).sum(axis=2, keepdims=True)
        else:
            noise = np.einsum("rgsc,rgsc->rgc", error, error)[:, :, None]
        found = noise, offer.scale, np.broadcast_to(zero, noise.shape)
        better = True if best[0] is None else noise < best[0]
        best = [new.copy() if old is None else np.where(better, new, old)
                for old, new in zip(best, found, strict=True)]  # fmt: skip
    return best[1:]


@pytest.mark.cases(fast=0, slow=8)
@pytest.mark.parametrize("shape", [(1, 5, 32, 70), (30, 4, 16, 1), (1, 1, 32, 1), (2, 3, 7, 33)])
@pytest.mark.parametrize(
    "scheme",
    [*SEARCHES, Scheme("UINT4", False, ScaleSearch.MSE, "FLOAT16")],
    ids=lambda s: f"{s.codes}-{s.scales}",
)
@pytest.mark.parametrize("worth", [0, 1 << 62], ids=["compiled", "numpy"])
def test_a_search_chooses_what_trying_all_in_turn_does(monkeypatch, worth, scheme, shape):
    monkeypatch.setattr(search, "_WORTH", worth)
    w = weight(shape, seed=6) ** 3
    w[..., 0] = np.rint(w[..., 0])
    w[-1:] *= np.float32(2.0**-140)
    w[:1] *= np.float32(2.0**120)
    unit = unit_of(np.abs(w).max(), scheme) if scheme.scales == E4M3 else np.float32(1)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = in_turn(w, scheme, unit)
        found = search.best(w, scheme, (2,), unit, np.empty_like(w))
    np.testing.assert_array_equal(found.scale, expected[0])
    if found.zero_point is not None:
        np.testing.assert_array_equal(found.zero_point, expected[1])


def test_zeros_and_tiny_numbers():
    w = np.zeros((32, 4), np.float32)
    w[:, 1], w[:, 2] = 1e-45, 1e-38
    for scheme in (Scheme("INT4"), Scheme("UINT4", False), Scheme("FLOAT8E4M3FN")):
        outputs, losses = run(w, Groups.blocks(w.shape, 0, 32), scheme)
        scale = outputs[1].view(np.float32)
        assert (scale > 0).all()
        assert np.isfinite(scale).all()
        assert losses.worst <= 1e-38


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("grouping", ["blocks", "tensor", "channels"])
def test_weights_that_are_no_numbers_are_refused(value, grouping):
    w = weight((64, 8))
    w[40, 3] = value
    groups = {
        "blocks": Groups.blocks(w.shape, 0, 32),
        "tensor": Groups.tensor(w.shape),
        "channels": Groups.channels(w.shape, 1),
    }[grouping]
    for scheme in (Scheme("INT8"), Scheme("UINT8", False), Scheme("INT8", search=ScaleSearch.MSE)):
        with pytest.raises(ModelError, match=r"'w'.*infinite or NaN"):
            run(w, groups, scheme)


def test_weights_whose_squares_overflow_are_numbers():
    w = np.float32([[3e38, -3e38, 1e30, 0]])
    outputs, _ = run(w, Groups.tensor(w.shape), Scheme("INT8"))
    assert outputs[0].view(np.int8).tolist() == [127, -127, 0, 0]


@pytest.mark.usefixtures("cutting")
def test_parts_may_run_in_any_order_and_elsewhere():
    w = weight((64, 48))
    job = WeightJob(
        "w", Stream("FLOAT", w.shape, w), Groups.blocks(w.shape, 0, 8), Scheme("UINT4", False)
    )
    sinks = [MemorySink(size) for size in job.sizes()]
    parts = pickle.loads(pickle.dumps(list(job.parts())))
    assert sum(part.reads for part in parts) == w.nbytes
    for part in reversed(parts):
        part(sinks)
    for sink, data in zip(sinks, job.run(), strict=True):
        np.testing.assert_array_equal(sink.data, data)
