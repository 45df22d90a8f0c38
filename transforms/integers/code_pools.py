"""QLinearAveragePool of com.microsoft in standard operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.dialect import Refusal
from qgraph.errors import OperatorError, where
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.foreign.kernels import MICROSOFT
from qgraph.foreign.operands import refuse_references
from qgraph.foreign.pooling import averages_all, counts
from qgraph.foreign.rescaling import unproved
from qgraph.graph.edit import Draft
from qgraph.graph.edit import Operand as Drafted
from qgraph.kernels.standard import Windows
from qgraph.transforms.integers.code_pairs import lower_pool
from qgraph.transforms.integers.coded import Coded, read_one
from qgraph.transforms.integers.integer_sums import encode
from qgraph.transforms.rebuilding import Rebuild

_REAL = ir.DataType.FLOAT
_OPSET, _OPSET_OF_PADS = 10, 11
_MOST = 64
"""Elements of a window that are added one by one, at most."""
_END = np.iinfo(np.int64).max


def lower_average_pool(node: ir.Node, *, reals: bool) -> Rebuild | Refusal | None:
    """Return how to spell a node, exactly or with real numbers; None if it is none of these.

    AveragePool leaves the order of its additions open; the exact form adds the elements of a window
    one after the other, each a Slice of the image.

    Raises:
        OperatorError: a parameter or a size is only known at run time.
    """
    if node.domain != MICROSOFT or node.op_type != "QLinearAveragePool":
        return None
    refuse_references(node)
    x, step, zero = read_one(node)
    if node.attributes.get_int("channels_last", 0):
        return Refusal(node, f"{where(node)}: AveragePool has no channels_last")
    if reals:
        return _by_reals(node, x, step, zero)
    shape = x.codes.shape
    sizes = [] if shape is None else [size for size in list(shape)[2:] if isinstance(size, int)]
    if shape is None or len(sizes) < len(shape) - 2:
        raise OperatorError(
            f"{where(node)}: the size of its images is not known, which tells how many elements a "
            "window has. Run shape inference with fixed sizes first."
        )
    if averages_all(node, sizes):
        return lower_pool(node, reals=False)
    windows = Windows.of(node, sizes, node.attributes.get_ints("kernel_shape", []))
    if int(np.prod(windows.kernel)) > _MOST:
        reason = f"windows of more than {_MOST} elements are not added one by one; form=qdq is near"
        return Refusal(node, f"{where(node)}: {reason}")

    def write(draft: Draft) -> Drafted:
        total: Drafted | None = None
        for part in _parts(draft, x, windows):
            total = part if total is None else draft.op.Add(total, part)
        if total is None:
            raise OperatorError(f"{where(node)}: its windows have no elements.")
        average = draft.op.Div(total, np.asarray(counts(node, windows, sizes), np.float32))
        steps = draft.op.Div(average, step)
        shifted = draft.op.Add(steps, zero.astype(np.float32)) if zero else steps
        return encode(draft, shifted, np.zeros((), zero.dtype))

    told = f"the {int(np.prod(windows.kernel))} elements of a window are added in their order"
    verdict = Verdict(Exactness.BITS, Method.CONGRUENCE, reason=told)
    return Rebuild(node, (node,), verdict, write, _OPSET_OF_PADS)


def _by_reals(
    node: ir.Node, x: Coded, step: npt.NDArray[Any], zero: npt.NDArray[Any]
) -> Rebuild | Refusal:
    get = node.attributes.get_int
    if get("count_include_pad", 0) and get("ceil_mode", 0):
        reason = "with ceil_mode it counts elements behind the padding, which AveragePool does not"
        return Refusal(node, f"{where(node)}: {reason}")
    attributes = {k: v.value for k, v in node.attributes.items() if k != "channels_last"}

    def write(draft: Draft) -> Drafted:
        y = draft.node("AveragePool", [x.decoded(draft)], attributes, dtype=_REAL)
        return draft.node("QuantizeLinear", [y, step, zero])

    verdict = unproved(
        "the zero point is added before rounding there and after it here, and the order of the "
        "additions is open"
    )
    return Rebuild(node, (node,), verdict, write, _OPSET)


def _parts(draft: Draft, x: Coded, windows: Windows) -> Iterator[Drafted]:
    """Yield the first element of all windows, then the second, and so on, in row order."""
    image = x.decoded(draft)
    if any(windows.before) or any(windows.after):
        pads = np.array([0, 0, *windows.before, 0, 0, *windows.after], np.int64)
        image = draft.node("Pad", [image, draft.constant(pads, "pads")], dtype=_REAL)
    rank = len(windows.kernel)
    axes = draft.constant(np.arange(2, 2 + rank), "axes")
    steps = draft.constant(np.array(windows.strides, np.int64), "steps")
    for place in np.ndindex(windows.kernel):
        left = zip(windows.kernel, place, strict=True)
        ends = [-(size - 1 - at) or _END for size, at in left]
        bounds = [draft.constant(np.array(each, np.int64), "bounds") for each in (place, ends)]
        yield draft.node("Slice", [image, *bounds, axes, steps], dtype=_REAL)
