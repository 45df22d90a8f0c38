"""Random chains of shape computations, whose values are compared with executions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from tests.graph.inference.generator import Rng, anything

Run = Callable[[ir.Model, dict[str, Any]], list[Any] | None]

_TYPES = {
    np.dtype(t): ir.DataType.from_numpy(np.dtype(t))
    for t in (np.int64, np.int32, np.int8, np.uint8, np.int16, np.bool_, np.float32, np.float64)
}

_SIZES = (0, 1, 2, 3, 4, 5, 6, 8, 12, 127, 128, 255, 256, 257, 300)


class Chain:
    """A model that grows node by node; types and ranks are tracked by running along in NumPy."""

    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []
        self.inputs: list[ir.Value] = []
        self.feeds: dict[str, Any] = {}
        self.sizes: dict[str, int] = {}
        self.values: list[tuple[ir.Value, np.dtype[Any], int]] = []
        for place in range(2):
            shape = [int(anything(rng, *_SIZES[:9])) for _ in range(int(rng.integers(1, 4)))]
            if rng.random() < 0.3:
                shape[int(rng.integers(len(shape)))] = int(anything(rng, *_SIZES[9:]))
            dims = [f"s{place}_{k}" if rng.random() < 0.5 else n for k, n in enumerate(shape)]
            value = ir.Value(
                name=f"x{place}", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(dims)
            )
            self.inputs.append(value)
            self.feeds[f"x{place}"] = np.zeros(shape, np.float32)
            self.sizes |= {f"input{place}_{k}": n for k, n in enumerate(shape)}
            self.add("Shape", [value], np.int64, 1)

    def add(self, name: str, inputs: list[Any], dtype: Any, rank: int, **attributes: Any) -> None:
        node = ir.node(name, inputs, attributes)
        node.outputs[0].name = f"v{len(self.nodes)}"
        self.nodes.append(node)
        self.values.append((node.outputs[0], np.dtype(dtype), rank))

    def constant(self, numbers: Any, dtype: Any) -> ir.Value:
        array = np.asarray(numbers, dtype)
        value = ir.Value(
            name=f"c{len(self.initializers)}",
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            shape=ir.Shape(array.shape),
            const_value=ir.tensor(array),
        )
        self.initializers.append(value)
        return value

    def pick(
        self, kind: str, rank: int | None = None
    ) -> tuple[ir.Value, np.dtype[Any], int] | None:
        fitting = [v for v in self.values if v[1].kind in kind and rank in (None, v[2])]
        return None if not fitting else fitting[int(self.rng.integers(len(fitting)))]

    def other(self, dtype: np.dtype[Any]) -> tuple[ir.Value, int]:
        """A constant or another value of a type."""
        fitting = [v for v in self.values if v[1] == dtype]
        if fitting and self.rng.random() < 0.5:
            value, _, rank = fitting[int(self.rng.integers(len(fitting)))]
            return value, rank
        number = anything(self.rng, -3, -2, -1, 0, 1, 2, 3, 4, 24, 127, 1 << 31, (1 << 62) + 1)
        rank = int(self.rng.integers(0, 2))
        return self.constant(np.asarray([number] * rank or number).astype(dtype), dtype), rank

    def step(self) -> None:
        rng = self.rng
        name = anything(rng, *STEPS)
        if name in (
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Mod",
            "Min",
            "Max",
            "Equal",
            "Less",
            "GreaterOrEqual",
        ):
            if (picked := self.pick("iuf")) is not None:
                value, dtype, rank = picked
                second, other = self.other(dtype)
                fmod = {"fmod": 1} if name == "Mod" and dtype.kind == "f" else {}
                is_truth = name in ("Equal", "Less", "GreaterOrEqual")
                self.add(
                    name, [value, second], np.bool_ if is_truth else dtype, max(rank, other), **fmod
                )
        elif name in ("Neg", "Abs", "Floor", "Ceil", "Sqrt", "Identity"):
            kinds = "f" if name in ("Floor", "Ceil", "Sqrt") else "if"
            if (picked := self.pick(kinds)) is not None:
                self.add(name, [picked[0]], picked[1], picked[2])
        elif name == "Not":
            if (picked := self.pick("b")) is not None:
                self.add(name, [picked[0]], np.bool_, picked[2])
        elif name == "Cast":
            value, _, rank = self.pick("iufb")
            to = anything(rng, *_TYPES)
            self.add(name, [value], to, rank, to=int(_TYPES[to]))
        elif name == "Gather":
            if (picked := self.pick("iufb", 1)) is not None:
                rank = int(rng.integers(0, 2))
                place = int(rng.integers(-2, 2))
                self.add(
                    name,
                    [picked[0], self.constant([place] * rank or place, np.int64)],
                    picked[1],
                    rank,
                )
        elif name == "Slice":
            if (picked := self.pick("iufb", 1)) is not None:
                start, end = rng.integers(-3, 4, 2).tolist()
                cut = [
                    self.constant([n], np.int64)
                    for n in (start, end, 0, int(anything(rng, 1, 1, 2, -1)))
                ]
                self.add(name, [picked[0], *cut], picked[1], 1)
        elif name == "Unsqueeze":
            if (picked := self.pick("iufb", 0)) is not None:
                self.add(name, [picked[0], self.constant([0], np.int64)], picked[1], 1)
        elif name == "Concat":
            if (picked := self.pick("iufb", 1)) is not None:
                again = [v for v in self.values if v[1:] == picked[1:]]
                second = again[int(rng.integers(len(again)))][0]
                more = (
                    [self.constant([-1], picked[1])]
                    if picked[1].kind == "i" and rng.random() < 0.3
                    else []
                )
                self.add(name, [picked[0], second, *more], picked[1], 1, axis=0)
        elif name == "Where":
            condition, picked = self.pick("b"), self.pick("if")
            if condition is not None and picked is not None:
                second, rank = self.other(picked[1])
                self.add(
                    name,
                    [condition[0], picked[0], second],
                    picked[1],
                    max(condition[2], picked[2], rank),
                )
        elif name in ("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin"):
            picked = self.pick("i", 1)
            if picked is not None and picked[1].itemsize >= 4:
                keep = int(rng.integers(0, 2))
                self.add(name, [picked[0]], picked[1], keep, keepdims=keep)
        elif name in ("Reshape", "Expand"):
            wanted = self.pick("i", 1)
            if wanted is not None and wanted[1] == np.int64:
                data = anything(rng, *self.inputs)
                zero = {"allowzero": 1} if name == "Reshape" and rng.random() < 0.2 else {}
                self.add(name, [data, wanted[0]], np.float32, 9, **zero)
                if rng.random() < 0.5:
                    self.add("Shape", [self.nodes[-1].outputs[0]], np.int64, 1)
        elif name == "Size":
            self.add(name, [anything(rng, *self.inputs)], np.int64, 0)
        elif name == "Range":
            picked = self.pick("i", 0)
            if picked is not None and picked[1] == np.int64:
                ends = [self.constant(n, np.int64) for n in (0, int(anything(rng, 1, 1, 2)))]
                self.add(name, [ends[0], picked[0], ends[1]], np.int64, 1)

    def model(self) -> ir.Model:
        outputs = [node.outputs[0] for node in self.nodes]
        graph = ir.Graph(
            self.inputs,
            outputs,
            nodes=self.nodes,
            initializers=self.initializers,
            opset_imports={"": 21},
            name="g",
        )
        return ir.Model(graph, ir_version=10)


STEPS = (
    "Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Equal", "Less", "GreaterOrEqual", "Neg",
    "Abs", "Floor", "Ceil", "Sqrt", "Identity", "Not", "Cast", "Cast", "Gather", "Gather", "Gather",
    "Slice", "Slice", "Unsqueeze", "Concat", "Concat", "Where", "ReduceProd", "ReduceSum",
    "ReduceMax", "ReduceMin", "Reshape", "Reshape", "Expand", "Size", "Range",
)  # fmt: skip


def execute(chain: Chain, run: Run) -> dict[str, Any]:
    """Return the values of a chain, node by node: one that fails ends only what is made of it."""
    known = dict(chain.feeds)
    known |= {str(v.name): v.const_value.numpy() for v in chain.initializers if v.const_value}
    for node in chain.nodes:
        names = [str(value.name) for value in node.inputs if value is not None]
        if any(name not in known for name in names):
            continue
        given = {name: known[name] for name in names}
        inputs = {
            name: ir.Value(
                name=name,
                type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
                shape=ir.Shape([None] * array.ndim),
            )
            for name, array in given.items()
        }
        copy = ir.node(node.op_type, [inputs[name] for name in names], dict(node.attributes))
        copy.outputs[0].name = node.outputs[0].name
        graph = ir.Graph(
            list(inputs.values()), copy.outputs, nodes=[copy], opset_imports={"": 21}, name="g"
        )
        results = run(ir.Model(graph, ir_version=10), given)
        if results is not None:
            known[str(copy.outputs[0].name)] = np.asarray(results[0])
    return known
