"""Which quantizer a chain of steps is.

What is found here are parameters to choose a spelling by. They may be off by a rounding error or be
wrong for numbers that never occur: nodes are compared with nodes before anything is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qgraph.quantizer import Quantizer
from qgraph.recognition.affine import affine
from qgraph.recognition.bipolar import bipolar
from qgraph.recognition.floating import floating
from qgraph.recognition.ranged import ranged
from qgraph.recognition.spelling import Spelling
from qgraph.recognition.steps import Arithmetic, Encoded, Rounded, Signed, Snapped, Step, simplified
from qgraph.recognition.stored import stored
from qgraph.recognition.truncating import regridded, truncating


def quantizer_of(steps: Sequence[Step], spelling: Spelling) -> Quantizer | None:
    """Return the quantizer that ``steps`` are, the innermost first, or None."""
    plain = simplified(tuple(steps))
    with np.errstate(all="ignore"):
        if spelling.codes is not None:
            return stored(plain, spelling.codes)
        if any(isinstance(step, Snapped | Encoded) for step in plain):
            return floating(plain)
        if any(isinstance(step, Signed) for step in plain):
            return bipolar(plain)
        rounded = [place for place, step in enumerate(plain) if isinstance(step, Rounded)]
        if not 1 <= len(rounded) <= 2 or (spelling.dialect == "onnx" and not _scales(steps)):
            return None
        if len(rounded) == 2:
            return truncating(plain, *rounded)
        parts = plain[: rounded[0]], plain[rounded[0]], plain[rounded[0] + 1 :]
        return affine(*parts, spelling) or ranged(*parts, spelling) or regridded(*parts, steps)


def may_round(steps: Sequence[Step]) -> bool:
    """Return whether ``steps``, on data that is no codes, may be a quantizer of any spelling."""
    plain = simplified(tuple(steps))
    if any(isinstance(step, Snapped | Encoded | Signed) for step in plain):
        return True
    return 1 <= sum(isinstance(step, Rounded) for step in plain) <= 2


def _scales(steps: Sequence[Step]) -> bool:
    """Return whether ``steps`` divide before they round, and multiply afterwards."""
    names = [step.name if isinstance(step, Arithmetic) else "" for step in steps]
    places = [i for i, step in enumerate(steps) if isinstance(step, Rounded)]
    before = {"Div", "Mul"} & set(names[: places[0]])
    return bool(before) and "Mul" in names[places[-1] :]
