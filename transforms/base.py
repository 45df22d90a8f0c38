"""What every pass is: a frozen dataclass whose fields are its options."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, dataclass_transform, final

import onnx_ir as ir

from qgraph.errors import OptionError
from qgraph.exactness import Exactness
from qgraph.model import Model
from qgraph.registry import Registry
from qgraph.report import Report
from qgraph.transforms.fields import options_of


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

    @final
    def __post_init__(self) -> None:
        """Bring each option into its type, so that strings and members mean the same."""
        for each in options_of(type(self)):
            try:
                value = each.read(getattr(self, each.name))
            except OptionError as error:
                raise OptionError(f"Pass {self.name!r}, {error}") from error
            object.__setattr__(self, each.name, value)
        self.check_options()

    def check_options(self) -> None:
        """Raise an OptionError if the options do not go together; every one has its type."""

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


def option(
    default: Any = dataclasses.MISSING,
    *,
    help: str,  # noqa: A002 - as in click
    registry: Registry[Any] | None = None,
) -> Any:
    """Return a dataclass field with a help text; required if there is no default.

    Args:
        default: value where none is given.
        help: what the option does.
        registry: what the text of the option names an entry of.
    """
    return dataclasses.field(default=default, metadata={"help": help, "registry": registry})
