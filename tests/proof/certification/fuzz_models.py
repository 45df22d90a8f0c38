"""Random whole models of quantizers and of what stands between them, always valid ONNX.

A model is drawn operator by operator; every value is computed on a first input at once, so that
types and shapes are those that the executor has, and what cannot run is not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qgraph.errors import QGraphError
from qgraph.model import load

Array = np.ndarray[Any, Any]
Random = np.random.Generator

QONNX = "qonnx.custom_op.general"
OPENVINO = "org.openvinotoolkit"
DOMAINS = {QONNX: 2, OPENVINO: 1, "my": 1, "com.microsoft": 1, "ai.onnx.ml": 3}
FLOATS = ("float32", "float16", "bfloat16", "float64")
UNARY = (
    *("Relu", "Abs", "Neg", "Sign", "Sqrt", "Reciprocal", "Identity"),
    *("Floor", "Ceil", "Round", "Sigmoid", "Tanh"),
)
BATCH = 2
"""Samples of the first input; the model leaves their number open in half of the cases."""


@dataclass
class Value:
    """A value of the model that is drawn: its name and what the first input makes of it."""

    name: str
    array: Array

    @property
    def kind(self) -> str:
        return str(self.array.dtype)

    @property
    def code(self) -> int:
        return int(helper.np_dtype_to_tensor_dtype(self.array.dtype))


@dataclass
class Sketch:
    """A model while it is drawn."""

    random: Random
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    functions: dict[str, onnx.FunctionProto] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    count: int = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def constant(self, array: Any) -> str:
        """Add a constant, as an initializer or as a node."""
        tensor = numpy_helper.from_array(np.asarray(array), self.name())
        if self.random.random() < 0.15:
            self.nodes.append(helper.make_node("Constant", [], [tensor.name], value=tensor))
        else:
            self.constants.append(tensor)
        return tensor.name

    def pick(self, *kinds: str, rank: int | None = None) -> Value | None:
        """Return a value of one of the kinds, late ones more often."""
        fits = [
            v
            for v in self.values
            if v.kind in kinds and (rank is None or v.array.ndim == rank) and v.array.size
        ]
        if not fits:
            return None
        return fits[int(len(fits) * max(self.random.random(2)))]

    def add(self, op: str, inputs: list[str], *, domain: str = "", **attributes: Any) -> str:
        name = self.name()
        self.nodes.append(helper.make_node(op, inputs, [name], domain=domain, **attributes))
        return name

    def model(self, outputs: list[str]) -> onnx.ModelProto:
        infos = [
            helper.make_tensor_value_info(v.name, v.code, list(v.array.shape)) for v in self.inputs
        ]
        known = {v.name: v for v in self.values}
        results = [
            helper.make_tensor_value_info(n, known[n].code, [None] * known[n].array.ndim)
            for n in outputs
        ]
        graph = helper.make_graph(self.nodes, "g", infos, results, self.constants)
        imports = [helper.make_opsetid("", self.opset)]
        imports += [helper.make_opsetid(*pair) for pair in (DOMAINS | {"f": 1}).items()]
        functions = list(self.functions.values())
        return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=functions)

    def settle(self, name: str) -> None:
        """Compute a value that was added, and keep it."""
        # its type and shape are not known yet; they do not matter for running it
        model = self.model([])
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        feeds = {v.name: v.array for v in self.inputs}
        array = load(model).run(feeds, backend="numpy")[name]
        if not isinstance(array, np.ndarray) or array.size > 512 or array.dtype.kind in "OSU":
            raise QGraphError("not to be used")
        self.values.append(Value(name, array))


Builder = Callable[[Sketch], list[str]]
"""Adds an operator or a few; returns the names of their results."""


def numbers(random: Random, shape: Any, kind: str = "float32") -> Array:
    """Draw constants: powers of two, fractions, and the odd special one."""
    plain = random.choice([0.5, 1, 2, 3, -1, 0.1, 0.25, 7, -0.3], shape)
    mixed = np.where(random.random(shape) < 0.3, random.normal(0, 2, shape), plain)
    if random.random() < 0.05:
        mixed = np.where(random.random(shape) < 0.5, random.choice([0.0, -0.0]), mixed)
    dtype = ml_dtypes.bfloat16 if kind == "bfloat16" else np.dtype(kind)
    if dtype == np.bool_:
        return np.asarray(mixed > 0)
    if np.dtype(dtype).kind == "u":
        mixed = np.abs(mixed)
    return np.asarray(mixed).astype(dtype)


def beside(random: Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a constant that broadcasts with data, mostly without enlarging it."""
    choice = random.random()
    if choice < 0.45:
        return ()
    if choice < 0.55:
        return (1,)
    if choice < 0.6:
        return (1,) * (len(shape) + 1)
    kept = [size if random.random() < 0.5 else 1 for size in shape]
    if choice < 0.65 and kept:
        kept[int(random.integers(len(kept)))] *= 2
    return tuple(kept if random.random() < 0.5 else kept[int(random.integers(len(kept) + 1)) :])


def scales(random: Random, shape: tuple[int, ...]) -> tuple[Array, int | None]:
    """Return a scale and the axis along which it varies, if it does."""
    if not shape or random.random() < 0.6:
        return np.float32(random.choice([0.1, 0.25, 0.37, 1.0, 0.0123])), None
    axis = int(random.integers(len(shape)))
    return random.choice([0.1, 0.25, 0.37, 1.0], shape[axis]).astype(np.float32), axis


def model(random: Random, *, size: int = 8, builders: Sequence[Builder] = ()) -> onnx.ModelProto:
    """Draw a model of about ``size`` operators, of some kinds only; its inputs are x and z."""
    while True:
        made = _drawn(random, size, builders or BUILDERS)
        try:
            # the executor runs more types than ONNX allows
            onnx.checker.check_model(made, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            continue
        return _opened(made, random)


def _drawn(random: Random, size: int, choices: Sequence[Builder]) -> onnx.ModelProto:
    sketch = Sketch(random, int(random.choice([13, 17, 19, 21, 21, 21, 22, 23, 25])))
    shape = [(BATCH, 4), (BATCH, 2, 4), (4,), (), (1, 2, 4, 4), (1,)][int(random.integers(6))]
    kinds = ["float32"] * 6 + ["float16", "int8", "uint8", "int32", "int64", "float64", "bool"]
    for name in "xz"[: int(random.integers(1, 3))]:
        kind = "float32" if name == "x" and random.random() < 0.7 else str(random.choice(kinds))
        value = Value(name, numbers(random, shape, kind))
        sketch.inputs.append(value)
        sketch.values.append(value)
    tries = 0
    while len(sketch.values) < size + len(sketch.inputs) and tries < 4 * size:
        tries += 1
        before = len(sketch.nodes), len(sketch.constants), len(sketch.values)
        try:
            draw = choices[int(random.integers(len(choices)))]
            for name in draw(sketch):
                sketch.settle(name)
        except (QGraphError, ValueError, TypeError, IndexError, KeyError):
            for rows, count in zip(
                (sketch.nodes, sketch.constants, sketch.values), before, strict=True
            ):
                del rows[count:]
    used = {name for node in sketch.nodes for name in node.input}
    ends = [v.name for v in sketch.values if v.name not in used and v not in sketch.inputs]
    ends = ends[-3:] or [sketch.values[-1].name]
    if ends[0] in {v.name for v in sketch.inputs}:
        ends = [sketch.add("Identity", ends[:1])]
        sketch.settle(ends[0])
    return sketch.model(ends)


def _opened(made: onnx.ModelProto, random: Random) -> onnx.ModelProto:
    """Leave the number of samples open, sometimes, if the model runs with another one."""
    opened = onnx.ModelProto.FromString(made.SerializeToString())
    feeds = {}
    for value in opened.graph.input:
        kind = value.type.tensor_type
        if not kind.shape.dim or kind.shape.dim[0].dim_value != BATCH:
            return made
        kind.shape.dim[0].dim_param = "N"
        sizes = (BATCH + 1, *(d.dim_value for d in kind.shape.dim[1:]))
        feeds[value.name] = np.ones(sizes, helper.tensor_dtype_to_np_dtype(kind.elem_type))
    try:
        load(opened).run(feeds, backend="numpy")
    except QGraphError:
        return made
    return opened if random.random() < 0.7 else made


def unary(s: Sketch) -> list[str]:
    x = s.pick(*FLOATS)
    return [] if x is None else [s.add(str(s.random.choice(UNARY)), [x.name])]


def with_constant(s: Sketch) -> list[str]:
    x = s.pick(*FLOATS, "int32", "int64", "int8", "uint8")
    if x is None:
        return []
    other = s.constant(numbers(s.random, beside(s.random, x.array.shape), x.kind))
    pair = [x.name, other][:: 1 if s.random.random() < 0.8 else -1]
    ops = ["Add", "Sub", "Mul", "Div"] if x.kind in FLOATS else ["Add", "Sub", "Mul", "Max", "Min"]
    return [s.add(str(s.random.choice([*ops, "Min", "Max"])), pair)]


def _two(s: Sketch) -> list[str]:
    x = s.pick(*FLOATS, "int32", "int8", "uint8")
    z = None if x is None else s.pick(x.kind)
    if x is None or z is None:
        return []
    return [s.add(str(s.random.choice(["Add", "Sub", "Mul", "Max", "Min"])), [x.name, z.name])]


def _clip(s: Sketch) -> list[str]:
    x = s.pick(*FLOATS)
    if x is None:
        return []
    ends = sorted(float(v) for v in s.random.choice([-8, -3.5, -1, 0, 1, 2.5, 6, 7], 2))
    bounds = [s.constant(np.asarray(v).astype(x.array.dtype)) for v in ends]
    if s.random.random() < 0.3:
        bounds[int(s.random.integers(2))] = ""
    return [s.add("Clip", [x.name, *bounds])]


def _quant(s: Sketch) -> list[str]:
    x = s.pick("float32")
    if x is None:
        return []
    scale, axis = scales(s.random, x.array.shape)
    if axis is not None:
        scale = scale.reshape([-1 if i == axis else 1 for i in range(x.array.ndim)])
    inputs = [x.name, s.constant(scale)]
    if s.random.random() < 0.15:
        return [s.add("BipolarQuant", inputs, domain=QONNX)]
    zero, bits = s.random.choice([0, 0, 0, 1, -2, 0.5]), s.random.choice([2, 3, 4, 8])
    inputs += [s.constant(np.float32(zero)), s.constant(np.float32(bits))]
    attributes = {name: int(s.random.integers(2)) for name in ("signed", "narrow")}
    mode = str(s.random.choice(["ROUND", "ROUND", "FLOOR", "CEIL", "HALF_UP"]))
    return [s.add("Quant", inputs, domain=QONNX, rounding_mode=mode, **attributes)]


def _qdq(s: Sketch) -> list[str]:
    x = s.pick("float32")
    if x is None:
        return []
    scale, axis = scales(s.random, x.array.shape)
    kinds: list[Any] = [np.int8, np.uint8]
    if s.opset >= 21:
        kinds += [np.int16, np.uint16, ml_dtypes.int4, ml_dtypes.uint4]
    if s.opset >= 19:
        kinds += [ml_dtypes.float8_e4m3fn]
    kind = kinds[int(s.random.integers(len(kinds)))]
    zero = 0 if s.random.random() < 0.6 or "float" in kind.__name__ else 1
    names = [s.constant(scale), s.constant(np.full(np.shape(scale), zero).astype(kind))]
    place = (
        {} if axis is None else {"axis": axis - (x.array.ndim if s.random.random() < 0.3 else 0)}
    )
    codes = s.add("QuantizeLinear", [x.name, *names], **place)
    if kind in (np.int8, np.uint8) and s.random.random() < 0.3:
        bounds = [s.constant(np.asarray(v).astype(kind)) for v in (3, 9)]
        codes = s.add("Clip", [codes, *bounds])
    return [s.add("DequantizeLinear", [codes, *names], **place)]


def fake_quantize(s: Sketch) -> list[str]:
    x = s.pick("float32")
    if x is None:
        return []
    low, high = s.random.choice([0, -1, -2.56]), s.random.choice([1, 2.55, 6])
    ends = [s.constant(np.float32(v)) for v in (low, high, low, high)]
    levels = int(s.random.choice([2, 4, 16, 255, 256]))
    return [s.add("FakeQuantize", [x.name, *ends], domain=OPENVINO, levels=levels)]


def _cast(s: Sketch) -> list[str]:
    x = s.pick(*FLOATS, "int8", "uint8", "int32", "int64", "bool")
    to = int(s.random.choice([1, 1, 1, 10, 11, 16, 6, 7, 9]))
    return [] if x is None else [s.add("Cast", [x.name], to=to)]


def _compare(s: Sketch) -> list[str]:
    x = s.pick(*FLOATS)
    if x is None:
        return []
    bound = s.constant(numbers(s.random, (), x.kind))
    op = str(s.random.choice(["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"]))
    names = [s.add(op, [x.name, bound])]
    other = s.constant(numbers(s.random, beside(s.random, x.array.shape), x.kind))
    return [*names, s.add("Where", [names[0], x.name, other])]


def _move(s: Sketch) -> list[str]:
    x = s.pick(*FLOATS, "int8", "uint8", "bool")
    if x is None:
        return []
    rank = x.array.ndim
    match int(s.random.integers(6)):
        case 0:
            return [s.add("Transpose", [x.name], perm=s.random.permutation(rank).tolist())]
        case 1:
            return [s.add("Flatten", [x.name], axis=int(s.random.integers(rank + 1)))]
        case 2:
            shapes = [[-1], [0, -1], [1, -1], [-1, 1, 2], list(x.array.shape), [2, -1]]
            shape = shapes[int(s.random.integers(len(shapes)))]
            return [s.add("Reshape", [x.name, s.constant(np.asarray(shape, np.int64))])]
        case 3:
            axes = s.constant(np.asarray([int(s.random.integers(-1, rank + 1))], np.int64))
            return [s.add("Unsqueeze", [x.name, axes])]
        case 4:
            return [s.add("Concat", [x.name, x.name], axis=int(s.random.integers(-1, rank)))]
    first, second = s.name(), s.name()
    axis = int(s.random.integers(rank))
    sizes = s.constant(np.asarray([1, x.array.shape[axis] - 1], np.int64))
    s.nodes.append(helper.make_node("Split", [x.name, sizes], [first, second], axis=axis))
    return [first, second]


def _slice(s: Sketch) -> list[str]:
    x = s.pick(*FLOATS)
    if x is None:
        return []
    axis = int(s.random.integers(x.array.ndim))
    if s.random.random() < 0.5:
        index = s.constant(np.asarray(s.random.integers(-1, x.array.shape[axis], 2), np.int64))
        return [s.add("Gather", [x.name, index], axis=axis)]
    rows = [[int(v)] for v in (s.random.integers(-3, 2), s.random.choice([9, -1, 3]), axis)]
    return [s.add("Slice", [x.name, *(s.constant(np.asarray(v, np.int64)) for v in rows)])]


def _product(s: Sketch) -> list[str]:
    x = s.pick("float32", rank=4 if s.random.random() < 0.3 else None)
    if x is None or not x.array.ndim:
        return []
    if x.array.ndim == 4:
        channels = x.array.shape[1]
        weight = s.constant(numbers(s.random, (2, channels, 2, 2)))
        bias = [s.constant(numbers(s.random, (2,)))] if s.random.random() < 0.5 else []
        pads = [int(v) for v in s.random.integers(0, 2, 4)]
        return [s.add("Conv", [x.name, weight, *bias], pads=pads)]
    weight = s.constant(numbers(s.random, (x.array.shape[-1], 3)))
    if x.array.ndim == 2 and s.random.random() < 0.5:
        bias = s.constant(numbers(s.random, (3,)))
        return [s.add("Gemm", [x.name, weight, bias], alpha=float(s.random.choice([1, 0.5])))]
    return [s.add("MatMul", [x.name, weight])]


def _pool(s: Sketch) -> list[str]:
    x = s.pick("float32", rank=4)
    if x is None:
        return []
    attributes: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    if s.random.random() < 0.5:
        attributes |= {"ceil_mode": 1, "pads": [0, 1, 1, 0]}
    return [s.add(str(s.random.choice(["MaxPool", "AveragePool"])), [x.name], **attributes)]


def _along(s: Sketch) -> list[str]:
    x = s.pick("float32")
    if x is None or not x.array.ndim:
        return []
    axis = int(s.random.integers(-1, x.array.ndim))
    match int(s.random.integers(4)):
        case 0:
            return [s.add(str(s.random.choice(["Softmax", "Hardmax"])), [x.name], axis=axis)]
        case 1:
            axes = s.constant(np.asarray([axis], np.int64))
            return [s.add("ReduceSum", [x.name, axes], keepdims=int(s.random.integers(2)))]
        case 2:
            return [s.add("ArgMax", [x.name], axis=axis, keepdims=int(s.random.integers(2)))]
    rows = [s.constant(np.abs(numbers(s.random, (x.array.shape[1],)))) for _ in range(4)]
    return [s.add("BatchNormalization", [x.name, *rows], epsilon=1e-3)]


def _branches(s: Sketch) -> list[str]:
    x = s.pick("float32")
    if x is None:
        return []
    condition = s.constant(np.array(bool(s.random.integers(2))))
    flag = next((v for v in s.values if v.kind == "bool" and v.array.size == 1), None)
    if flag is not None:
        condition = flag.name
    bodies = []
    for _ in range(2):
        op, name = str(s.random.choice(["Relu", "Neg", "Abs", "Identity"])), s.name()
        body = [helper.make_node(op, [x.name], [name])]
        info = helper.make_tensor_value_info(name, 1, None)
        bodies.append(helper.make_graph(body, name, [], [info]))
    return [s.add("If", [condition], then_branch=bodies[0], else_branch=bodies[1])]


def _loop(s: Sketch) -> list[str]:
    x = s.pick("float32")
    if x is None:
        return []
    names = [s.name() for _ in range(6)]
    count, going, state, again, made, factor = names
    infos = [
        helper.make_tensor_value_info(n, k, [] if k != 1 else None)
        for n, k in ((count, 7), (going, 9), (state, 1), (again, 9), (made, 1))
    ]
    op = str(s.random.choice(["Mul", "Add", "Max"]))
    tensor = numpy_helper.from_array(np.float32(s.random.choice([0.5, 2, -1])), factor)
    nodes = [
        helper.make_node("Identity", [going], [again]),
        helper.make_node(op, [state, factor], [made]),
    ]
    body = helper.make_graph(nodes, count, infos[:3], infos[3:], [tensor])
    trips = s.constant(np.int64(s.random.integers(0, 4)))
    return [s.add("Loop", [trips, "", x.name], body=body)]


def _call(s: Sketch) -> list[str]:
    x = s.pick("float32")
    if x is None:
        return []
    name = f"F{s.random.integers(2)}"
    imports = [helper.make_opsetid("", s.opset)]
    if name not in s.functions:
        node = helper.make_node("LeakyRelu", ["a"], ["k"])
        attribute = node.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT)
        attribute.ref_attr_name = "slope"
        last = helper.make_node("Sub", ["k", "a"] if name == "F0" else ["a", "k"], ["b"])
        s.functions[name] = helper.make_function(
            "f", name, ["a"], ["b"], [node, last], imports, attributes=["slope"]
        )
    return [s.add(name, [x.name], domain="f", slope=float(s.random.choice([0.1, 0.5])))]


BUILDERS: list[Builder] = [
    *[unary, with_constant, _quant, _qdq] * 3,
    *[_two, _clip, _cast, _compare, _move] * 2,
    *[fake_quantize, _slice, _product, _pool, _along, _branches, _loop, _call],
]
