from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from qgraph.numerics.formats import pack, packed_size, unpack

DTYPES = {2: ml_dtypes.uint2, 4: ml_dtypes.int4, 6: ml_dtypes.float6_e3m2fn}
COUNTS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1001, (1 << 18) - 1, (1 << 18) + 3]


def bit_stream(codes, bits):
    """Low ``bits`` bits of every code, lowest first, in one stream of bytes."""
    columns = np.unpackbits(codes.reshape(-1, 1), axis=1, bitorder="little")[:, :bits]
    return np.packbits(columns.ravel(), bitorder="little")


@pytest.fixture
def random_bytes():
    return np.random.default_rng(2).integers(0, 256, max(COUNTS), dtype=np.uint8)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("bits", [2, 4, 6])
def test_packed_codes_are_a_bit_stream_and_unpack_gives_them_back(bits, count, random_bytes):
    codes = random_bytes[:count]
    before = codes.copy()
    data = pack(codes, bits)
    assert data.size == packed_size(bits, count)
    np.testing.assert_array_equal(data, bit_stream(codes, bits))
    np.testing.assert_array_equal(unpack(data, bits, count), codes & ((1 << bits) - 1))
    np.testing.assert_array_equal(codes, before)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 1001])
@pytest.mark.parametrize("bits", [2, 4, 6])
def test_packed_bytes_are_those_of_onnx_ir_and_onnx(bits, count, random_bytes):
    codes = random_bytes[:count] & ((1 << bits) - 1)
    array = codes.view(DTYPES[bits])
    data = pack(array, bits)
    assert data.tobytes() == ir.Tensor(array).tobytes()
    proto = onnx.TensorProto(
        data_type=ir.DataType.from_numpy(array.dtype), dims=[count], raw_data=data.tobytes()
    )
    np.testing.assert_array_equal(numpy_helper.to_array(proto).view(np.uint8), array.view(np.uint8))


def test_sign_extended_codes_do_not_spill_into_their_neighbours():
    np.testing.assert_array_equal(pack(np.int8([-1, 0, 0, -8]), 4), [0x0F, 0x80])
    np.testing.assert_array_equal(pack(np.int8([-1, 0, 0, -2]), 2), [0x83])


def test_any_shape_and_layout_is_read_in_c_order():
    codes = np.arange(12, dtype=np.uint8).reshape(3, 4)
    np.testing.assert_array_equal(pack(codes.T, 4), pack(codes.T.ravel(), 4))
    np.testing.assert_array_equal(pack(np.uint8(5).reshape(()), 4), [5])


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_other_widths_have_no_packed_form(bits):
    with pytest.raises(ValueError, match=f"codes of {bits} bits have no packed form"):
        pack(np.uint8([1]), bits)
    with pytest.raises(ValueError, match=f"codes of {bits} bits have no packed form"):
        unpack(np.uint8([1]), bits, 1)


def test_wide_elements_and_wrong_lengths_are_refused():
    with pytest.raises(ValueError, match="dtype int32 cannot be packed"):
        pack(np.int32([1, 2]), 4)
    with pytest.raises(ValueError, match="3 codes of 4 bits take 2 bytes, but the data has 1"):
        unpack(np.uint8([1]), 4, 3)
