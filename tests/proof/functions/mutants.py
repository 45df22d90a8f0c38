"""Small changes of models that were proved equal to others, and an oracle that runs them.

The oracle never asks the proof engine: it runs both models in NumPy on a grid of all magnitudes, on
the neighbours of every step of both, which it finds by bisection, and on special numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import QGraphError
from qgraph.execution.executor import Executor

HEADER = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2,
    "org.openvinotoolkit": 1]> g (float[N,{channels}] x) => (float[N,{outputs}] y)"""


@dataclass(frozen=True)
class Base:
    """A model and another one, written by hand, that computes the same values."""

    name: str
    reference: str
    candidate: str
    channels: int = 1
    outputs: int | None = None
    elementwise: bool = True

    def models(self) -> tuple[ir.Model, ir.Model]:
        header = HEADER.format(channels=self.channels, outputs=self.outputs or self.channels)
        made = [ir.from_onnx_text(header + body) for body in (self.reference, self.candidate)]
        return made[0], made[1]


BASES = [
    Base(
        "int8",
        """<float s = {0.1}, float z = {0}, float b = {8}> {
            y = qonnx.custom_op.general.Quant
                <signed = 1, narrow = 0, rounding_mode = "ROUND">(x, s, z, b) }""",
        """<float s = {0.1}, int8 z = {0}> {
            q = QuantizeLinear(x, s, z)
            y = DequantizeLinear(q, s, z) }""",
    ),
    Base(
        "int4 narrow by channel",
        """<float[1,3] s = {0.1, 0.25, 1.7}, float z = {0}, float b = {4}> {
            y = qonnx.custom_op.general.Quant
                <signed = 1, narrow = 1, rounding_mode = "ROUND">(x, s, z, b) }""",
        """<float[3] s = {0.1, 0.25, 1.7}, int8[3] z = {0, 0, 0}, int8 lo = {-7}, int8 hi = {7}> {
            q = QuantizeLinear<axis = 1>(x, s, z)
            c = Clip(q, lo, hi)
            y = DequantizeLinear<axis = 1>(c, s, z) }""",
        channels=3,
    ),
    Base(
        "uint8 with a zero point",
        """<float s = {0.25}, float z = {127}, float b = {8}> {
            y = qonnx.custom_op.general.Quant
                <signed = 0, narrow = 0, rounding_mode = "ROUND">(x, s, z, b) }""",
        """<float s = {0.25}, float z = {127}, uint8 zp = {127}, float one = {1}, uint8 o = {0}> {
            d = Div(x, s)
            a = Add(d, z)
            q = QuantizeLinear(a, one, o)
            y = DequantizeLinear(q, s, zp) }""",
    ),
    Base(
        "FakeQuantize",
        """<float il = {-1.1}, float ih = {2.3}> {
            y = org.openvinotoolkit.FakeQuantize<levels = 16>(x, il, ih, il, ih) }""",
        """<float il = {-1.1}, float ih = {2.3}, float n = {15}> {
            w = Sub(ih, il)
            a = Sub(x, il)
            d = Div(a, w)
            m = Mul(d, n)
            r = Round(m)
            e = Div(r, n)
            f = Mul(e, w)
            g = Add(f, il)
            low = LessOrEqual(x, il)
            high = Greater(x, ih)
            h = Where(high, ih, g)
            y = Where(low, il, h) }""",
    ),
    Base(
        "floor",
        """<float s = {0.3}, float z = {0}, float b = {4}> {
            y = qonnx.custom_op.general.Quant
                <signed = 1, narrow = 0, rounding_mode = "FLOOR">(x, s, z, b) }""",
        """<float s = {0.3}, float lo = {-8}, float hi = {7}> {
            d = Div(x, s)
            c = Clip(d, lo, hi)
            r = Floor(c)
            y = Mul(r, s) }""",
    ),
    Base(
        "half up",
        """<float s = {0.3}, float z = {1}, float b = {3}> {
            y = qonnx.custom_op.general.Quant
                <signed = 0, narrow = 0, rounding_mode = "HALF_UP">(x, s, z, b) }""",
        """<float s = {0.3}, float z = {1}, float lo = {0}, float hi = {7}, float half = {0.5}> {
            d = Div(x, s)
            e = Add(d, z)
            f = Min(e, hi)
            c = Max(f, lo)
            a = Abs(c)
            h = Add(a, half)
            r = Floor(h)
            g = Sign(c)
            v = Mul(g, r)
            w = Sub(v, z)
            y = Mul(w, s) }""",
    ),
    Base(
        "bipolar",
        "<float s = {0.7}> { y = qonnx.custom_op.general.BipolarQuant(x, s) }",
        """<float s = {0.7}, float n = {-0.7}, float o = {0}> {
            c = GreaterOrEqual(x, o)
            y = Where(c, s, n) }""",
    ),
    Base(
        "blocks",
        """<float[1,4] s = {0.1, 0.1, 0.25, 0.25}, float z = {0}, float b = {8}> {
            y = qonnx.custom_op.general.Quant
                <signed = 1, narrow = 0, rounding_mode = "ROUND">(x, s, z, b) }""",
        """<float[1,4] s = {0.1, 0.1, 0.25, 0.25}, float lo = {-128}, float hi = {127}> {
            d = Div(x, s)
            r = Round(d)
            c = Clip(r, lo, hi)
            y = Mul(c, s) }""",
        channels=4,
    ),
    Base(
        "float8",
        """<float s = {0.37}, float e = {4}, float m = {3}, float b = {7}, float top = {448}> {
            y = qonnx.custom_op.general.FloatQuant<has_inf = 0, has_nan = 0, has_subnormal = 1,
                saturation = 1, rounding_mode = "ROUND">(x, s, e, m, b, top) }""",
        """<float s = {0.37}, float lo = {-448}, float hi = {448}> {
            d = Div(x, s)
            k = Clip(d, lo, hi)
            q = Cast<to = 17, saturate = 1>(k)
            f = Cast<to = 1>(q)
            y = Mul(f, s) }""",
    ),
    Base(
        "trunc",
        """<float s = {0.1}, float z = {0}, float i = {8}, float t = {0.4}, float o = {4}> {
            y = qonnx.custom_op.general.Trunc
                <signed = 1, narrow = 0, rounding_mode = "FLOOR">(x, s, z, i, t, o) }""",
        """<float s = {0.1}, float t = {0.4}, float k = {4}, float lo = {-8}, float hi = {7}> {
            d = Div(x, s)
            r = Round(d)
            q = Div(r, k)
            c = Clip(q, lo, hi)
            f = Floor(c)
            y = Mul(f, t) }""",
    ),
    Base(
        "FakeQuantize of 255 levels",
        """<float il = {-0.73}, float ih = {1.21}, float ol = {-1}, float oh = {1}> {
            y = org.openvinotoolkit.FakeQuantize<levels = 255>(x, il, ih, ol, oh) }""",
        """<float il = {-0.73}, float ih = {1.21}, float n = {254}, float ol = {-1},
            float oh = {1}> {
            w = Sub(ih, il)
            a = Sub(x, il)
            d = Div(a, w)
            m = Mul(d, n)
            r = Round(m)
            e = Div(r, n)
            v = Sub(oh, ol)
            f = Mul(e, v)
            g = Add(f, ol)
            low = LessOrEqual(x, il)
            high = Greater(x, ih)
            h = Where(high, oh, g)
            y = Where(low, ol, h) }""",
    ),
    Base(
        "convolution",
        """<float s = {0.25}, float z = {0}, float b = {4}, float[1,1,2,2] w = {1, -0.5, 0.5, 2},
            int64[4] before = {-1, 1, 4, 4}, int64[2] after = {-1, 9}, float[1] c = {0.1},
            float[1] g = {0.8}, float[1] e = {0.1}, float[1] m = {0.2}, float[1] v = {1.5}> {
            r = Reshape(x, before)
            a = qonnx.custom_op.general.Quant
                <signed = 1, narrow = 0, rounding_mode = "ROUND">(r, s, z, b)
            k = Conv<kernel_shape = [2,2], strides = [1,1], pads = [0,0,0,0], group = 1>(a, w, c)
            n = BatchNormalization<epsilon = 0.001>(k, g, e, m, v)
            q = qonnx.custom_op.general.Quant
                <signed = 1, narrow = 0, rounding_mode = "ROUND">(n, s, z, b)
            y = Reshape(q, after) }""",
        """<float s = {0.25}, int8 z = {0}, int8 lo = {-8}, int8 hi = {7},
            float[1,1,2,2] w = {1, -0.5, 0.5, 2}, int64[4] before = {-1, 1, 4, 4},
            int64[2] after = {-1, 9}, float[1] c = {0.1}, float[1] g = {0.8}, float[1] e = {0.1},
            float[1] m = {0.2}, float[1] v = {1.5}> {
            r = Reshape(x, before)
            i = QuantizeLinear(r, s, z)
            j = Clip(i, lo, hi)
            a = DequantizeLinear(j, s, z)
            k = Conv<kernel_shape = [2,2], strides = [1,1], pads = [0,0,0,0], group = 1>(a, w, c)
            n = BatchNormalization<epsilon = 0.001>(k, g, e, m, v)
            o = QuantizeLinear(n, s, z)
            p = Clip(o, lo, hi)
            q = DequantizeLinear(p, s, z)
            y = Reshape(q, after) }""",
        channels=16,
        outputs=9,
        elementwise=False,
    ),
    Base(
        "linear layer",
        """<float s = {0.25}, float z = {0}, float b = {4}, float sw = {0.5},
            float[3,2] w = {0.4, -1.2, 2.4, 0.9, -3.1, 0.1}, float[2] c = {0.3, -0.7}> {
            a = qonnx.custom_op.general.Quant
                <signed = 1, narrow = 0, rounding_mode = "ROUND">(x, s, z, b)
            v = qonnx.custom_op.general.Quant
                <signed = 1, narrow = 1, rounding_mode = "ROUND">(w, sw, z, b)
            m = MatMul(a, v)
            n = Add(m, c)
            r = Relu(n)
            y = qonnx.custom_op.general.Quant
                <signed = 0, narrow = 0, rounding_mode = "ROUND">(r, s, z, b) }""",
        """<float s = {0.25}, int8 zs = {0}, uint8 zu = {0}, int8 lo = {-8}, int8 hi = {7},
            uint8 ulo = {0}, uint8 uhi = {15}, float sw = {0.5}, int8[3,2] w = {1, -2, 5, 2, -6, 0},
            float[2] c = {0.3, -0.7}> {
            q = QuantizeLinear(x, s, zs)
            k = Clip(q, lo, hi)
            a = DequantizeLinear(k, s, zs)
            v = DequantizeLinear(w, sw, zs)
            m = MatMul(a, v)
            n = Add(m, c)
            r = Relu(n)
            p = QuantizeLinear(r, s, zu)
            l = Clip(p, ulo, uhi)
            y = DequantizeLinear(l, s, zu) }""",
        channels=3,
        outputs=2,
        elementwise=False,
    ),
]

OTHER_OPERATOR = {
    "Abs": "Relu",
    "Add": "Sub",
    "Ceil": "Floor",
    "Div": "Mul",
    "Floor": "Round",
    "Greater": "GreaterOrEqual",
    "GreaterOrEqual": "Greater",
    "LessOrEqual": "Less",
    "Max": "Min",
    "Min": "Max",
    "Mul": "Div",
    "Relu": "Abs",
    "Round": "Ceil",
    "Sub": "Add",
}
ROUNDINGS = ("ROUND", "FLOOR", "CEIL", "UP", "DOWN", "HALF_UP", "HALF_DOWN")


def mutants(make: Callable[[], ir.Model]) -> Iterator[tuple[str, ir.Model]]:
    """Yield a description and a changed copy for every small change that is known here."""
    model = make()
    for name in list(model.graph.initializers):
        yield from _constants(make, name)
    for place, node in enumerate(model.graph):
        for attribute in node.attributes:
            yield from _attributes(make, place, attribute)
        yield from _operators(make, place)


def _constants(make: Callable[[], ir.Model], name: str) -> Iterator[tuple[str, ir.Model]]:
    tensor = make().graph.initializers[name].const_value
    assert tensor is not None
    array = tensor.numpy()
    for element in range(min(array.size, 4)):
        value = array.reshape(-1)[element]
        for label, changed in _values(value):
            other = array.copy()
            other.reshape(-1)[element] = changed
            yield f"{name}[{element}] {label}", _with_constant(make, name, other)
    if array.size > 1:
        yield f"{name} rolled", _with_constant(make, name, np.roll(array, 1))
    if array.dtype == np.int8 and array.min() >= 0:
        yield f"{name} as uint8", _with_constant(make, name, array.astype(np.uint8))


def _values(value: Any) -> Iterator[tuple[str, Any]]:
    if value.dtype.kind == "f":
        for ulps in (*range(-6, 0), *range(1, 7), -64, 64, 1000, 1 << 20):
            bits = np.float32(value).view(np.int32) + ulps
            yield f"{ulps} ulps", bits.view(np.float32)
        yield "doubled", value * 2
        yield "negated", -value
        yield "plus one", value + 1
        yield "zero", value * 0
        return
    limits = np.iinfo(value.dtype)
    for step in (-2, -1, 1, 2):
        if limits.min <= int(value) + step <= limits.max:
            yield f"{step:+}", np.asarray(int(value) + step).astype(value.dtype)


def _with_constant(make: Callable[[], ir.Model], name: str, array: np.ndarray) -> ir.Model:
    model = make()
    value = model.graph.initializers[name]
    value.const_value = ir.tensor(array, name=name)
    value.dtype = value.const_value.dtype
    return model


def _attributes(
    make: Callable[[], ir.Model], place: int, name: str
) -> Iterator[tuple[str, ir.Model]]:
    attribute = list(make().graph)[place].attributes[name]
    others: list[Any] = []
    if attribute.type is ir.AttributeType.INT:
        others = [attribute.as_int() + step for step in (-1, 1)]
    elif attribute.type is ir.AttributeType.INTS:
        values = list(attribute.as_ints())
        others = [[*values[:i], v + 1, *values[i + 1 :]] for i, v in enumerate(values)]
    elif attribute.type is ir.AttributeType.FLOAT:
        others = [float(np.nextafter(np.float32(attribute.as_float()), np.float32(9)))]
    elif attribute.type is ir.AttributeType.STRING:
        others = [mode for mode in ROUNDINGS if mode != attribute.as_string()]
    for other in others:
        model = make()
        node = list(model.graph)[place]
        node.attributes[name] = ir.convenience.convert_attribute(name, other)
        yield f"{node.op_type}.{name} = {other}", model


def _operators(make: Callable[[], ir.Model], place: int) -> Iterator[tuple[str, ir.Model]]:
    kind = list(make().graph)[place]
    if len(kind.inputs) >= 2:
        model = make()
        node = list(model.graph)[place]
        first, second = node.inputs[:2]
        node.replace_input_with(0, second)
        node.replace_input_with(1, first)
        yield f"{node.op_type} swapped", model
    if len(kind.inputs) == 3:
        model = make()
        node = list(model.graph)[place]
        second, third = node.inputs[1:]
        node.replace_input_with(1, third)
        node.replace_input_with(2, second)
        yield f"{node.op_type} swapped later operands", model
    if kind.op_type in OTHER_OPERATOR:
        model = make()
        node = list(model.graph)[place]
        node.op_type = OTHER_OPERATOR[kind.op_type]
        yield f"{kind.op_type} becomes {node.op_type}", model
    if kind.op_type not in ("QuantizeLinear", "DequantizeLinear", "Cast", "Greater", "LessOrEqual"):
        model = make()
        node = list(model.graph)[place]
        (output,), source = node.outputs, node.inputs[0]
        if source is not None and kind.op_type not in ("GreaterOrEqual", "MatMul"):
            if output.is_graph_output():
                node.op_type, node.domain = "Identity", ""
                node.resize_inputs(1)
                node.attributes.clear()
            else:
                output.replace_all_uses_with(source)
            yield f"{kind.op_type} dropped", model


class Oracle:
    """Finds inputs on which a model differs from a reference, by running both."""

    def __init__(self, base: Base, reference: ir.Model) -> None:
        self._base = base
        self._reference = Executor(reference)
        rng = np.random.default_rng(0)
        self._grid = self._make_grid(rng)
        self._expected = self.outputs(self._reference, self._grid)
        if base.elementwise:
            near = self._edges(self._reference)
            self._grid = np.concatenate([self._grid, near])
            self._expected = self.outputs(self._reference, self._grid)

    def differs(self, mutant: ir.Model) -> bool | None:
        """Return whether some value differs; None if the mutant does not run."""
        try:
            executor = Executor(mutant)
            if self._differ(self.outputs(executor, self._grid), self._expected):
                return True
            if not self._base.elementwise:
                return False
            near = self._edges(executor)
            expected = self.outputs(self._reference, near)
            return self._differ(self.outputs(executor, near), expected)
        except QGraphError:
            return None

    def shows(self, mutant: ir.Model, number: float, channel: int) -> bool:
        """Return whether the two differ at one input."""
        x = np.full((1, self._base.channels), number, np.float32)
        results = [self.outputs(e, x) for e in (self._reference, Executor(mutant))]
        if results[0].shape != results[1].shape:
            return True
        return self._differ(*(result[:, channel] for result in results))

    @staticmethod
    def outputs(executor: Executor, x: np.ndarray) -> np.ndarray:
        return np.asarray(executor.run({"x": x})["y"])

    @staticmethod
    def _differ(a: np.ndarray, b: np.ndarray) -> bool:
        if a.shape != b.shape or a.dtype != b.dtype:
            return True
        return bool((~((a == b) | (np.isnan(a) & np.isnan(b)))).any())

    def _make_grid(self, rng: np.random.Generator) -> np.ndarray:
        channels = self._base.channels
        if not self._base.elementwise:
            noise = rng.normal(0, 2, (600, channels)).astype(np.float32)
            steps = rng.integers(-20, 20, (600, channels)) * np.float32(0.125)
            return np.concatenate([noise, steps.astype(np.float32)])
        patterns = np.linspace(0, 0x7F7FFFFF, 3000).astype(np.uint32).view(np.float32)
        even = np.arange(-40, 40, 0.0625, np.float32)
        special = np.array([0.0, 1e-45, 3.4028235e38, np.inf], np.float32)
        x = np.concatenate([patterns, -patterns, even, special, -special])
        return np.repeat(x[:, None], channels, axis=1)

    def _edges(self, executor: Executor) -> np.ndarray:
        """Return the neighbours of all steps between finite points of the grid, by bisection."""
        finite = self._grid[np.isfinite(self._grid[:, 0]), 0]
        keys = np.unique(_keys(finite))
        y = self.outputs(executor, self._spread(_numbers(keys)))
        if y.shape[0] != len(keys):
            raise QGraphError("the shape of the data changes")
        bits = np.ascontiguousarray(y, np.float32).view(np.int32)
        rows = np.flatnonzero((bits[1:] != bits[:-1]).any(axis=1))
        lo, hi = keys[rows], keys[rows + 1]
        start = bits[rows]
        for _ in range(32):
            middle = (lo + hi) >> 1
            now = self.outputs(executor, self._spread(_numbers(middle)))
            same = (np.ascontiguousarray(now, np.float32).view(np.int32) == start).all(axis=1)
            lo, hi = np.where(same, middle, lo), np.where(same, hi, middle)
        near = np.unique((lo[:, None] + np.arange(-3, 5)).reshape(-1))
        return self._spread(_numbers(near))

    def _spread(self, x: np.ndarray) -> np.ndarray:
        return np.repeat(x[:, None], self._base.channels, axis=1)


def _keys(x: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(x, np.float32).view(np.int32).astype(np.int64)
    return np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF) - 1)


def _numbers(keys: np.ndarray) -> np.ndarray:
    bits = np.where(keys >= 0, keys, (-keys - 1) | 0x80000000)
    return bits.astype(np.uint32).view(np.float32)
