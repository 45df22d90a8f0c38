"""What every pass is: a frozen dataclass whose fields are its options."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, dataclass_transform, final

import onnx_ir as ir

from qgraph.exactness import Exactness
from qgraph.model import Model
from qgraph.registry import Registry
from qgraph.report import Report


@dataclasses.dataclass
class TransformResult(ir.passes.PassResult):
    """What a pass returns: onnx_ir's result and the report of what it did."""

    report: Report = dataclasses.field(default_factory=Report)


class Transform(ir.passes.InPlacePass):
    """A pass that says what it did to each site.

    Subclasses are frozen dataclasses registered by :func:`transform`; they implement ``apply``.

    Attributes:
        name: the name under which it is registered, such as ``fold-weights``.
        preserves: the rung of equality that the pass promises for whatever it changes.
    """

    name: ClassVar[str] = ""
    preserves: ClassVar[Exactness] = Exactness.VALUES

    @abstractmethod
    def apply(self, model: Model, report: Report) -> None:
        """Rewrite ``model`` in place and enter every site into ``report``."""

    @final
    def call(self, model: ir.Model) -> TransformResult:
        """Run the pass on an onnx_ir model, as its pass managers do."""
        report = Report()
        self.apply(Model(model), report)
        return TransformResult(model, report.modified, report.under(self.name))


TRANSFORMS: Registry[type[Transform]] = Registry("pass", "qgraph.transforms")

C = TypeVar("C", bound=type[Transform])


@dataclass_transform(frozen_default=True, kw_only_default=True)
def transform(name: str) -> Callable[[C], C]:
    """Return a decorator that makes a class a frozen dataclass and registers it as a pass."""

    def register(cls: C) -> C:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        cls.name = name
        TRANSFORMS.add(name)(cls)
        return cls

    return register


def option(default: Any = dataclasses.MISSING, *, help: str) -> Any:  # noqa: A002 - as in click
    """Return a dataclass field with a help text; required if there is no default."""
    return dataclasses.field(default=default, metadata={"help": help})
