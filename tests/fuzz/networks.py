"""Random small networks of the operators that quantized models of exporters and runtimes have.

Convolutions of all kinds, operators on codes, operators of com.microsoft, sums of branches,
control flow, functions, shared weights, several outputs. All scales are powers of two and sums are
small, so that float32 is exact whatever the order of additions: each difference is a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Random = np.random.Generator

MICROSOFT, QONNX, OPENVINO = "com.microsoft", "qonnx.custom_op.general", "org.openvinotoolkit"
SHAPE = (2, 4, 5, 5)
"""Of the data between blocks, so that all can be added."""


@dataclass(frozen=True)
class Codes:
    """Codes in the network, and what they stand for."""

    name: str
    scale: str
    zero: str
    dtype: str


@dataclass
class Network:
    """A network while it is drawn.

    Attributes:
        random: what decides.
        opset: of the standard domain.
        at: the last value: real numbers of SHAPE.
        reals: all such values.
        weights: decoded weights by shape, which several operators may share.
        outputs: type and shape of the outputs.
        inner: of codes and weights, which can be outputs too.
    """

    random: Random
    opset: int
    at: str = "x"
    reals: list[str] = field(default_factory=lambda: ["x"])
    weights: dict[tuple[int, ...], list[str]] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    stored: list[onnx.TensorProto] = field(default_factory=list)
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    outputs: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    inner: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    count: int = 0

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def one(self, *choices: Any) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def store(self, array: Any, stem: str = "k") -> str:
        name = self.fresh(stem)
        self.stored.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node; return the name of its result."""
        y = self.fresh(kind.lower()[:4])
        self.nodes.append(
            helper.make_node(kind, inputs, [y], name=f"n_{y}", domain=domain, **attributes)
        )
        return y

    def scale(self, *sizes: int, low: int = -4, high: int = -1) -> Array:
        return np.exp2(self.random.integers(low, high, sizes)).astype(np.float32)

    def numbers(self, *sizes: int) -> Array:
        """Return multiples of a quarter."""
        return (self.random.integers(-12, 13, sizes) / 4).astype(np.float32)

    def codes(self, dtype: str, *sizes: int) -> Array:
        most = np.iinfo(dtype)
        return self.random.integers(max(most.min, -40), min(most.max, 64), sizes).astype(dtype)

    def move(self, name: str) -> None:
        self.at = name
        self.reals.append(name)

    def quantize(self, x: str, dtype: str = "") -> Codes:
        dtype = dtype or self.one("uint8", "int8")
        zero = self.one(0, 0, 3, 128 if dtype == "uint8" else -7)
        scale, zero = self.store(self.scale(), "s"), self.store(np.asarray(zero, dtype), "z")
        return Codes(self.add("QuantizeLinear", x, scale, zero), scale, zero, dtype)

    def decode(self, x: Codes) -> str:
        return self.add("DequantizeLinear", x.name, x.scale, x.zero)

    def encoding(self, dtype: str, low: int = -3, high: int = 1) -> tuple[str, str]:
        scale = self.scale(low=low, high=high)
        return self.store(scale, "s"), self.store(np.asarray(self.one(0, 2, 5), dtype), "z")


def quantizer(net: Network, x: str) -> str:
    """Quantize real numbers in some dialect."""
    low = "CP" if net.opset >= 21 else ""
    match net.one(*"PPPQFMBR", *low):
        case "P" | "C":
            return net.decode(net.quantize(x))
        case "Q":
            bits = net.store(np.float32(net.one(2, 4, 8)))
            zero = net.store(np.float32(net.one(0, 0, 1)))
            return net.add(
                "Quant",
                *(x, net.store(net.scale()), zero, bits),
                domain=QONNX,
                signed=net.one(0, 1),
                narrow=net.one(0, 1),
                rounding_mode=net.one("ROUND", "ROUND", "FLOOR", "CEIL"),
            )
        case "F":
            step = float(net.scale())
            low, levels = net.one((-128, 256), (0, 256), (0, 16), (-8, 16), (-3, 16))
            ends = [np.float32(v * step) for v in (low, low + levels - 1)]
            names = [net.store(end) for end in ends]
            return net.add("FakeQuantize", x, *names, *names, domain=OPENVINO, levels=levels)
        case "M":
            dtype = net.one("uint16", "int16", "uint8", "int8")
            names = [net.store(net.scale(low=-8, high=-4)), net.store(np.zeros((), dtype))]
            code = net.add("QuantizeLinear", x, *names, domain=MICROSOFT)
            return net.add("DequantizeLinear", code, *names, domain=MICROSOFT)
        case "B":
            return net.add("BipolarQuant", x, net.store(net.scale()), domain=QONNX)
        case "R":
            axis = 1
            names = [net.store(net.scale(4)), net.store(np.zeros(4, net.one("int8", "uint8")))]
            code = net.add("QuantizeLinear", x, *names, axis=axis)
            return net.add("DequantizeLinear", code, *names, axis=axis)
    raise AssertionError


def weight(net: Network, *sizes: int, axis: int = 0) -> str:
    """Return decoded weights, new ones or ones that another operator has too."""
    known = net.weights.setdefault(sizes, [])
    if known and net.chance(0.4):
        return str(net.one(*known))
    per = (sizes[axis],)
    kinds = "PPAAQFN" + ("4B" if net.opset >= 21 else "")
    match net.one(*kinds):
        case "P":
            codes = net.store(net.codes("int8", *sizes), "w")
            y = net.add("DequantizeLinear", codes, net.store(net.scale()), net.store(np.int8(0)))
        case "A":
            codes, zeros = net.store(net.codes("uint8", *sizes), "w"), net.codes("uint8", *per)
            names = [net.store(net.scale(*per)), net.store(zeros)]
            y = net.add("DequantizeLinear", codes, *names, axis=axis)
        case "Q":
            shape = [1] * len(sizes)
            shape[axis] = sizes[axis]
            names = [net.store(net.scale(*shape)), net.store(np.float32(0))]
            names.append(net.store(np.float32(net.one(3, 4, 8))))
            given: dict[str, Any] = {"signed": 1, "narrow": net.one(0, 1), "rounding_mode": "ROUND"}
            y = net.add("Quant", net.store(net.numbers(*sizes)), *names, domain=QONNX, **given)
        case "F":
            ends = [net.store(np.float32(end)) for end in (-2, 1.75)] * 2
            x = net.store(net.numbers(*sizes))
            y = net.add("FakeQuantize", x, *ends, domain=OPENVINO, levels=net.one(16, 256))
        case "N":
            y = net.store(net.numbers(*sizes))
        case "4":
            kind = net.one(TensorProto.INT4, TensorProto.UINT4)
            lo = -8 if kind == TensorProto.INT4 else 0
            values = net.random.integers(lo, lo + 16, sizes).reshape(-1)
            codes, zero = net.fresh("w"), net.fresh("z")
            net.stored.append(helper.make_tensor(codes, kind, sizes, values))
            net.stored.append(helper.make_tensor(zero, kind, per, [0] * per[0]))
            y = net.add("DequantizeLinear", codes, net.store(net.scale(*per)), zero, axis=axis)
        case "B":
            x = net.store(net.numbers(*sizes))
            names = [net.store(net.scale()), net.store(np.int8(0))]
            y = net.add("DequantizeLinear", net.add("QuantizeLinear", x, *names), *names)
    known.append(y)
    net.inner[y] = (TensorProto.FLOAT, sizes)
    return y


def convolution(net: Network) -> None:
    """A Conv or ConvTranspose that keeps the shape: plain, in groups, or depthwise."""
    group = int(net.one(1, 1, 2, 4))
    x = quantizer(net, net.at) if net.chance(0.9) else net.at
    w = weight(net, 4, 4 // group, 3, 3)
    bias = [net.store(net.numbers(4), "b")] if net.chance(0.5) else []
    dilation = net.one(1, 1, 2)
    place: dict[str, Any] = {"pads": [dilation] * 4, "dilations": [dilation] * 2, "group": group}
    if dilation == 1 and net.chance(0.2):
        place = {"auto_pad": "SAME_UPPER", "group": group}
    if net.chance(0.5):
        place["kernel_shape"] = [3, 3]
    if net.chance(0.25):
        place.pop("auto_pad", None)
        net.move(net.add("ConvTranspose", x, w, *bias, **place | {"pads": [dilation] * 4}))
    else:
        net.move(net.add("Conv", x, w, *bias, **place))


def on_codes(net: Network) -> None:
    """Some operators on codes between a QuantizeLinear and a DequantizeLinear."""
    x = net.quantize(net.at)
    net.inner[x.name] = (helper.np_dtype_to_tensor_dtype(np.dtype(x.dtype)), SHAPE)
    for _ in range(int(net.one(1, 2, 3))):
        x = _on_codes(net, x)
    net.move(net.decode(x))


def _on_codes(net: Network, x: Codes) -> Codes:
    given = [x.name, x.scale, x.zero]
    match net.one("Conv", "Conv", "Add", "Mul", "Leaky", "Concat", "Pool", "Turn", "Again"):
        case "Conv":
            group = int(net.one(1, 2, 4))
            # ONNX Runtime has no kernel for int8 data and uint8 weights.
            dtype, per = net.one("int8", x.dtype), net.one((), (4,))
            w = net.store(net.codes(dtype, 4, 4 // group, 3, 3), "w")
            zero = np.zeros(per, dtype) if per else net.codes(dtype)
            parameters = [net.store(net.scale(*per)), net.store(zero)]
            s, z = net.encoding(x.dtype)
            bias = [net.store(net.random.integers(-500, 500, 4).astype(np.int32))]
            inputs = [*given, w, *parameters, s, z, *(bias if net.chance(0.5) else [])]
            y = net.add("QLinearConv", *inputs, pads=[1, 1, 1, 1], group=group)
        case "Add" | "Mul" as kind:
            if net.chance(0.5):
                other = net.quantize(net.one(*net.reals), x.dtype)
                right = [other.name, other.scale, other.zero]
            else:
                right = [net.store(net.codes(x.dtype, 4, 1, 1)), *net.encoding(x.dtype)]
            s, z = net.encoding(x.dtype)
            y = net.add(f"QLinear{kind}", *given, *right, s, z, domain=MICROSOFT)
        case "Leaky":
            s, z = net.encoding(x.dtype)
            y = net.add("QLinearLeakyRelu", *given, s, z, domain=MICROSOFT, alpha=0.25)
        case "Concat":
            s, z = net.encoding(x.dtype)
            both = net.add("QLinearConcat", s, z, *given, *given, domain=MICROSOFT, axis=1)
            index = net.store(np.asarray([0, 5, 2, 7], np.int64))
            y = net.add("Gather", both, index, axis=1)
        case "Pool":
            place = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
            return Codes(net.add("MaxPool", x.name, **place), x.scale, x.zero, x.dtype)
        case "Turn":
            y = net.add("Transpose", x.name, perm=[0, 1, 3, 2])
            return Codes(y, x.scale, x.zero, x.dtype)
        case "Again":
            return net.quantize(net.decode(x), x.dtype)
    return Codes(y, s, z, x.dtype)


def residual(net: Network) -> None:
    """The sum of two values, or of one with itself."""
    others = [net.one(*net.reals), net.at]
    if net.chance(0.5):
        others = [quantizer(net, each) for each in others]
    net.move(net.add("Add", *others))


def simple(net: Network) -> None:
    """Operators that go element by element, or pool."""
    match net.one("Relu", "Clip", "Leaky", "Max", "Average", "Identity", "Scale"):
        case "Clip":
            y = net.add("Clip", net.at, net.store(np.float32(-1)), net.store(np.float32(6)))
        case "Leaky":
            y = net.add("LeakyRelu", net.at, alpha=0.25)
        case "Max":
            y = net.add("MaxPool", net.at, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        case "Average":
            place = {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1], "count_include_pad": 1}
            y = net.add("AveragePool", net.at, **place)
        case "Scale":
            y = net.add("Mul", net.at, net.store(net.scale(4, 1, 1)))
        case kind:
            y = net.add(kind, net.at)
    net.move(quantizer(net, y) if net.chance(0.4) else y)


def branches(net: Network) -> None:
    """An If whose branches quantize a value from outside, each otherwise."""
    outer, bodies = net.nodes, []
    source = quantizer(net, net.at) if net.chance(0.5) else net.at
    total = net.add("ReduceSum", net.at, keepdims=0)
    flag = net.add("Less", total, net.store(np.float32(0)))
    for _ in range(2):
        net.nodes = []
        kept = net.stored
        net.stored = kept if net.chance(0.5) else []
        y = quantizer(net, source)
        y = net.add("Mul", y, net.store(net.scale())) if net.chance(0.5) else y
        info = helper.make_tensor_value_info(y, TensorProto.FLOAT, SHAPE)
        own = [] if net.stored is kept else net.stored
        bodies.append(helper.make_graph(net.nodes, net.fresh("body"), [], [info], own))
        net.stored = kept
    net.nodes = outer
    net.move(net.add("If", flag, then_branch=bodies[0], else_branch=bodies[1]))


def loop(net: Network) -> None:
    """A Loop that quantizes its state."""
    outer = net.nodes
    net.nodes = []
    number, going, state, more = (net.fresh("l") for _ in range(4))
    net.nodes.append(helper.make_node("Identity", [going], [more]))
    y = net.add("Add", quantizer(net, state), quantizer(net, net.at))
    y = net.add("Mul", y, net.store(np.float32(0.5)))
    infos = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (
            (number, TensorProto.INT64, []),
            (going, TensorProto.BOOL, []),
            (state, TensorProto.FLOAT, SHAPE),
            (more, TensorProto.BOOL, []),
            (y, TensorProto.FLOAT, SHAPE),
        )
    ]
    body = helper.make_graph(net.nodes, net.fresh("body"), infos[:3], infos[3:])
    net.nodes = outer
    count = net.store(np.asarray(net.one(1, 2), np.int64))
    net.move(net.add("Loop", count, "", net.at, body=body))


def call(net: Network) -> None:
    """A local function that quantizes; later calls share it."""
    if not net.functions or net.chance(0.3):
        name, dtype = f"F{len(net.functions)}", net.one("uint8", "int8")
        constants = [
            helper.make_node("Constant", [], ["s"], value=numpy_helper.from_array(net.scale())),
            helper.make_node(
                "Constant", [], ["z"], value=numpy_helper.from_array(np.zeros((), dtype))
            ),
        ]
        leaky = helper.make_node("LeakyRelu", ["a"], ["k"], name="leaky")
        slope = leaky.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT)
        slope.ref_attr_name = "slope"
        nodes = [
            *constants,
            leaky,
            helper.make_node("QuantizeLinear", ["k", "s", "z"], ["c"], name="q"),
            helper.make_node("DequantizeLinear", ["c", "s", "z"], ["d"], name="d"),
            helper.make_node("Add", ["d", "b"], ["y"], name="sum"),
        ]
        imports = [helper.make_opsetid("", net.opset)]
        net.functions.append(
            helper.make_function("local", name, ["a", "b"], ["y"], nodes, imports, ["slope"])
        )
    name = net.one(*net.functions).name
    slope = float(net.one(0.25, 0.5))
    net.move(net.add(name, net.at, net.one(*net.reals), domain="local", slope=slope))


def head(net: Network) -> None:
    """A matrix product at the end: on real numbers, on codes, or with packed weights."""
    flat = net.add("Flatten", net.add("AveragePool", net.at, kernel_shape=[4, 4]), axis=1)
    rows, k, n = 2, 16, 3
    kind = net.one("MatMul", "Gemm", "NBits", "QMatMul", "ToFloat", "Dynamic", "QGemm", "Integer")
    y_kind = TensorProto.FLOAT
    match kind:
        case "MatMul":
            y = net.add("MatMul", quantizer2(net, flat), weight(net, k, n, axis=1))
        case "Gemm":
            inputs = [quantizer2(net, flat), weight(net, n, k), net.store(net.numbers(n))]
            y = net.add("Gemm", *inputs, transB=1)
        case "NBits":
            bits = int(net.one(4, 4, 8, 2))
            packed = net.random.integers(0, 256, (n, 1, 16 * bits // 8)).astype(np.uint8)
            inputs = [quantizer2(net, flat), net.store(packed), net.store(net.scale(n, 1))]
            if net.chance(0.5):
                size = -(-bits // 8) if bits == 8 else 1
                inputs.append(net.store(net.codes("uint8", n, size)))
            attributes = {"K": k, "N": n, "bits": bits, "block_size": 16}
            y = net.add("MatMulNBits", *inputs, domain=MICROSOFT, **attributes)
        case "QMatMul" | "QGemm":
            x = net.quantize(flat)
            dtype, per = net.one("int8", x.dtype), net.one((), (n,))
            parameters = [net.store(net.scale(*per)), net.store(np.full(per, 0, dtype))]
            given, (s, z) = [x.name, x.scale, x.zero], net.encoding(x.dtype)
            if kind == "QGemm":
                w = net.store(net.codes(dtype, n, k))
                bias = net.store(net.random.integers(-200, 200, n).astype(np.int32))
                end = [] if net.chance(0.3) else [s, z]
                inputs = [*given, w, *parameters, bias, *end]
                y = net.add("QGemm", *inputs, domain=MICROSOFT, transB=1, alpha=1.0)
                y = y if not end else net.decode(Codes(y, s, z, x.dtype))
            else:
                w = net.store(net.codes(dtype, k, n))
                y = net.add("QLinearMatMul", *given, w, *parameters, s, z)
                if net.chance(0.7):
                    y = net.decode(Codes(y, s, z, x.dtype))
                else:
                    y_kind = TensorProto.UINT8 if x.dtype == "uint8" else TensorProto.INT8
        case "ToFloat":
            x = net.quantize(flat)
            dtype = net.one("int8", x.dtype)
            w, s_w = net.store(net.codes(dtype, k, n)), net.store(net.scale(n))
            zero = net.store(net.codes(dtype))
            inputs = [x.name, w, x.scale, s_w, x.zero, zero, net.store(net.numbers(n))]
            y = net.add("MatMulIntegerToFloat", *inputs, domain=MICROSOFT)
        case "Dynamic":
            w, s_w = net.store(net.codes("int8", k, n)), net.store(net.scale())
            y = net.add("DynamicQuantizeMatMul", flat, w, s_w, domain=MICROSOFT)
        case "Integer":
            x = net.quantize(flat)
            w = net.store(net.codes(net.one("int8", "uint8"), k, n))
            y = net.add("MatMulInteger", x.name, w, x.zero)
            y = net.add("Mul", net.add("Cast", y, to=TensorProto.FLOAT), net.store(net.scale(n)))
    net.outputs[y] = (y_kind, (rows, n))


def quantizer2(net: Network, x: str) -> str:
    """Quantize a matrix, or leave it."""
    return net.decode(net.quantize(x)) if net.chance(0.8) else x


BLOCKS: list[Callable[[Network], None]] = [
    *[convolution, on_codes] * 3,
    *[residual, simple] * 2,
    *[branches, loop, call],
]


def network(random: Random, *, blocks: int = 4, opset: int | None = None) -> onnx.ModelProto:
    """Draw a network of up to ``blocks`` blocks; its input is x, of SHAPE."""
    net = Network(random, opset or int(random.choice([13, 17, 19, 20, 21, 21, 21])))
    for _ in range(int(random.integers(1, blocks + 1))):
        net.one(*BLOCKS)(net)
    if net.chance(0.5):
        head(net)
    spare = [name for name in net.reals[1:] if net.chance(0.2) or not net.outputs]
    for name in dict.fromkeys([*spare, net.at] if net.chance(0.5) or not spare else spare[-1:]):
        net.outputs[name] = (TensorProto.FLOAT, SHAPE)
    computed = {name for node in net.nodes for name in node.output}
    for name, kind in net.inner.items():
        if name in computed and net.chance(0.15):
            net.outputs[name] = kind
    if net.chance(0.3):
        random.shuffle(net.nodes)  # type: ignore[arg-type]
        net.nodes = _sorted(net.nodes, {"x", *(t.name for t in net.stored)})
    for tensor in [tensor for tensor in net.stored if net.chance(0.1)]:
        net.stored.remove(tensor)
        net.nodes.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    infos = [helper.make_tensor_value_info(n, k, s) for n, (k, s) in net.outputs.items()]
    sizes = ["N", *SHAPE[1:]] if net.chance(0.2) and _is_plain(net) else SHAPE
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)
    graph = helper.make_graph(net.nodes, "net", [x], infos, net.stored)
    domains = {"": net.opset, MICROSOFT: 1, QONNX: 2, OPENVINO: 1, "local": 1}
    imports = [helper.make_opsetid(*pair) for pair in domains.items()]
    made = helper.make_model(graph, opset_imports=imports, ir_version=10, functions=net.functions)
    if net.chance(0.3):
        _rename(net, made.graph)
    return made


def _rename(net: Network, graph: onnx.GraphProto) -> None:
    """Give some values names that a pass might give to values beside others."""
    kept = {value.name for value in (*graph.input, *graph.output)}
    names = [t.name for t in graph.initializer]
    names += [name for node in graph.node for name in node.output]
    suffixes = (
        "_scale",
        "_codes",
        "_zero_point",
        "_q",
        "_1",
        "_out",
        "_bias",
        "_one",
        "_dequantized",
    )
    new = {name: name for name in names}
    for name in names:
        fresh = f"{net.one(*names)}{net.one(*suffixes)}"
        if name not in kept and net.chance(0.4) and fresh not in new.values():
            new[name] = fresh
    _replace(graph, new)


def _replace(graph: onnx.GraphProto, new: dict[str, str]) -> None:
    for value in (*graph.initializer, *graph.output):
        value.name = new.get(value.name, value.name)
    for node in graph.node:
        for some in (node.input, node.output):
            some[:] = [new.get(name, name) for name in some]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _replace(attribute.g, new)


def _is_plain(net: Network) -> bool:
    return not any(node.op_type in ("If", "Loop") for node in net.nodes) and not net.functions


def _sorted(nodes: list[onnx.NodeProto], known: set[str]) -> list[onnx.NodeProto]:
    """Put nodes in some order that is valid; a graph in one uses values of the first ones."""
    done: list[onnx.NodeProto] = []
    left = list(nodes)
    while left:
        node = next(n for n in left if _needs(n) <= known)
        left.remove(node)
        done.append(node)
        known |= set(node.output)
    return done


def _needs(node: onnx.NodeProto) -> set[str]:
    needed = {name for name in node.input if name}
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            body = attribute.g
            own = {t.name for t in body.initializer} | {v.name for v in body.input}
            own |= {name for inner in body.node for name in inner.output}
            needed |= set().union(*(_needs(inner) for inner in body.node)) - own
    return needed


def feeds(random: Random) -> list[dict[str, Array]]:
    """Return inputs: on a grid with ties, near ties, and large."""
    grid = (random.integers(-64, 64, SHAPE) / 16).astype(np.float32)
    near = np.nextafter(grid, np.float32(random.choice([-9, 9])))
    large = (random.normal(size=SHAPE) * 100).astype(np.float32)
    large = np.round(large * 4) / np.float32(4)
    return [{"x": each.astype(np.float32)} for each in (grid, near, large)]
