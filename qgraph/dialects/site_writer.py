"""Starting and ending the drafts for one site, the data being seen as blocks where that helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.block_view import BlockView, view_of
from qgraph.dialects.dialect import Site, data_of
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.quantizer import Truncating

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


class SiteWriter:
    """What all spellings of a site share.

    Args:
        site: what is spelled.
        editor: makes the drafts.
    """

    def __init__(self, site: Site, editor: Editor) -> None:
        self.site = site
        self._editor = editor
        self._view = BlockView(site.shape)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Shape in which the data is seen."""
        return self.site.shape if self._view.axis is None else self._view.seen

    def see(self, *parameters: Float32) -> list[Float32]:
        """Choose how the data is seen; return the parameters as they broadcast to that."""
        self._view = view_of(self.site.shape, parameters)
        return [self._view.lay(parameter) for parameter in parameters]

    def see_truncating(self, meaning: Truncating) -> Truncating:
        """Do as :meth:`see` with all parameters of a Trunc."""
        names = ("scale", "zero_point", "ratio", "lo", "hi", "out_scale", "out_zero_point")
        s, z, ratio, lo, hi, out_scale, out_zero = self.see(*(getattr(meaning, n) for n in names))
        return Truncating(s, z, ratio, lo, hi, meaning.rounding, out_scale, out_zero)

    def begin(self) -> tuple[Draft, Operand]:
        """Return an empty draft, and the data as float values."""
        draft = self._editor.draft(self.site)
        return draft, self._view.enter(draft, data_of(draft, self.site))

    def begin_on(self, constant: Float32) -> tuple[Draft, Operand]:
        """Return an empty draft, and a constant of the shape of the data."""
        draft = self._editor.draft(self.site)
        return draft, self._view.enter(draft, draft.constant(constant, "weight"))

    def end(self, draft: Draft, y: Operand) -> Draft:
        """Return the draft with ``y`` as its output."""
        return draft.giving(self._view.leave(draft, y))

    def seen(self, constant: Array) -> Array:
        """Return a constant of the shape of the data in the shape in which it is seen."""
        return constant if self._view.axis is None else constant.reshape(self._view.seen)


def node(
    draft: Draft,
    domain: str,
    name: str,
    operands: Sequence[Operand],
    attributes: Mapping[str, object],
) -> ir.Value:
    """Append an operator of another domain, which returns float32."""
    return draft.node(name, operands, dict(attributes), domain=domain, dtype=ir.DataType.FLOAT)
