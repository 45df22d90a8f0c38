"""Whether every window of a pool contains an element of the data."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

_MOST_WINDOWS = 1 << 16


def is_never_empty(node: ir.Node, sizes: Sequence[object], *, trusts_ceil: bool = False) -> bool:
    """Return whether no window of a pool lies in the padding alone.

    A window of neighbouring elements contains data if the padding at either end is smaller than the
    window. Windows with gaps are examined one by one. Versions and runtimes disagree on which
    windows ``ceil_mode`` adds.

    Args:
        node: the pool.
        sizes: shape of its data.
        trusts_ceil: take it that ``ceil_mode`` adds windows only that begin before the padding at
            the end, as ONNX defines it; otherwise the result is False if it is set.
    """
    kernel = (
        list(node.attributes["kernel_shape"].as_ints()) if "kernel_shape" in node.attributes else []
    )
    rank = len(kernel)
    if not rank or len(sizes) != rank + 2 or 0 in sizes:
        return False
    strides = _ints(node, "strides", [1] * rank)
    dilations = _ints(node, "dilations", [1] * rank)
    pads = _ints(node, "pads", [0] * 2 * rank)
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    is_ceil = node.attributes.get_int("ceil_mode", 0) != 0
    if is_ceil and not (trusts_ceil and set(dilations) == {1}):
        return False
    if (len(strides), len(dilations), len(pads)) != (rank, rank, 2 * rank) or min(pads) < 0:
        return False
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return set(dilations) == {1}
    if auto == "VALID":
        return True
    if is_ceil:
        pads = pads[:rank] + [0] * rank
    return auto == "NOTSET" and all(
        _reaches_data(size, *window)
        for size, window in zip(
            sizes[2:],
            zip(kernel, strides, dilations, pads[:rank], pads[rank:], strict=True),
            strict=True,
        )
    )


def _reaches_data(
    size: object, kernel: int, stride: int, dilation: int, before: int, after: int
) -> bool:
    if not before and not after:
        return True
    if not isinstance(size, int):  # it may be 0; then no window fits into so little padding
        return dilation == 1 and before + after < kernel
    if dilation == 1:
        return before < kernel and after < kernel
    count = (size + before + after - (kernel - 1) * dilation - 1) // stride + 1
    return count <= _MOST_WINDOWS and all(
        any(0 <= window * stride - before + index * dilation < size for index in range(kernel))
        for window in range(count)
    )


def _ints(node: ir.Node, name: str, default: list[int]) -> list[int]:
    attribute = node.attributes.get(name)
    return default if attribute is None else [int(number) for number in attribute.as_ints()]
