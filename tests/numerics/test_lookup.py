from __future__ import annotations

import numpy as np
import pytest

from qgraph.numerics.float32 import look_up, look_up_bytes, representatives
from qgraph.numerics.minifloat import DTYPES, MINIFLOATS, cast, decode, encode

FP8 = [name for name in MINIFLOATS if name.startswith("FLOAT8")]


@pytest.fixture(scope="module")
def every_upper_half():
    """All upper halves with nothing, little, a middle, much and something random below."""
    upper = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    random = np.random.default_rng(4).integers(1, 1 << 16, upper.size, dtype=np.uint32)
    lower = [np.uint32(n) for n in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    return np.concatenate([upper | n for n in [*lower, random]]).view(np.float32)


def nearest_codes(x, name):
    """The code of the nearest grid point, of the even code for a tie, found in double precision."""
    f = MINIFLOATS[name]
    codes = np.arange(1 << (f.bits - 1))
    values = codes.astype(np.uint8).view(DTYPES[name]).astype(np.float64)
    codes, values = codes[np.abs(values) <= f.max_value], values[np.abs(values) <= f.max_value]
    middles = (values[1:] + values[:-1]) / 2
    magnitude = np.abs(x.astype(np.float64))
    above = np.searchsorted(middles, magnitude, side="right")
    below = np.searchsorted(middles, magnitude, side="left")
    tied = above != below
    found = codes[np.where(tied & (below % 2 == 0), below, above)]
    sign = np.signbit(x) & (f.has_negative_zero | (found != 0))
    return (found | (sign.astype(np.int64) << (f.bits - 1))).astype(np.uint8)


@pytest.mark.parametrize("name", MINIFLOATS)
def test_every_upper_half_is_encoded_to_the_nearest_code(name, every_upper_half):
    x = every_upper_half[~np.isnan(every_upper_half)]
    codes = encode(x, name).view(np.uint8)
    np.testing.assert_array_equal(codes, nearest_codes(x, name))
    np.testing.assert_array_equal(cast(x, name), decode(encode(x, name)))


@pytest.mark.parametrize("name", FP8)
def test_every_upper_half_without_saturation_is_what_ml_dtypes_gives(name, every_upper_half):
    with np.errstate(invalid="ignore", over="ignore"):
        expected = every_upper_half.astype(DTYPES[name])
    codes = encode(every_upper_half, name, saturate=False)
    nan = np.isnan(expected.astype(np.float32))
    assert np.isnan(decode(codes)[nan]).all()
    np.testing.assert_array_equal(codes.view(np.uint8)[~nan], expected.view(np.uint8)[~nan])


@pytest.mark.parametrize("name", DTYPES)
def test_every_byte_is_decoded_to_what_ml_dtypes_gives(name):
    codes = np.arange(256, dtype=np.uint8).view(DTYPES[name])
    np.testing.assert_array_equal(decode(codes), codes.astype(np.float32))


def test_representatives_hit_their_own_entries():
    table = np.arange(1 << 16, dtype=np.uint16)
    np.testing.assert_array_equal(look_up(representatives(), table), table)


def test_what_lies_between_two_even_halves_has_the_odd_entry_between_them():
    table = np.arange(1 << 16, dtype=np.uint16)
    one = int(np.float32(1).view(np.uint32))
    bits = one + np.arange(0, 1 << 17, 4097, dtype=np.uint32)
    places = look_up(bits.view(np.float32), table)
    assert places[0] == one >> 16
    assert set(places[1:].tolist()) == {(one >> 16) + 1}


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (130, 1000)])
def test_shapes_layouts_and_outputs(shape):
    x = np.asarray(np.random.default_rng(5).standard_normal(shape), np.float32)
    table = np.arange(1 << 16, dtype=np.float32)
    flat = look_up(x.reshape(-1).copy(), table)
    for given in (x, np.asfortranarray(x), np.repeat(x[None], 2, axis=0)[1]):
        found = look_up(given, table)
        assert found.shape == given.shape
        np.testing.assert_array_equal(found.ravel(), flat)
    wide = np.empty((*shape, 2), np.float32)
    assert look_up(x, table, wide[..., 1]).base is wide
    np.testing.assert_array_equal(wide[..., 1], flat.reshape(shape))
    assert look_up(x, table, x) is x
    np.testing.assert_array_equal(x, flat.reshape(shape))


def test_bytes_are_looked_up_in_pieces_too():
    data = np.random.default_rng(6).integers(0, 256, 100_003, dtype=np.uint8)
    table = np.arange(256, dtype=np.float32) ** 2
    np.testing.assert_array_equal(look_up_bytes(data, table), data.astype(np.float32) ** 2)
    strided = look_up_bytes(data[::3], table)
    np.testing.assert_array_equal(strided, data[::3].astype(np.float32) ** 2)
