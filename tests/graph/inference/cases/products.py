"""Products, reductions and recurrent networks: random nodes."""

from __future__ import annotations

import numpy as np

from tests.graph.inference.generator import (
    MICROSOFT,
    Case,
    Operand,
    Rng,
    anything,
    broadcasting,
    data,
    dims,
    ints,
    opset,
)
from tests.graph.inference.makers import (
    I8,
    I32,
    I64,
    U8,
    F,
    codes,
    makes,
    scalar,
)


def matrices(rng: Rng) -> tuple[list[int], list[int]]:
    stacks = broadcasting(rng, 2)
    rows, depth, columns = dims(rng, 3)
    one, other = [*stacks[0], rows, depth], [*stacks[1], depth, columns]
    if rng.random() < 0.15:
        one = [depth]
    if rng.random() < 0.15:
        other = [depth]
    return one, other


@makes("MatMul")
def mat_mul(name: str, rng: Rng) -> Case:
    kind = anything(rng, F, I32)
    return Case(name, [data(rng, shape, kind) for shape in matrices(rng)])


@makes("MatMulInteger")
def mat_mul_integer(name: str, rng: Rng) -> Case:
    return Case(name, [data(rng, shape, U8) for shape in matrices(rng)])


@makes("QLinearMatMul")
def q_linear_mat_mul(name: str, rng: Rng) -> Case:
    one, other = matrices(rng)
    return Case(
        name, [*codes(rng, one), *codes(rng, other), scalar(0.5), scalar(3, anything(rng, U8, I8))]
    )


@makes("MatMulIntegerToFloat", domain=MICROSOFT)
def to_float(name: str, rng: Rng) -> Case:
    one, other = matrices(rng)
    a, b = codes(rng, one), codes(rng, other)
    return Case(name, [a[0], b[0], a[1], b[1], a[2], b[2]], domain=MICROSOFT)


@makes("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_mat_mul(name: str, rng: Rng) -> Case:
    rows, depth, columns = dims(rng, 3, low=1)
    b = codes(rng, [depth, columns])
    return Case(name, [data(rng, [*dims(rng, 1, low=1), rows, depth]), *b], domain=MICROSOFT)


@makes("QGemm", domain=MICROSOFT)
def q_gemm(name: str, rng: Rng) -> Case:
    rows, depth, columns = dims(rng, 3, low=1)
    flip = bool(rng.random() < 0.5)
    operands: list[Operand | None] = [
        *codes(rng, [rows, depth]),
        *codes(rng, [columns, depth] if flip else [depth, columns]),
    ]
    if rng.random() < 0.5:
        operands += [None, scalar(0.5), scalar(3, U8)]
    return Case(name, operands, {"transB": int(flip)}, domain=MICROSOFT)


@makes("FusedMatMul", domain=MICROSOFT)
def fused_mat_mul(name: str, rng: Rng) -> Case:
    rows, depth, columns = dims(rng, 3, low=1)
    flips = [bool(rng.random() < 0.5) for _ in range(2)]
    one = [depth, rows] if flips[0] else [rows, depth]
    other = [columns, depth] if flips[1] else [depth, columns]
    stack = dims(rng, int(rng.integers(0, 2)), low=1)
    attributes = {"transA": int(flips[0]), "transB": int(flips[1])}
    operands = [data(rng, [*stack, *one]), data(rng, [*stack, *other])]
    return Case(name, operands, attributes, domain=MICROSOFT)


@makes("FusedGemm", domain=MICROSOFT)
def fused_gemm(name: str, rng: Rng) -> Case:
    case = gemm(name, rng)
    attributes = case.attributes | {"activation": "Relu"}
    return Case(name, case.operands, attributes, domain=MICROSOFT)


@makes("Gemm")
def gemm(name: str, rng: Rng) -> Case:
    rows, depth, columns = dims(rng, 3, low=1)
    flips = [bool(rng.random() < 0.5) for _ in range(2)]
    one = [depth, rows] if flips[0] else [rows, depth]
    other = [columns, depth] if flips[1] else [depth, columns]
    rest = (
        [data(rng, anything(rng, [], [columns], [rows, 1], [rows, columns]))]
        if rng.random() < 0.6
        else []
    )
    return Case(
        name,
        [data(rng, one), data(rng, other), *rest],
        {"transA": int(flips[0]), "transB": int(flips[1])},
    )


@makes("MatMulNBits", domain=MICROSOFT)
def n_bits(name: str, rng: Rng) -> Case:
    shape, columns = [*dims(rng, 2, low=1), 32], int(rng.integers(1, 5))
    operands = [
        data(rng, shape),
        data(rng, [columns, 2, 8], U8, constant=True),
        Operand(np.ones(2 * columns, F), constant=True),
    ]
    return Case(
        name, operands, {"K": 32, "N": columns, "bits": 4, "block_size": 16}, domain=MICROSOFT
    )


@makes("MatMulBnb4", domain=MICROSOFT)
def bnb4(name: str, rng: Rng) -> Case:
    shape, columns = [*dims(rng, 2, low=1), 32], int(rng.integers(1, 5))
    operands = [
        data(rng, shape),
        data(rng, [16 * columns], U8, constant=True),
        Operand(np.ones(2 * columns, F), constant=True),
    ]
    return Case(
        name, operands, {"K": 32, "N": columns, "quant_type": 1, "block_size": 16}, domain=MICROSOFT
    )


@makes(
    *(
        f"Reduce{kind}"
        for kind in (
            "L1",
            "L2",
            "LogSum",
            "LogSumExp",
            "Max",
            "Mean",
            "Min",
            "Prod",
            "Sum",
            "SumSquare",
        )
    )
)
def reduction(name: str, rng: Rng) -> Case:
    shape, kind = (
        dims(rng, int(rng.integers(1, 4)), low=1),
        anything(rng, F, I64)
        if name in ("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum")
        else F,
    )
    x, version = data(rng, shape, kind, constant=rng.random() < 0.4), opset(rng, 11, 13, 18, 21)
    axes = rng.permutation(len(shape))[: int(rng.integers(1, len(shape) + 1))].tolist()
    axes = [k - len(shape) if rng.random() < 0.3 else k for k in axes]
    attributes = {"keepdims": 0} if rng.random() < 0.5 else {}
    listed = version >= (13 if name == "ReduceSum" else 18)
    if listed and rng.random() < 0.3:
        attributes["noop_with_empty_axes"] = 1
    if rng.random() < 0.3:
        return Case(name, [x], attributes, opset=version)
    if listed:
        return Case(name, [x, ints(rng, axes)], attributes, opset=version)
    return Case(name, [x], attributes | {"axes": axes}, opset=version)


@makes("ArgMax", "ArgMin")
def arg_max(name: str, rng: Rng) -> Case:
    shape = dims(rng, int(rng.integers(1, 4)), low=1)
    axis = {"axis": int(rng.integers(-len(shape), len(shape)))} if rng.random() < 0.7 else {}
    return Case(name, [data(rng, shape)], axis | ({"keepdims": 0} if rng.random() < 0.5 else {}))


@makes("TopK")
def top_k(name: str, rng: Rng) -> Case:
    shape = dims(rng, int(rng.integers(1, 4)), low=1)
    axis = int(rng.integers(-len(shape), len(shape)))
    return Case(
        name,
        [data(rng, shape), ints(rng, [int(rng.integers(0, shape[axis] + 1))])],
        {"axis": axis},
        2,
    )


@makes("GRU", "LSTM", "RNN")
def recurrent(name: str, rng: Rng) -> Case:
    steps, batch, width = dims(rng, 3, low=1)
    both, hidden = bool(rng.random() < 0.5), 3
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[name] * hidden
    operands = [
        data(rng, [steps, batch, width]),
        data(rng, [1 + both, gates, width]),
        data(rng, [1 + both, gates, hidden]),
    ]
    direction = {"direction": "bidirectional"} if both else {}
    return Case(name, operands, {"hidden_size": hidden} | direction, 3 if name == "LSTM" else 2)


@makes("DynamicQuantizeLSTM", domain=MICROSOFT)
def quantized_lstm(name: str, rng: Rng) -> Case:
    steps, batch, width = dims(rng, 3, low=1)
    weights = [data(rng, [1, n, 12], U8, constant=True) for n in (width, 3)]
    scales = [Operand(np.ones(1, F), constant=True), Operand(np.zeros(1, U8), constant=True)]
    operands = [
        data(rng, [steps, batch, width]),
        *weights,
        None,
        None,
        None,
        None,
        None,
        *scales,
        *scales,
    ]
    return Case(name, operands, {"hidden_size": 3}, 3, domain=MICROSOFT)
