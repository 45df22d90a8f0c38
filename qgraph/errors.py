"""Exceptions of qgraph, parts of their messages, and options whose values are words.

QGraphError
 ├ ModelError           the file or graph is not usable
 ├ UnsupportedError     no kernel, no reader, no runtime for it
 ├ OperatorError        a node violates its own definition
 ├ OptionError          a bad pass specification or option
 ├ ConversionError      no form in the target dialect
 │   └ ExactnessError   a form exists, but below the requested level
 ├ ExecutionError       a kernel failed; names node, shapes and dtypes
 └ EquivalenceError     two models differ; carries the report
     └ UndecidedError   whether they differ could not be decided

Every message has four parts: location, actual value, expected value, what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from types import UnionType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir


class QGraphError(Exception):
    """Base of all errors that a user can cause and correct."""


class ModelError(QGraphError):
    """The model file or graph is not usable."""


class UnsupportedError(QGraphError):
    """Something in the model has no kernel, reader or runtime in this installation."""


class OperatorError(QGraphError):
    """A node violates the definition of its operator."""


class OptionError(QGraphError):
    """A pass specification, an option or a name given by the user is wrong."""


class ConversionError(QGraphError):
    """The target dialect has no form for a quantizer."""


class ExactnessError(ConversionError):
    """A form exists, but it is below the requested level of equality."""


class ExecutionError(QGraphError):
    """A node could not be executed."""


class EquivalenceError(QGraphError):
    """Two models are not equivalent; ``report`` is the comparison that found the difference."""

    def __init__(self, message: str, report: object = None) -> None:
        super().__init__(message)
        self.report = report


class UndecidedError(EquivalenceError):
    """Whether two models are equivalent could not be decided."""


def where(node: ir.Node) -> str:
    """Name a node for a message: ``Quant 'conv1_wq' in graph 'main'``.

    Unnamed nodes are named after their first output.
    """
    outputs = [value.name for value in node.outputs[:1]]
    label = repr(node.name or "") if node.name or not outputs else f"producing {outputs[0]!r}"
    owner = node.graph
    graph = f" in graph {owner.name!r}" if owner is not None and owner.name else ""
    return f"{node.op_type} {label}{graph}"


def plain_message(error: Exception) -> str:
    """Return the message of an error; for an OSError, without number and file."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def runtime_message(error: Exception, folder: Path) -> str:
    """Return the message of a runtime's error, without places in its source, or in a folder."""
    lines = [line.strip() for line in str(error).splitlines()]
    skipped = ("Exception from", "Check '", "Summary:")
    causes = [line.removeprefix("-- ") for line in lines if line and not line.startswith(skipped)]
    text = " ".join((causes or lines or [type(error).__name__])[:3])
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"/\S+\.(cc|h):\d+ [^()]*::\w+\(([^()]|\([^()]*\))*\)( const)? ", "", text)
    return text.replace(f"{folder}/", "")[:_LONGEST]


_LONGEST = 300
"""Maximum length of an error message of a runtime, in characters."""


def unexpected(error: BaseException) -> str:
    """Describe an internal error: the node that was processed, if any, and the exception.

    The node is a local variable of the innermost failed function, or of its callers.
    """
    node: ir.Node | None = None
    trace = error.__traceback__
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            if type(value).__name__ == "Node" and hasattr(value, "op_type"):
                node = value
        trace = trace.tb_next
    first_line = (str(error).splitlines() or [""])[0]
    reason = f"{type(error).__name__}: {first_line}"
    return reason if node is None else f"{where(node)}: {reason}"


def forms(values: Iterable[object]) -> str:
    """Describe the inputs of a node for a message: ``float32[2, 3], absent``."""
    return ", ".join(map(_form, values)) or "no inputs"


def _form(value: object) -> str:
    if value is None:
        return "absent"
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    return type(value).__name__ if dtype is None or shape is None else f"{dtype}{list(shape)}"


class Choice(StrEnum):
    """Base of enumerations for options: ``Exactness("BITS")`` is ``Exactness.BITS``."""

    @classmethod
    def _missing_(cls, value: object) -> Choice | None:
        match = matching(cls, value)
        return None if match is None else cls(match)


C = TypeVar("C", bound=StrEnum)

_LONG = 60
"""Maximum number of characters of a value in a message."""


def member(enumeration: type[C], value: object, option: str) -> C:
    """Return the member of an enumeration that an option's value, in any case, names.

    Raises:
        OptionError: the value is no member; the message lists the members.
    """
    return enumeration(word(enumeration, value, option))


def word(known: Iterable[str], value: object, option: str) -> str:
    """Return the ``known`` word that equals an option's value, ignoring case.

    Raises:
        OptionError: the value is none of them; the message lists them.
    """
    words = [str(each) for each in known]
    match = matching(words, value)
    if match is None:
        raise OptionError(
            f"{option} is {shown(value)}, expected one of {', '.join(words)}.{meant(value, words)}"
        )
    return match


def matching(known: Iterable[str], value: object) -> str | None:
    """Return the known word that equals ``value``, ignoring case; None if there is none."""
    text = value.casefold() if isinstance(value, str) else None
    return next((each for each in known if each.casefold() == text), None)


def meant(value: object, known: Iterable[str]) -> str:
    """Return `` Did you mean ...?`` with the closest word; empty if no word is close."""
    near = closest(value, known)
    return f" Did you mean {str(near)!r}?" if near else ""


def closest(value: object, known: Iterable[str]) -> str | None:
    """Return the known word that is most similar to ``value``; None if none is."""
    from difflib import get_close_matches

    words = {each.casefold(): each for each in known}
    text = value.casefold() if isinstance(value, str) else ""
    near = get_close_matches(text, words, n=1)
    return words[near[0]] if near else None


def require(
    value: object, kinds: type | UnionType | tuple[type, ...], option: str, wanted: str
) -> None:
    """Raise an OptionError unless the value of an option has one of the given types.

    The message names the option, what is ``wanted``, and what to do.
    """
    if not isinstance(value, kinds):
        raise OptionError(f"{option} is {_brief(value)}, expected {wanted}.")


def _brief(value: object) -> str:
    text = repr(value)
    return shown(value) if len(text) < _LONG else f"of type {type(value).__name__}"


def shown(value: object) -> str:
    """Return a value as a message shows it: a string in quotes, anything else with its type."""
    return repr(str(value)) if isinstance(value, str) else f"{value!r} ({type(value).__name__})"
