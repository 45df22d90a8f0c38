"""The dialect ``openvino``: FakeQuantize, as NNCF writes it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import onnx_ir as ir

from qgraph.dialects.dialect import (
    Refusal,
    Site,
    dialect,
    parameter,
    shape_of,
    try_out,
    weight_of,
)
from qgraph.dialects.openvino_spellings import DOMAIN, MOST_LEVELS, REMOVED, spellings
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.schema import OpKey
from qgraph.ops.operator import operator_of
from qgraph.quantizer import Affine, Floating, Ranged, Truncating


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
        """Yield one FakeQuantize where its ranges can say it, then with float operators around."""
        yield from spellings(site, editor)

    def reason(self, site: Site) -> str:
        """Say what FakeQuantize lacks."""
        match site.quantizer:
            case Floating():
                return (
                    "FakeQuantize has evenly spaced levels, which those of a minifloat are not; "
                    "--to qdq and --to qonnx have them"
                    if site.weight is None
                    else "its values lie on an even grid of more than the "
                    f"{REMOVED} levels that are stored; --to qdq and --to qonnx store them"
                )
            case Truncating():
                return (
                    "this Trunc does not clamp its codes, so that their number has no end, and a "
                    "FakeQuantize has a range; --to qonnx and --to onnx need none"
                )
            case Affine():
                return (
                    f"it has more codes than the {MOST_LEVELS} levels that FakeQuantize has in "
                    "float32; --to qonnx and --to onnx have them"
                )
        return "its parameters would enlarge the data, which those of FakeQuantize may not"
