"""Rules for attention, sums that an equation states, and samples at the points of a grid."""

from __future__ import annotations

from qgraph.graph.inference.dimensions import Dim, broadcast, exact_divide, multiply
from qgraph.graph.inference.rules import Call, Fact, Shape, Unknown, common_type, rule


@rule("Attention")
def attention(call: Call) -> list[Fact]:
    """The form of the queries, with as many elements by head as the values have."""
    queries, keys, values = call[0], call[1], call[2]
    return [
        Fact(queries.dtype, _attended(call, queries.shape, values.shape)),
        Fact(keys.dtype),
        Fact(values.dtype),
    ]


def _attended(call: Call, queries: Shape | None, values: Shape | None) -> Shape | None:
    if queries is None or values is None:
        return None
    if len(queries) == 4:
        return (*queries[:3], values[3])
    heads, groups = call.integer("q_num_heads", 0), call.integer("kv_num_heads", 0)
    if len(queries) != 3 or heads < 1 or groups < 1:
        raise Unknown
    return (*queries[:2], multiply(exact_divide(values[2], groups), heads))


@rule("Einsum")
def einsum(call: Call) -> list[Fact]:
    """The common type, with the sizes that the letters of the result have in the operands."""
    operands = [call[place] for place in range(len(call.operands))]
    dtype = common_type(*operands)
    left, arrow, right = call.text("equation", "").replace(" ", "").partition("->")
    terms = left.split(",")
    if "." in left or any(each.shape is None for each in operands):
        return [Fact(dtype)]
    sizes: dict[str, Dim] = {}
    for term, operand in zip(terms, operands, strict=True):
        for letter, size in zip(term, operand.shape or (), strict=True):
            sizes[letter] = broadcast(sizes[letter], size) if letter in sizes else size
    if not arrow:
        right = "".join(sorted(letter for letter in sizes if left.count(letter) == 1))
    return [Fact(dtype, [sizes[letter] for letter in right])]


@rule("GridSample")
def grid_sample(call: Call) -> list[Fact]:
    """The type, samples and channels of the data, and the points of the grid."""
    return [Fact(call[0].dtype, (*call.shape(0)[:2], *call.shape(1)[1:-1]))]
