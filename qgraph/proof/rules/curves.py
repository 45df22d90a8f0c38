"""Functions of one value: slope, range, and error of execution.

ONNX does not define how runtimes compute exp and similar functions. Their error is assumed to be at
most :data:`FUNCTION_ERROR`, which is a condition of the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from math import erf, erfc

import numpy as np

from qgraph.conditions import CURVES_WITHIN, FUNCTION_ERROR
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.numerics import Float64
from qgraph.ops.approximation import SLACK, ZERO, first_overflow, largest_of, multiple_of
from qgraph.proof.bounds.combination import Combination
from qgraph.proof.bounds.quantity import Operand, Quantity, constant, extreme
from qgraph.proof.bounds.rule import NodeCall, bound_rule
from qgraph.proof.bounds.tracer import QuantityTracer
from qgraph.reasons import NO_BOUND, OUT_OF_RANGE, Undecidable
from qgraph.records import dataclass, replace

Numbers = Mapping[str, float]
"""Attributes of a function, by name."""


@dataclass(frozen=True)
class BoundedCurve:
    """A function of one value.

    Attributes:
        slope: returns the largest magnitude of its slope between two arguments.
        ends: returns bounds of its values between two arguments.
        defaults: default attributes.
        roundings: number of its operations, if each is rounded once; None if it is approximated.
        absolute: absolute error of these operations, in units, for arguments beyond 3; for smaller
            arguments it is proportional to them.
    """

    slope: Callable[[Numbers, Float64, Float64], Float64]
    ends: Callable[[Numbers, Float64, Float64], tuple[Float64, Float64]]
    defaults: Numbers
    roundings: int | None = None
    absolute: float = 0.0


def _at_most(slope: float) -> Callable[[Numbers, Float64, Float64], Float64]:
    return lambda *_: np.asarray(slope)


def _rising(function: Callable[..., Float64]) -> Callable[..., tuple[Float64, Float64]]:
    """Return bounds of an increasing function, from its values at both ends."""

    def ends(numbers: Numbers, low: Float64, high: Float64) -> tuple[Float64, Float64]:
        first, second = (np.asarray(function(end, **numbers)) for end in (low, high))
        # wider, for the rounding of the function itself
        slack = 2.0**-40 * (largest_of(first, second) + 2.0**-100)
        return first - slack, second + slack

    return ends


def _dipping(
    function: Callable[..., Float64], lowest: float
) -> Callable[..., tuple[Float64, Float64]]:
    """Return bounds of one of :data:`_GATED`, from its minimum."""
    at_ends = _rising(function)

    def ends(numbers: Numbers, low: Float64, high: Float64) -> tuple[Float64, Float64]:
        values = (at_ends(numbers, end, end) for end in (low, high))
        # at -infinity it is 0, which NumPy computes as NaN
        first, second = (np.nan_to_num(np.stack(pair), nan=0.0, posinf=np.inf) for pair in values)
        # its slope is at most 1.5
        bottom = np.minimum(first[0], second[0]) - 0.75 * (high - low)
        bottom = np.maximum(bottom, -lowest / numbers.get("alpha", 1.0))
        return np.maximum(bottom, np.minimum(low, 0.0)), np.maximum(first[1], second[1])

    return ends


def _logistic(x: Float64) -> Float64:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _of_numbers(function: Callable[[float], float], x: Float64) -> Float64:
    """Apply a function of one number; numpy.vectorize takes five times as long."""
    flat = np.asarray(x, np.float64).reshape(-1)
    return np.fromiter(map(function, flat.tolist()), np.float64, flat.size).reshape(np.shape(x))


_erf, _erfc = (partial(_of_numbers, function) for function in (erf, erfc))

_GATED: dict[str, Callable[..., Float64]] = {
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0.0, 1.0),
    "Gelu": lambda x: x * _erfc(-x / np.sqrt(2.0)) / 2,
    "Gelu-tanh": lambda x: x * _logistic(np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)),
    "Swish": lambda x, alpha: x * _logistic(alpha * x),
    "Mish": lambda x: x * np.tanh(np.logaddexp(x, 0.0)),
}
"""Functions that decrease from 0 to their minimum, and then increase."""


def _elu(x: Float64, alpha: float, gamma: float = 1.0) -> Float64:
    return np.asarray(gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0))))


def _steep_elu(numbers: Numbers, _: Float64, __: Float64) -> Float64:
    alpha, gamma = numbers["alpha"], numbers.get("gamma", 1.0)
    if alpha < 0 or gamma < 0:
        raise Undecidable(NO_BOUND("an Elu with a negative factor has no bound"))
    return np.asarray(gamma * max(1.0, alpha))


_SOFT = {"alpha": 1.0}
CURVES: dict[str, BoundedCurve] = {
    "Sigmoid": BoundedCurve(_at_most(0.25), _rising(_logistic), {}),
    "Tanh": BoundedCurve(_at_most(1.0), _rising(np.tanh), {}),
    "Atan": BoundedCurve(_at_most(1.0), _rising(np.arctan), {}),
    "Erf": BoundedCurve(_at_most(1.1284), _rising(_erf), {}),
    "Softplus": BoundedCurve(_at_most(1.0), _rising(lambda x: np.logaddexp(x, 0.0)), {}),
    "Softsign": BoundedCurve(_at_most(1.0), _rising(lambda x: x / (1 + np.abs(x))), {}, 2),
    "Elu": BoundedCurve(_steep_elu, _rising(_elu), _SOFT),
    "Celu": BoundedCurve(
        _at_most(1.0), _rising(lambda x, alpha: _elu(x / alpha, 1.0, alpha)), _SOFT
    ),
    "Selu": BoundedCurve(
        _steep_elu, _rising(_elu), {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}
    ),
    "HardSwish": BoundedCurve(_at_most(1.5), _dipping(_GATED["HardSwish"], 0.376), {}, 4, 12.0),
    "Gelu": BoundedCurve(_at_most(1.1290), _dipping(_GATED["Gelu"], 0.1701), {}),
    "Gelu-tanh": BoundedCurve(_at_most(1.1291), _dipping(_GATED["Gelu-tanh"], 0.1701), {}),
    "Swish": BoundedCurve(_at_most(1.0999), _dipping(_GATED["Swish"], 0.2785), _SOFT),
    "Mish": BoundedCurve(_at_most(1.0885), _dipping(_GATED["Mish"], 0.3089), {}),
    "Exp": BoundedCurve(lambda _, __, high: np.exp(high), _rising(np.exp), {}),
    "Log": BoundedCurve(lambda _, low, __: 1 / low, _rising(np.log), {}),
    "Sqrt": BoundedCurve(lambda _, low, __: 0.5 / np.sqrt(low), _rising(np.sqrt), {}, 1),
    "Reciprocal": BoundedCurve(
        lambda _, low, high: 1 / np.minimum(np.abs(low), np.abs(high)) ** 2,
        lambda _, low, high: (1 / high, 1 / low),
        {},
        2,
    ),
}
"""Functions by name. The rule of Gelu takes its second form from an attribute."""

_FLAT = frozenset({"Sigmoid", "Tanh", "Erf"})
"""Functions that are constant at either end."""
_END_OF_SLOPE = 128.0
"""Magnitude of data from which they are constant in all float types."""

_POSITIVE = frozenset({"Log", "Sqrt"})
"""Functions of positive numbers only."""


def applied(
    tracer: QuantityTracer, name: str, x: Quantity, attributes: Numbers | None = None
) -> Quantity:
    """Return a function of data.

    The name is a key of :data:`CURVES`, LeakyRelu or HardSigmoid; attributes are those that are not
    the default. Raises Undecidable if the function has no finite slope on the range of the data.
    """
    if name in _PIECEWISE:
        return _PIECEWISE[name](tracer, x, attributes or {})
    curve = CURVES[name]
    numbers = {**curve.defaults, **(attributes or {})}
    if any(number <= 0 for number in numbers.values()):
        raise Undecidable(NO_BOUND(f"a {name} with a factor that is not positive has no bound"))
    bottom, top = x.low - x.error, x.high + x.error
    if name in _POSITIVE and not (bottom > 0).all():
        raise Undecidable(OUT_OF_RANGE(f"the argument of {name} may not be positive"))
    if name == "Reciprocal" and not ((bottom > 0) | (top < 0)).all():
        raise Undecidable(OUT_OF_RANGE("the argument of Reciprocal may be 0"))
    with np.errstate(all="ignore"):
        low, high = curve.ends(numbers, x.low, x.high)
        steep = float(np.max(curve.slope(numbers, bottom, top))) * (1 + 2.0**-20)
    if not np.isfinite(steep):
        raise Undecidable(OUT_OF_RANGE(f"the range of the argument of {name} is not known"))
    sign = bool((bottom > 0).all()) if name == "Reciprocal" else None
    key = name, sign, tuple(sorted(numbers.items()))
    between = partial(curve.ends, numbers)
    atom = tracer.atoms.make("function", key, (x.meant,), (low, high), slope=steep, between=between)
    unit, tiny = tracer.arithmetic.unit, tracer.arithmetic.tiny
    moved = steep * x.error
    if curve.roundings is None:
        tracer.atoms.conditions.add(CURVES_WITHIN)
        relative = np.asarray(FUNCTION_ERROR + 2 * unit)
        absolute = FUNCTION_ERROR + moved * (1 + relative)
        if name == "Exp":  # an error of the argument is a factor of the result
            factor = np.exp(x.error) * (1 + SLACK)
            absolute, relative = np.asarray(FUNCTION_ERROR), relative * factor + factor - 1
    else:
        relative = np.zeros(())
        share, far = curve.roundings * unit, largest_of(low, high)
        near = np.minimum(largest_of(bottom, top) / 3, 1.0)
        extra = share * (1 + share) * far + curve.absolute * unit * near + curve.roundings * tiny
        absolute = moved + extra
    is_flat = name in _FLAT and x.overflow > _END_OF_SLOPE
    overflow = math.inf if is_flat else first_overflow(x)
    result = Quantity(Combination.of(atom), low, high, absolute, relative, overflow=overflow)
    if (result.reach >= tracer.arithmetic.largest).any():
        raise Undecidable(OUT_OF_RANGE(f"a result of {name} may exceed its range"))
    return result


def bent(tracer: QuantityTracer, x: Quantity, slope: Quantity) -> Quantity:
    """Return ``max(x, 0) + slope * min(x, 0)``, in which one product is rounded."""
    alpha = slope.meant.offset
    if (alpha == 1).all() and (slope.numbers == 1).all():
        return x
    if all(((number >= 0) & (number <= 1)).all() for number in (alpha, slope.numbers)):
        below = multiple_of(x, alpha, slope.numbers)
        return tracer.rounded(extreme(tracer.atoms, "Max", x, below))
    above, below = tracer.clipped(x, ZERO, _ENDLESS), tracer.clipped(x, -_ENDLESS, ZERO)
    negative = multiple_of(below, alpha, slope.numbers)
    steep = np.maximum(1.0, largest_of(alpha, slope.numbers))
    ends = np.where(x.low < 0, alpha * np.minimum(x.low, 0.0), 0.0)
    turned = np.where(x.high < 0, alpha * np.minimum(x.high, 0.0), 0.0)
    low = np.minimum(np.minimum(ends, turned), above.low + ZERO)
    high = np.maximum(np.maximum(ends, turned), above.high + ZERO)
    slack = SLACK * largest_of(low, high)
    error = steep * x.error + np.abs(slope.numbers - alpha) * x.largest
    meant = above.meant.plus(negative.meant)
    overflow = min(above.overflow, negative.overflow)
    result = Quantity(meant, low - slack, high + slack, error, overflow=overflow)
    return tracer.rounded(result)


def _hard_sigmoid(tracer: QuantityTracer, x: Quantity, numbers: Numbers) -> Quantity:
    alpha, beta = (
        np.float32(numbers.get(name, default)) for name, default in (("alpha", 0.2), ("beta", 0.5))
    )
    line = tracer.Add(tracer.Mul(x, alpha), beta)
    result = tracer.quantity(tracer.Min(tracer.Max(line, 0.0), 1.0))
    return replace(result, operation=None)  # the operations may be fused


_ENDLESS = np.full((), np.inf)
_PIECEWISE: dict[str, Callable[[QuantityTracer, Quantity, Numbers], Quantity]] = {
    "LeakyRelu": lambda tracer, x, numbers: bent(
        tracer, x, constant(np.float32(numbers.get("alpha", 0.01)))
    ),
    "HardSigmoid": _hard_sigmoid,
}


@bound_rule(*(name for name in CURVES if name not in ("Gelu", "Gelu-tanh")), *_PIECEWISE)
def function_of_one_value(call: NodeCall) -> Operand:
    """A function of data with its attributes."""
    parameters = {name: a.as_float() for name, a in call.node.attributes.items()}
    return applied(call.tracer, call.node.op_type, call.quantity(0), parameters)


@bound_rule("Gelu", OpKey(MICROSOFT, "Gelu"))
def gelu(call: NodeCall) -> Operand:
    """Gelu, by the error function or by tanh."""
    is_tanh = call.node.attributes.get_string("approximate", "none") == "tanh"
    return applied(call.tracer, "Gelu-tanh" if is_tanh else "Gelu", call.quantity(0))


@bound_rule(OpKey(MICROSOFT, "BiasGelu"), OpKey(MICROSOFT, "FastGelu"))
def biased_gelu(call: NodeCall) -> Operand:
    """Gelu of a sum with a bias."""
    x = call.operand(0)
    if call.value(1) is not None:
        x = call.tracer.Add(x, call.operand(1))
    name = "Gelu-tanh" if call.node.op_type == "FastGelu" else "Gelu"
    return applied(call.tracer, name, call.tracer.quantity(x))


@bound_rule(OpKey(MICROSOFT, "QuickGelu"))
def quick_gelu(call: NodeCall) -> Operand:
    """``x * sigmoid(alpha * x)``."""
    alpha = call.number("alpha", 1.702)
    return applied(call.tracer, "Swish", call.quantity(0), {"alpha": alpha})


@bound_rule("PRelu")
def prelu(call: NodeCall) -> Operand:
    """LeakyRelu with a constant factor for each channel."""
    slope = call.constant(1)
    if slope is None:
        raise call.refusal("the factor is missing")
    return bent(call.tracer, call.quantity(0), slope)


@bound_rule("Pow")
def power(call: NodeCall) -> Operand:
    """Squares; other powers of data have no bound."""
    exponent = call.constant(1)
    x = call.quantity(0)
    if exponent is None or not (exponent.numbers == 2).all() or exponent.numbers.size != 1:
        raise call.refusal("an exponent that is not 2")
    return call.tracer.Mul(x, x)
