"""Expressions of one float32 variable over the primitives. Equal expressions are one object."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.numerics import Array, Float32, Mask
from qgraph.numerics.formats import FORMATS
from qgraph.numerics.primitives import NUMPY
from qgraph.reasons import DO_NOT_FIT, LEFT_OPEN, NO_RULE, TYPE_NOT_PROVED, Undecidable
from qgraph.records import dataclass

T = TypeVar("T")

INPUT = "input"
CONSTANT = "constant"
TABLE = "table"
FLOAT = "FLOAT"
BOOL = "BOOL"

_COMPARISONS = frozenset({"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "IsNaN"})
_LOGIC = frozenset({"Not", "And", "Or"})
_TYPED = frozenset({"Cast", "Gather", "Where", *_LOGIC})
_SELECTIONS = frozenset({"Min", "Max", "Relu", "Where", "Gather"})
_ARITY = {
    **dict.fromkeys(["Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Gather"], 2),
    **dict.fromkeys(["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"], 2),
    "Where": 3,
}
_INTEGER = re.compile(r"(U?)INT(\d+)")
_ALL_WHOLE = np.float32(2**23)
"""float32 represents all integers up to this one, and rounds no larger number below it."""


@dataclass(eq=False, slots=True)
class Expr:
    """One operation. A builder creates each only once, so expressions are compared by identity.

    Expressions must not be changed. The class is not frozen, because creating frozen objects takes
    several times as long.

    Attributes:
        op: ``"input"``, ``"constant"``, ``"table"`` or the name of a primitive.
        inputs: operands.
        attributes: sorted (name, value) pairs.
        value: for a constant, a float32 or bool array that broadcasts to the variable; for the
            table of a Gather, its one-dimensional array.
        dtype: ONNX type name; all types but BOOL are represented in float32.
        shape: the shape to which all constants in the expression broadcast, tables excepted.
    """

    op: str
    inputs: tuple[Expr, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()
    value: Array | None = None
    dtype: str = FLOAT
    shape: tuple[int, ...] = ()


Operand: TypeAlias = Expr | Array | float


class Builder:
    """Traces a definition into expressions: ``builder.Div(builder.input, 0.5)``.

    Operands are expressions, NumPy arrays and Python numbers. Equal operations on equal operands
    return the same object; operations on constants are evaluated immediately.

    Attributes:
        input: the variable.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Expr] = {}
        self._folded: dict[tuple[Any, ...], tuple[list[Expr], Expr]] = {}
        self.input = self._unique(Expr(INPUT))

    def uses(self, name: str) -> bool:
        """Return whether any expression is an operation of this name."""
        return any(op == name for op, *_ in self._known)

    def constant(self, array: npt.ArrayLike) -> Expr:
        """Return a constant; its type is float32 or bool.

        Raises Undecidable if the array has another floating-point type, or integers that float32
        does not represent.
        """
        values = np.asarray(array)
        if values.dtype == np.bool_ or values.dtype == np.float32:
            value = np.array(values)
        elif values.dtype.kind in "iu":
            value = whole_numbers(values)
        else:
            raise Undecidable(
                TYPE_NOT_PROVED(f"a constant is of type {values.dtype}; only float32 is proved")
            )
        value.flags.writeable = False
        dtype = BOOL if value.dtype == np.bool_ else FLOAT
        return self._unique(Expr(CONSTANT, value=value, dtype=dtype, shape=value.shape))

    def like(self, expression: Expr, inputs: tuple[Expr, ...]) -> Expr:
        """Return the operation of ``expression`` on operands of the same types and shapes."""
        e = expression
        return self._unique(Expr(e.op, inputs, e.attributes, e.value, e.dtype, e.shape))

    def __getattr__(self, name: str) -> Callable[..., Expr]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in NUMPY:
            raise Undecidable(NO_RULE(f"{name} is not a primitive"))

        def call(*operands: Operand, **attributes: Any) -> Expr:
            return self._call(name, [self._expression(o) for o in operands], attributes)

        return call

    def _expression(self, operand: Operand) -> Expr:
        if isinstance(operand, Expr):
            return operand
        if isinstance(operand, (bool, np.ndarray, np.generic)):
            return self.constant(operand)
        return self.constant(np.float32(operand))

    def _call(self, name: str, operands: list[Expr], attributes: dict[str, Any]) -> Expr:
        if name in ("Min", "Max") and len(operands) != 2:
            first, *others = operands
            for other in others:
                first = self._call(name, [first, other], attributes)
            return first
        if len(operands) != _ARITY.get(name, 2 if name in ("Min", "Max") else 1):
            raise Undecidable(NO_RULE(f"{name} with {len(operands)} operands"))
        pairs = _normalised(name, attributes)
        if name == "Gather":
            operands[0] = self._table(operands[0])
        dtype = _result_type(name, operands, dict(pairs))
        if name == "Identity" or (name == "Cast" and dtype == operands[0].dtype):
            return operands[0]
        if name == "Where" and (branch := _chosen(operands)) is not None:
            return branch
        if name == "Sub" and operands[0] is operands[1] and dtype == FLOAT:
            # 0, or NaN for infinities and NaN: intervals of a product show it, of a difference not.
            magnitude = self._call("Abs", operands[:1], {})
            return self._call("Mul", [magnitude, self.constant(np.float32(0))], {})
        shape = _result_shape(name, operands)
        for operand in operands:
            if operand.op not in (CONSTANT, TABLE):
                return self._unique(Expr(name, tuple(operands), pairs, dtype=dtype, shape=shape))
        key = (name, tuple(map(id, operands)), pairs)
        if key not in self._folded:
            # The operands are kept alive, so that no other expression gets the id of one of them.
            self._folded[key] = operands, self._fold(name, operands, dict(pairs), dtype)
        return self._folded[key][1]

    def _table(self, constant: Expr) -> Expr:
        """Return a constant as a table, which does not broadcast."""
        if constant.op != CONSTANT or constant.dtype != FLOAT or known(constant).ndim != 1:
            raise Undecidable(
                NO_RULE("Gather from a table that is not a constant list of float32 numbers")
            )
        return self._unique(Expr(TABLE, value=constant.value))

    def _fold(
        self, name: str, operands: list[Expr], attributes: dict[str, Any], dtype: str
    ) -> Expr:
        values = [known(operand) for operand in operands]
        if name in ("Cast", "Gather") and undefined(name, values, attributes).any():
            raise Undecidable(
                LEFT_OPEN(f"{name} of a constant is undefined: its operand is out of range")
            )
        with np.errstate(all="ignore"):
            value = np.asarray(NUMPY[name](*values, **attributes))
        return self._unique(Expr(CONSTANT, value=value.copy(), dtype=dtype, shape=value.shape))

    def _unique(self, e: Expr) -> Expr:
        value = e.value
        constant = None if value is None else (value.dtype.char, value.shape, value.tobytes())
        key = (e.op, tuple(map(id, e.inputs)), e.attributes, e.dtype, constant)
        return self._known.setdefault(key, e)


def whole_numbers(array: Array) -> Float32:
    """Return integers as float32; raise Undecidable if float32 does not represent them."""
    value = array.astype(np.float32)
    large = np.abs(value) > _ALL_WHOLE
    if value[large].tolist() != array[large].tolist():
        raise Undecidable(TYPE_NOT_PROVED(f"a constant of type {array.dtype} exceeds float32"))
    return value


def known(constant: Expr) -> Array:
    """Return the array of a constant expression."""
    if constant.value is None:
        raise ValueError(f"{constant.op} is not a constant")
    return constant.value


def undefined(name: str, values: list[Array], attributes: dict[str, Any]) -> Mask:
    """Return where ONNX does not define the result of a primitive, except for the sign of zero.

    These are casts of numbers outside the range of an integer type, casts of negative numbers to
    E8M0, casts of NaN to FP6, and indices outside a table.
    """
    first = values[0]
    to = attributes.get("to", "")
    if name == "Gather":
        table, index = values
        return ~((index >= 0) & (index < table.size))
    if (ends := integer_range(to)) is not None and first.dtype != np.bool_:
        return ~((np.trunc(first) >= np.float32(ends[0])) & (first < np.float32(ends[1])))
    if to == "FLOAT8E8M0":
        return np.asarray(first < 0)
    if to in ("FLOAT6E2M3", "FLOAT6E3M2"):
        return np.asarray(np.isnan(first))
    return np.zeros(np.shape(first), np.bool_)


def integer_range(name: str) -> tuple[float, float] | None:
    """Return the lowest number of an integer type, and the first one above; None for others."""
    if (integer := _INTEGER.fullmatch(name)) is None:
        return None
    signed, bits = not integer[1], int(integer[2])
    return -(2.0 ** (bits - 1)) if signed else 0.0, 2.0 ** (bits - signed)


def in_order(roots: Iterable[Expr], leaves: Iterable[Expr] = ()) -> list[Expr]:
    """Return all expressions that ``roots`` contain, operands first, and ``leaves`` before them.

    The operands of leaves are left out.
    """
    ordered: dict[int, Expr] = {id(leaf): leaf for leaf in leaves}
    for root in roots:
        stack = [root]
        while stack:
            expression = stack[-1]
            waiting = len(stack)
            if id(expression) not in ordered:
                stack += [o for o in reversed(expression.inputs) if id(o) not in ordered]
            if len(stack) == waiting:
                ordered[id(expression)] = expression
                stack.pop()
    return list(ordered.values())


def fold(
    roots: Iterable[Expr], leaf: Callable[[Expr], T], apply: Callable[[Expr, list[T]], T]
) -> list[T]:
    """Return the results of evaluating expressions with an interpreter.

    ``leaf`` returns the result of the variable, a constant or a table, ``apply`` that of an
    operation from the results of its operands.
    """
    wanted = list(roots)
    results: dict[int, T] = {}
    for e in in_order(wanted):
        operands = [results[id(operand)] for operand in e.inputs]
        results[id(e)] = apply(e, operands) if operands else leaf(e)
    return [results[id(root)] for root in wanted]


def evaluate(root: Expr, x: Float32) -> Array:
    """Return the values of ``root`` at ``x`` ``[*shape]``; constants broadcast to ``x``."""

    def apply(e: Expr, operands: list[Array]) -> Array:
        return np.asarray(NUMPY[e.op](*operands, **dict(e.attributes)))

    with np.errstate(all="ignore"):
        return fold([root], lambda e: x if e.op == INPUT else known(e), apply)[0]


def rebuilt(
    roots: Iterable[Expr], builder: Builder, constant: Callable[[Expr], npt.ArrayLike]
) -> list[Expr]:
    """Return the expressions in another builder, with each constant mapped by ``constant``."""

    def leaf(e: Expr) -> Expr:
        return builder.input if e.op == INPUT else builder.constant(constant(e))

    def apply(e: Expr, operands: list[Expr]) -> Expr:
        result: Expr = getattr(builder, e.op)(*operands, **dict(e.attributes))
        return result

    return fold(roots, leaf, apply)


def text(roots: Iterable[Expr]) -> str:
    """Return a text that is equal for equal lists of expressions only.

    It contains the type, the shape and all bits of constants.
    """
    wanted = list(roots)
    order = in_order(wanted)
    number = {id(e): i for i, e in enumerate(order)}
    lines = []
    for e in order:
        operands = ",".join(str(number[id(operand)]) for operand in e.inputs)
        constant = ""
        if e.value is not None:
            digest = hashlib.sha256(e.value.tobytes()).hexdigest()
            constant = f"{e.value.dtype.str}{list(e.value.shape)}{digest}"
        lines.append(f"{e.op}({operands}){list(e.attributes)}{constant}")
    lines.append(",".join(str(number[id(root)]) for root in wanted))
    return "\n".join(lines)


def _normalised(name: str, attributes: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    if name == "Gather" and attributes.get("axis", 0) == 0:
        return ()
    if name != "Cast":
        if attributes:
            raise Undecidable(NO_RULE(f"{name} with attributes {', '.join(sorted(attributes))}"))
        return ()
    to = attributes["to"]
    target = to if isinstance(to, str) else ir.DataType(to).name
    pairs: dict[str, Any] = {"to": target}
    if target not in (BOOL, FLOAT) and _INTEGER.fullmatch(target) is None:
        if target not in FORMATS:
            raise Undecidable(TYPE_NOT_PROVED(f"Cast to {target}; only float32 is proved"))
        pairs["saturate"] = int(attributes.get("saturate", 1))
        if target == "FLOAT8E8M0":
            pairs["round_mode"] = str(attributes.get("round_mode", "up"))
    return tuple(sorted(pairs.items()))


def _result_type(name: str, operands: list[Expr], attributes: dict[str, Any]) -> str:
    types = [operand.dtype for operand in operands]
    if types.count(FLOAT) == len(types) and name not in _TYPED:
        return BOOL if name in _COMPARISONS else FLOAT
    match name:
        case "Cast":
            return str(attributes["to"])
        case "Identity":
            return types[0]
        case "Gather":
            if _INTEGER.fullmatch(types[1]) is None:
                raise Undecidable(TYPE_NOT_PROVED(f"Gather with an index of type {types[1]}"))
            return FLOAT
        case "Where":
            if types[0] != BOOL:
                raise Undecidable(TYPE_NOT_PROVED(f"Where with a condition of type {types[0]}"))
            types = types[1:]
    if name in _LOGIC and set(types) == {BOOL}:
        return BOOL
    if (BOOL in types and (name != "Where" or set(types) != {BOOL})) or name in _LOGIC:
        raise Undecidable(TYPE_NOT_PROVED(f"{name} of operands of type {', '.join(types)}"))
    # codes are constants of any type, so a FLOAT constant adapts to the other operand
    narrow = {t for t, o in zip(types, operands[-len(types) :], strict=True) if o.op != CONSTANT}
    narrow = narrow or set(types)
    if name in _COMPARISONS:
        return BOOL
    if len(narrow) != 1:
        raise Undecidable(
            TYPE_NOT_PROVED(f"{name} of operands of types {', '.join(sorted(narrow))}")
        )
    if name not in _SELECTIONS and narrow != {FLOAT}:
        raise Undecidable(
            TYPE_NOT_PROVED(f"{name} in type {min(narrow)}; only float32 arithmetic is proved")
        )
    return narrow.pop()


def _result_shape(name: str, operands: list[Expr]) -> tuple[int, ...]:
    shapes = {operand.shape for operand in operands if operand.shape}
    if len(shapes) < 2:
        return shapes.pop() if shapes else ()
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        listed = ", ".join(str(list(operand.shape)) for operand in operands)
        raise Undecidable(
            DO_NOT_FIT(f"{name} of constants whose shapes do not fit: {listed}")
        ) from error


def _chosen(operands: list[Expr]) -> Expr | None:
    """Return the branch that a constant condition selects, if it has the shape of the result."""
    condition, yes, no = operands
    if condition.op != CONSTANT:
        return None
    always = known(condition)
    if not always.all() and always.any():
        return None
    branch, other = (yes, no) if always.all() else (no, yes)
    if branch.dtype != other.dtype and CONSTANT not in (branch.op, other.op):
        return None
    return branch if _result_shape("Where", operands) == branch.shape else None
