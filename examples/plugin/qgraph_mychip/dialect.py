"""The dialect mychip: quantizers as StepQuant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from qgraph.plugin import (
    FLOAT,
    Affine,
    OpKey,
    Refusal,
    Site,
    constant_stream,
    data_of,
    dialect,
    operator_of,
    parameter,
    shape_of,
)
from qgraph_mychip.step_quant import DOMAIN, NAME


@dialect
class MyChip:
    """Reads and writes StepQuant. What it writes is compared with the old nodes for all inputs."""

    name: ClassVar[str] = "mychip"
    roots: ClassVar[frozenset[OpKey]] = frozenset({OpKey(DOMAIN, NAME)})

    def read(self, node: Any) -> Site | Refusal | None:
        """Return the quantizer that a node is."""
        known, x = operator_of(node), node.inputs[0]
        if known is None or x is None:
            return None
        step = parameter(node, node.inputs[1], "step")
        if not (step > 0).all():
            return Refusal(node, "its step is not positive")
        attributes = known.schema.attributes_of(node)
        zero, low, high = (
            np.asarray(code, np.float32) for code in (0, attributes["low"], attributes["high"])
        )
        meaning = Affine(step, zero, low, high)
        stored = constant_stream(x)
        shape = shape_of(x, step)
        return Site(x, node.outputs[0], (node,), node, self.name, meaning, shape, stored)

    def spellings(self, site: Site, editor: Any) -> Iterator[Any]:
        """Yield a StepQuant if there is no zero point."""
        meaning = site.quantizer
        if not isinstance(meaning, Affine) or meaning.zero_point.any():
            return
        codes = {"low": int(meaning.lo.min()), "high": int(meaning.hi.max())}
        if max(map(abs, codes.values())) >= 2**15:
            return
        draft = editor.draft(site)
        operands = [data_of(draft, site), meaning.scale]
        yield draft.giving(draft.node(NAME, operands, codes, domain=DOMAIN, dtype=FLOAT))

    def reason(self, site: Site) -> str:
        """Say what the operator lacks."""
        return "StepQuant has no zero point and 16 bits; convert to onnx instead"
