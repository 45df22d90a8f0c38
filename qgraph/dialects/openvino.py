"""The dialect ``openvino``: FakeQuantize, as NNCF writes it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.dialects.dialect import (
    Refusal,
    Site,
    data_of,
    dialect,
    parameter,
    shape_of,
    try_out,
    weight_of,
)
from qgraph.edit import Draft, Editor
from qgraph.ops.operator import operator_of
from qgraph.quantizer import Affine, Ranged
from qgraph.schema import OpKey

DOMAIN = "org.openvinotoolkit"


@dialect
class OpenVino:
    """FakeQuantize: an input range and an output range of ``levels`` levels each."""

    name: ClassVar[str] = "openvino"
    roots: ClassVar[frozenset[OpKey]] = frozenset(
        {OpKey(DOMAIN, "FakeQuantize"), OpKey("", "FakeQuantize")}
    )

    def read(self, node: ir.Node) -> Site | Refusal | None:
        """Return the quantizer that a FakeQuantize node is."""
        operator = operator_of(node)
        if operator is None:
            return None
        x, *limits = operator.schema.values(node)
        if x is None:
            return None
        names = ("input_low", "input_high", "output_low", "output_high")
        low, high, below, above = map(partial(parameter, node), limits, names)
        try_out(node, x, low, high, below, above)
        levels = operator.schema.attributes_of(node)["levels"]
        shape = shape_of(x, low, high, below, above)
        quantizer = Ranged(low, high, below, above, levels)
        return Site(x, node.outputs[0], (node,), node, self.name, quantizer, shape, weight_of(x))

    def spellings(self, site: Site, editor: Editor) -> Iterator[Draft]:
        """Yield FakeQuantize over the range of the codes: exact for few scales."""
        meaning = site.quantizer
        if not isinstance(meaning, Affine):
            return
        levels = int((meaning.hi - meaning.lo).max()) + 1
        if not 2 <= levels <= 65536 or not (meaning.hi - meaning.lo == levels - 1).all():
            return
        with np.errstate(over="ignore"):
            low = (meaning.lo - meaning.zero_point) * meaning.scale
            high = (meaning.hi - meaning.zero_point) * meaning.scale
        draft = editor.draft(site)
        ends = [draft.constant(end, name) for end, name in ((low, "low"), (high, "high"))]
        yield draft.giving(
            draft.node(
                "FakeQuantize",
                [data_of(draft, site), *ends, *ends],
                {"levels": levels},
                domain=DOMAIN,
            )
        )

    def reason(self, site: Site) -> str:
        """Say what FakeQuantize lacks."""
        return (
            "FakeQuantize rounds (x - low) / (high - low) * (levels - 1), which is another float "
            "function; --to onnx spells it exactly"
        )
