"""Several codes of 2, 4 or 6 bits in the bytes of an ONNX tensor, first element in the low bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# elements per call of the kernels: the working set stays in the second-level cache
_CHUNK = 1 << 18


def packed_size(bits: int, count: int) -> int:
    """Bytes of ``count`` packed codes: ceil(bits * count / 8)."""
    return -(-bits * count // 8)


def pack(codes: npt.NDArray[np.generic], bits: int) -> Bytes:
    """Codes side by side, in C order; the rest of the last byte is 0.

    2 bits  x0 | x1 << 2 | x2 << 4 | x3 << 6
    4 bits  x0 | x1 << 4
    6 bits  four codes as 24 bits, low byte first: x0 | x1 << 6 | x2 << 12 | x3 << 18

    Args:
        codes: ``[*shape]``, one code per byte, any one-byte dtype; bits above ``bits`` are ignored.
        bits: 2, 4 or 6.

    Returns: ``[ceil(bits * size / 8)]`` bytes.
    Raises: ValueError for other widths, or elements that are not one byte.
    Source: ONNX TensorProto.raw_data.
    """
    if codes.dtype.itemsize != 1:
        msg = f"codes of dtype {codes.dtype} cannot be packed; expected one code per byte"
        raise ValueError(msg)
    group = _group(bits)
    flat = np.ascontiguousarray(codes).view(np.uint8).reshape(-1)
    whole = flat.size - flat.size % group
    out = np.empty(packed_size(bits, flat.size), np.uint8)
    for start in range(0, whole, _CHUNK):
        stop = min(start + _CHUNK, whole)
        _pack_groups(flat[start:stop], bits, out[start * bits // 8 : stop * bits // 8])
    if whole < flat.size:
        tail = np.zeros(group, np.uint8)
        tail[: flat.size - whole] = flat[whole:]
        last = np.empty(group * bits // 8, np.uint8)
        _pack_groups(tail, bits, last)
        done = whole * bits // 8
        out[done:] = last[: out.size - done]
    return out


def unpack(data: Bytes, bits: int, count: int) -> Bytes:
    """The first ``count`` codes of packed bytes, one per byte; inverse of :func:`pack`.

    Args:
        data: ``[n]`` bytes with ``n = ceil(bits * count / 8)``.
        bits: 2, 4 or 6.
        count: number of codes.

    Returns: ``[count]`` codes, upper bits 0 (no sign extension).
    Raises: ValueError for other widths, or a length that does not fit ``count``.
    """
    group = _group(bits)
    size = packed_size(bits, count)
    if data.size != size:
        msg = f"{count} codes of {bits} bits take {size} bytes, but the data has {data.size}"
        raise ValueError(msg)
    flat, unit = np.ascontiguousarray(data).reshape(-1), group * bits // 8
    out = np.empty(count, np.uint8)
    whole = count // group
    step = _CHUNK // group
    for start in range(0, whole, step):
        stop = min(start + step, whole)
        _unpack_groups(flat[start * unit : stop * unit], bits, out[start * group : stop * group])
    if whole * group < count:
        rest, last = np.zeros(unit, np.uint8), np.empty(group, np.uint8)
        rest[: size - whole * unit] = flat[whole * unit :]
        _unpack_groups(rest, bits, last)
        out[whole * group :] = last[: count - whole * group]
    return out


def _group(bits: int) -> int:
    """Codes that together fill whole bytes."""
    if bits not in (2, 4, 6):
        msg = f"codes of {bits} bits have no packed form in ONNX; expected 2, 4 or 6 bits"
        raise ValueError(msg)
    return 2 if bits == 4 else 4


def _pack_groups(codes: Bytes, bits: int, out: Bytes) -> None:
    # Masks come before shifts: a sign-extended code would spill into its neighbour.
    if bits == 4:
        pair = codes.view("<u2") & np.uint16(0x0F0F)
        pair |= pair >> np.uint16(4)
        np.copyto(out, pair, casting="unsafe")
        return
    quad = codes.view("<u4") & np.uint32(0x3F3F3F3F if bits == 6 else 0x03030303)
    if bits == 2:
        quad |= quad >> np.uint32(6)
        quad |= quad >> np.uint32(12)
        np.copyto(out, quad, casting="unsafe")
        return
    quad = (quad & np.uint32(0x003F003F)) | (quad & np.uint32(0x3F003F00)) >> np.uint32(2)
    quad = (quad & np.uint32(0xFFF)) | (quad & np.uint32(0x0FFF0000)) >> np.uint32(4)
    out.reshape(-1, 3)[...] = quad.view(np.uint8).reshape(-1, 4)[:, :3]


def _unpack_groups(data: Bytes, bits: int, out: Bytes) -> None:
    if bits == 4:
        pair = out.view("<u2")
        np.copyto(pair, data)
        pair |= pair << np.uint16(4)
        pair &= np.uint16(0x0F0F)
        return
    quad = out.view("<u4")
    if bits == 2:
        np.copyto(quad, data)
        quad |= quad << np.uint32(12)
        quad |= quad << np.uint32(6)
        quad &= np.uint32(0x03030303)
        return
    out.reshape(-1, 4)[:, :3] = data.reshape(-1, 3)
    out[3::4] = 0
    quad[...] = (quad & np.uint32(0xFFF)) | (quad & np.uint32(0xFFF000)) << np.uint32(4)
    quad[...] = (quad & np.uint32(0x003F003F)) | (quad & np.uint32(0x0FC00FC0)) << np.uint32(2)
