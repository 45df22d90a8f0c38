from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.numerics.formats import (
    FORMATS,
    IntFormat,
    Minifloat,
    find_minifloat,
    numpy_dtype,
)
from qgraph.numerics.minifloat import DTYPES, MINIFLOATS
from qgraph.numerics.rounding import Rounding


@pytest.mark.parametrize("name", FORMATS)
def test_a_named_format_is_the_onnx_type_of_that_name(name):
    f = FORMATS[name]
    assert f.name == name
    assert f.bits == ir.DataType[name].itemsize * 8
    assert numpy_dtype(name) == ir.DataType[name].numpy()


@pytest.mark.parametrize("name", MINIFLOATS)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3)])
def test_shapes_are_kept(name, shape):
    f = MINIFLOATS[name]
    values = f.snap(np.full(shape, 1, np.float32))
    assert isinstance(values, np.ndarray)
    assert (values.shape, values.dtype) == (shape, np.float32)


@pytest.mark.parametrize("name", MINIFLOATS)
def test_snap_is_idempotent_leaves_its_input_alone_and_stays_in_range(name, finite):
    f = MINIFLOATS[name]
    before = finite.copy()
    once = f.snap(finite)
    np.testing.assert_array_equal(finite, before)
    np.testing.assert_array_equal(f.snap(once), once)
    assert once.min() >= np.float32(f.lo)
    assert once.max() <= np.float32(f.hi)


@pytest.mark.parametrize("name", MINIFLOATS)
def test_snap_keeps_nan_without_a_warning(name, specials):
    nan = specials[np.isnan(specials)]
    for mode in (Rounding.ROUND, Rounding.UP, Rounding.DOWN):
        assert np.isnan(MINIFLOATS[name].snap(nan, mode)).all()


@pytest.mark.parametrize(
    ("f", "lo", "hi", "name"),
    [
        (IntFormat(3, signed=True), -4, 3, "INT3"),
        (IntFormat(8, signed=True, narrow=True), -127, 127, "INT8 narrow"),
        (IntFormat(8, signed=False, narrow=True), 0, 254, "UINT8 narrow"),
        (IntFormat(1, signed=False), 0, 1, "UINT1"),
        (IntFormat(1, signed=True), -1, 0, "INT1"),
        (IntFormat(32, signed=True), -2147483648, 2147483647, "INT32"),
    ],
)
def test_bounds_of_integers(f, lo, hi, name):
    assert (f.lo, f.hi, f.name) == (lo, hi, name)


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ((4, 3, 7, 448), "FLOAT8E4M3FN"),
        ((4, 3, 8, 240), "FLOAT8E4M3FNUZ"),
        ((5, 2, 15, 57344), "FLOAT8E5M2"),
        ((5, 2, 16, 57344), "FLOAT8E5M2FNUZ"),
        ((2, 1, 1, 6), "FLOAT4E2M1"),
        ((3, 2, 3, 28), "FLOAT6E3M2"),
        ((2, 3, 1, 7.5), "FLOAT6E2M3"),
    ],
)
def test_find_minifloat(parameters, name):
    found = find_minifloat(*parameters)
    assert isinstance(found, Minifloat)
    assert found.name == name


@pytest.mark.parametrize("parameters", [(4, 3, 7, 430), (4, 3, 6, 448), (3, 2, 3, 6)])
def test_find_minifloat_wants_every_parameter(parameters):
    assert find_minifloat(*parameters) is None


def test_dtypes_cover_every_minifloat_and_unknown_names_are_refused():
    assert set(DTYPES) == {n for n in FORMATS if n.startswith("FLOAT")}
    assert numpy_dtype("FLOAT") == np.float32
    assert numpy_dtype("INT64") == np.int64
    with pytest.raises(ValueError, match="'STRING' has no NumPy dtype here"):
        numpy_dtype("STRING")
