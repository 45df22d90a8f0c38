"""Attention, Einsum, rotations of positions and samples of grids: random nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.graph.inference.generator import MICROSOFT, Case, Operand, Rng, anything, data, dims
from tests.graph.inference.makers import I64, F, makes


@makes("Attention")
def attention(name: str, rng: Rng) -> Case:
    batch, rows, keys, groups, size, wide = dims(rng, 6, low=1)
    heads = groups * int(anything(rng, 1, 2))
    attributes: dict[str, Any] = {"is_causal": int(rng.random() < 0.3)}
    if rng.random() < 0.5:
        shapes = [
            [batch, count, length, width]
            for count, length, width in (
                (heads, rows, size),
                (groups, keys, size),
                (groups, keys, wide),
            )
        ]
    else:
        attributes |= {"q_num_heads": heads, "kv_num_heads": groups}
        shapes = [
            [batch, length, width]
            for length, width in (
                (rows, heads * size),
                (keys, groups * size),
                (keys, groups * wide),
            )
        ]
    return Case(name, [data(rng, shape) for shape in shapes], attributes, opset=23)


@makes("RotaryEmbedding")
def rotary_embedding(name: str, rng: Rng) -> Case:
    batch, heads, rows, half = dims(rng, 4, low=1)
    tables = [data(rng, [16, half]) for _ in range(2)]
    places = Operand(rng.integers(0, 16, (batch, rows)).astype(I64), constant=True)
    return Case(name, [data(rng, [batch, heads, rows, 2 * half]), *tables, places], opset=23)


@makes("RotaryEmbedding", domain=MICROSOFT)
def contributed_rotary(name: str, rng: Rng) -> Case:
    case = rotary_embedding(name, rng)
    x, cosines, sines, places = case.operands
    return Case(name, [x, places, cosines, sines], domain=MICROSOFT)


@makes("Attention", "MultiHeadAttention", "GroupQueryAttention", domain=MICROSOFT)
def contributed_attention(name: str, rng: Rng) -> Case:
    batch, rows = dims(rng, 2, low=1)
    x = [data(rng, [batch, rows, 16]) for _ in range(3)]
    if name == "Attention":
        weights = [data(rng, shape, F) for shape in ([16, 48], [48])]
        return Case(
            name, [data(rng, [batch, rows, 16], F), *weights], {"num_heads": 2}, domain=MICROSOFT
        )
    if name == "MultiHeadAttention":
        return Case(name, x, {"num_heads": 2}, domain=MICROSOFT)
    counts = [Operand(np.full(s, rows - less, np.int32)) for s, less in (([batch], 1), ([], 0))]
    heads = {"num_heads": 2, "kv_num_heads": 2}
    return Case(name, [*x, None, None, *counts], heads, domain=MICROSOFT)


@makes("Einsum")
def einsum(name: str, rng: Rng) -> Case:
    equation = str(
        anything(rng, "bij, bjk -> bik", "ij,jk", "bhid,bhjd->bhij", "ii->i", "...ij,...jk->...ik")
    )
    sizes = dict(zip("bdhijk", dims(rng, 6, low=1), strict=True))
    terms = equation.partition("->")[0].replace(" ", "").replace("...", "b").split(",")
    operands = [data(rng, [sizes[letter] for letter in term], F) for term in terms]
    return Case(name, operands, {"equation": equation})


@makes("GridSample")
def grid_sample(name: str, rng: Rng) -> Case:
    batch, channels, high, wide, rows, columns = dims(rng, 6, low=1)
    grid = Operand(rng.uniform(-1, 1, (batch, rows, columns, 2)).astype(np.float32))
    return Case(name, [data(rng, [batch, channels, high, wide]), grid], opset=20)
