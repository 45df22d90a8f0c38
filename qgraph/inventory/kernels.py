"""Nodes of the executed graph of a runtime, and their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RunKernel:
    """A node of an executed graph.

    Attributes:
        kind: its operator; for OpenVINO with the type that it computes in.
        names: names of the nodes of the model that it computes, as far as the runtime keeps them.
        is_product: whether it is a convolution or a matrix product.
        on_codes: whether it computes on codes of 8 bits.
    """

    kind: str
    names: str
    is_product: bool
    on_codes: bool


@dataclass(frozen=True)
class Kernels:
    """The nodes that a runtime executes, counted.

    Attributes:
        counts: number of nodes by kind.
        integer_nodes: number of convolutions and matrix products of integer codes.
        float_nodes: number of such products of floats.
    """

    counts: Mapping[str, int]
    integer_nodes: int
    float_nodes: int

    @classmethod
    def of(cls, nodes: Iterable[RunKernel]) -> Kernels:
        """Return the counts of some nodes."""
        executed = list(nodes)
        counts = Counter(node.kind for node in executed)
        products = [node.on_codes for node in executed if node.is_product]
        return cls(dict(counts.most_common()), sum(products), len(products) - sum(products))
