"""Random nodes of every operator that has a rule, and what executing them shows of the rule."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

import qgraph
from qgraph.graph.inference.dimensions import Size
from qgraph.graph.inference.rules import Fact
from qgraph.graph.inference.walk import infer

Rng = np.random.Generator
MICROSOFT = "com.microsoft"


@dataclass
class Operand:
    """An array that is fed, or a constant."""

    array: np.ndarray[Any, Any]
    constant: bool = False


@dataclass
class Case:
    """A node with arrays for its inputs; None for an absent one."""

    name: str
    operands: Sequence[Operand | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    domain: str = ""
    opset: int = 21


def model_of(case: Case, rng: Rng) -> tuple[ir.Model, dict[str, Any], dict[str, int]]:
    """Return the model of a case, its feeds, and the numbers that open sizes stand for."""
    inputs, initializers, used = [], [], []
    feeds: dict[str, Any] = {}
    for place, operand in enumerate(case.operands):
        if operand is None:
            used.append(None)
            continue
        tensor = ir.tensor(operand.array)
        value = ir.Value(name=f"i{place}", type=ir.TensorType(tensor.dtype))
        if operand.constant:
            value.const_value, value.shape = tensor, ir.Shape(operand.array.shape)
            initializers.append(value)
        else:
            value.shape = ir.Shape(
                [
                    f"d{place}_{k}" if rng.random() < 0.4 else n
                    for k, n in enumerate(operand.array.shape)
                ]
            )
            feeds[value.name] = operand.array
            inputs.append(value)
        used.append(value)
    node = ir.node(case.name, used, case.attributes, domain=case.domain, num_outputs=case.outputs)
    for place, value in enumerate(node.outputs):
        value.name = f"o{place}"
    imports = {"": case.opset} | ({case.domain: 1} if case.domain else {})
    graph = ir.Graph(
        inputs,
        list(node.outputs),
        nodes=[node],
        initializers=initializers,
        opset_imports=imports,
        name="g",
    )
    sizes = {
        f"input{place}_{axis}": n
        for place, value in enumerate(inputs)
        for axis, n in enumerate(feeds[str(value.name)].shape)
    }
    return ir.Model(graph, ir_version=10), feeds, sizes


def by_runtime(model: ir.Model, feeds: dict[str, Any]) -> list[Any] | None:
    """Return what ONNX Runtime computes, None where it refuses or fails."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    content = ir.to_proto(model).SerializeToString()
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        return list(session.run(None, feeds))
    except Exception:  # whatever it does not take
        return None


def by_reference(model: ir.Model, feeds: dict[str, Any]) -> list[Any] | None:
    """Return what onnx's reference computes, None where it fails."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return list(ReferenceEvaluator(ir.to_proto(model)).run(None, feeds))
    except Exception:  # whatever it does not take
        return None


def by_kernels(model: ir.Model, feeds: dict[str, Any]) -> list[Any] | None:
    """Return what the kernels of the project compute, None where they fail."""
    try:
        return list(qgraph.load(model).run(feeds, backend="numpy").values())
    except qgraph.QGraphError:
        return None


def executions(model: ir.Model, feeds: dict[str, Any]) -> list[list[Any]]:
    """Return the outputs of all that execute a model."""
    found = [run(model, feeds) for run in (by_runtime, by_reference, by_kernels)]
    return [outputs for outputs in found if outputs is not None]


def number(item: Any, sizes: dict[str, int]) -> Any:
    """Return what an open size or an element is for an execution."""
    if isinstance(item, Size):
        return eval(item.text.replace("/", "//"), {"floor": lambda n: n} | sizes)
    return item


def contradiction(fact: Fact, result: Any, sizes: dict[str, int]) -> str | None:
    """Return what is wrong with a fact, given what a value was in an execution."""
    array = np.asarray(result)
    if fact.dtype is not None and ir.DataType.from_numpy(array.dtype) is not fact.dtype:
        return f"type {array.dtype}"
    if fact.shape is not None:
        shape = [number(size, sizes) for size in fact.shape]
        if len(shape) != array.ndim or any(
            size is not None and size != n for size, n in zip(shape, array.shape, strict=True)
        ):
            return f"shape {array.shape}, not {shape}"
    if fact.items is not None:
        for item, there in zip(fact.items.flat, array.flat, strict=True):
            if item is not None and repr(number(item, sizes)) != repr(there.item()):
                return f"element {there!r}, not {item!r}"
    return None


def judge(case: Case, rng: Rng) -> tuple[int, int, str | None]:
    """Return how many executions there were, how much is known, and a contradiction."""
    model, feeds, sizes = model_of(case, rng)
    facts = infer(model)
    known = 0
    results = executions(model, feeds)
    for outputs in results:
        for value, result in zip(model.graph.outputs, outputs, strict=True):
            fact = facts[value]
            known += fact.shape is not None and None not in fact.shape and fact.dtype is not None
            if (wrong := contradiction(fact, result, sizes)) is not None:
                return len(results), known, f"{value.name}: {fact} against {wrong}"
    return len(results), known, None


# --- operands ---------------------------------------------------------------------------------


def dims(rng: Rng, rank: int | None = None, low: int = 0, high: int = 5) -> list[int]:
    rank = int(rng.integers(0, 5)) if rank is None else rank
    return [
        int(rng.integers(low if rng.random() < 0.1 else max(low, 1), high)) for _ in range(rank)
    ]


def data(rng: Rng, shape: Sequence[int], dtype: Any = np.float32, **options: Any) -> Operand:
    array = rng.integers(-3, 9, shape) if np.dtype(dtype).kind != "u" else rng.integers(0, 9, shape)
    return Operand(np.asarray(array).astype(dtype), **options)


def ints(rng: Rng, numbers: Sequence[int] | int, dtype: Any = np.int64) -> Operand:
    return Operand(np.asarray(numbers, dtype), constant=bool(rng.random() < 0.8))


def anything(rng: Rng, *types: Any) -> Any:
    return types[int(rng.integers(len(types)))]


def opset(rng: Rng, *versions: int) -> int:
    return int(anything(rng, *versions))


def broadcasting(rng: Rng, count: int, low: int = 0) -> list[list[int]]:
    whole = dims(rng, low=low)
    shapes = []
    for _ in range(count):
        shape = [1 if rng.random() < 0.3 else n for n in whole]
        shapes.append(shape[int(rng.integers(0, len(shape) + 1)) if rng.random() < 0.3 else 0 :])
    return shapes
