"""Exceptions that qgraph raises, and how a message names a node.

QGraphError
 ├ ModelError           the file or graph is not usable
 ├ UnsupportedError     no kernel, no reader, no runtime for it
 ├ OperatorError        a node violates its own definition
 ├ OptionError          a bad pass specification or option
 ├ ConversionError      no spelling in the target dialect
 │   └ ExactnessError   a spelling exists, but below the level asked for
 ├ ExecutionError       a kernel failed; names node, shapes and dtypes
 └ EquivalenceError     two models differ; carries the report
     └ UndecidedError   whether they differ could not be decided

Every message has four parts: where, what is there, what was expected, what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx_ir as ir


class QGraphError(Exception):
    """Base of all errors that a user can cause and mend."""


class ModelError(QGraphError):
    """The model file or graph is not usable."""


class UnsupportedError(QGraphError):
    """Something in the model has no kernel, reader or runtime here."""


class OperatorError(QGraphError):
    """A node violates the definition of its operator."""


class OptionError(QGraphError):
    """A pass specification, an option or a name given by the user is wrong."""


class ConversionError(QGraphError):
    """The target dialect has no spelling for a quantizer."""


class ExactnessError(ConversionError):
    """A spelling exists, but it lies below the exactness that was asked for."""


class ExecutionError(QGraphError):
    """A node could not be executed."""


class EquivalenceError(QGraphError):
    """Two models are not equivalent.

    Attributes:
        report: the comparison that found the difference.
    """

    def __init__(self, message: str, report: object = None) -> None:
        super().__init__(message)
        self.report = report


class UndecidedError(EquivalenceError):
    """Whether two models are equivalent could not be decided."""


def where(node: ir.Node) -> str:
    """Name a node for a message: ``Quant 'conv1_wq' in graph 'main'``.

    Unnamed nodes are named after their first output.
    """
    label = repr(node.name) if node.name else f"producing {node.outputs[0].name!r}"
    owner = node.graph
    place = f" in graph {owner.name!r}" if owner is not None and owner.name else ""
    return f"{node.op_type} {label}{place}"


def forms(values: Iterable[object]) -> str:
    """Describe what a node was given, for a message: ``float32[2, 3], absent``."""
    return ", ".join(map(_form, values)) or "no inputs"


def _form(value: object) -> str:
    if value is None:
        return "absent"
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    return type(value).__name__ if dtype is None or shape is None else f"{dtype}{list(shape)}"
