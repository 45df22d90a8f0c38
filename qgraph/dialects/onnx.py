"""The dialect ``onnx``: plain float operators, the exact way out for every quantizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qgraph.dialects.definition import by_definition, obstacle
from qgraph.dialects.dialect import Refusal, Site, dialect
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.schema import OpKey


@dialect
class PlainOnnx:
    """Quantizers written as Div, Add, Max, Min, Round, Sub, Mul, and whatever else defines them."""

    name: ClassVar[str] = "onnx"
    roots: ClassVar[frozenset[OpKey]] = frozenset()

    def read(self, node: ir.Node) -> Site | Refusal | None:
        """Return None: no operator alone is a quantizer here, they are recognised as regions."""
        return None

    def spellings(self, site: Site, editor: Editor) -> Iterator[Draft]:
        """Yield the operators' definitions."""
        yield from by_definition(site, editor)

    def reason(self, site: Site) -> str:
        """Say why a definition was not accepted."""
        return obstacle(site) or "its parameters do not broadcast to the data as they are written"
