"""Base class of passes: a frozen dataclass whose fields are its options, given as values or text.

A specification such as ``convert{to=qdq,exact=bits}`` gives the options of one pass as text.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import numbers
import re
import types
import typing
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform, final

import onnx_ir as ir

from qgraph.errors import OptionError, closest, matching, meant, shown
from qgraph.exactness import Exactness, ProofVerdict
from qgraph.graph.constants import constant_tensor
from qgraph.graph.opset.rewrites import refused_pairs
from qgraph.model import Model
from qgraph.records import dataclass, guarded
from qgraph.registry import Registry
from qgraph.reports import Report
from qgraph.text import fields_json

if TYPE_CHECKING:
    from qgraph.targets.rules import LoadRule

_BOOLEANS = {"true": True, "false": False}
_NONE = "none"
_RUNTIME, _QUANTIZES_DATA = "onnxruntime-cpu", "quantizes-data"
ABOUT_RUNTIME = f"{_RUNTIME}: "
"""Beginning of notes about silent changes by ONNX Runtime."""

_SPEC = r"\s*([^{}\s]+)\s*(?:\{([^{}]*)\}\s*)?"

_KINDS: dict[type, Any] = {bool: object, int: numbers.Integral, float: numbers.Real}
"""Types of values by the type of an option; text otherwise."""

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True)
class Option:
    """One option of a pass.

    Attributes:
        type: bool, int, float, str or an enumeration.
        optional: whether None is allowed.
        registry: the registry whose entries a str names; None for free text.
        value: the default; MISSING if the option is required.
    """

    name: str
    type: type
    optional: bool
    registry: Registry[Any] | None
    value: object
    help: str

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.value is dataclasses.MISSING

    @property
    def kind(self) -> str:
        """The allowed values of the option, in words."""
        names = self.registry.names() if self.registry else None
        if names is None and issubclass(self.type, StrEnum):
            names = list(self.type)
        words = _WORDS[self.type] if names is None else f"one of {', '.join(names)}"
        return f"{words}, or none" if self.optional else words

    @property
    def default(self) -> str | None:
        """The default as written in a specification; None if the option is required."""
        if self.is_required:
            return None
        if self.value is None:
            return _NONE
        return str(self.value).lower() if self.type is bool else str(self.value)

    def read(self, value: object) -> Any:
        """Convert a Python value to the type of the option; words match in any case.

        Raises:
            OptionError: the option does not allow this value.
        """
        if value is None and self.optional:
            return None
        if self.registry is not None:
            return self.registry.name_of(value)
        own: object = matching(self.type, value) if issubclass(self.type, StrEnum) else value
        is_bool = type(own).__name__ in ("bool", "bool_")
        if is_bool is not (self.type is bool) or not isinstance(own, _KINDS.get(self.type, str)):
            raise self._refuse(value)
        return self.type(own)

    def parse(self, text: str) -> Any:
        """Parse the text of a value in a specification.

        Raises:
            OptionError: the option does not allow this value.
        """
        if self.optional and text.lower() == _NONE:
            return None
        value: object = text
        if self.type is bool:
            value = _BOOLEANS.get(text.lower(), text)
        elif self.type in (int, float):
            with suppress(ValueError):
                value = self.type(text)
        elif self.type is str and self.registry is None and not text:
            raise self._refuse(text)
        return self.read(value)

    def _refuse(self, value: object) -> OptionError:
        members = list(self.type) if issubclass(self.type, StrEnum) else []
        return OptionError(
            f"option {self.name!r} is {shown(value)}, expected {self.kind}.{meant(value, members)}"
        )


@functools.cache
def options_of(cls: type) -> tuple[Option, ...]:
    """Return the options of a pass class, in the order of its fields."""
    hints = typing.get_type_hints(cls)
    options = []
    for field in dataclasses.fields(cls):
        members = typing.get_args(hints[field.name]) or (hints[field.name],)
        (member,) = (each for each in members if each is not types.NoneType)
        metadata = field.metadata
        options.append(
            Option(
                field.name,
                member,
                types.NoneType in members,
                metadata.get("registry"),
                field.default,
                metadata.get("help", ""),
            )
        )
    return tuple(options)


@dataclass
class TransformResult(ir.passes.PassResult):
    """Result of a pass: onnx_ir's result and the report."""

    report: Report = dataclasses.field(default_factory=Report)


class Transform(ir.passes.InPlacePass):
    """A pass that reports what it did to each site.

    Subclasses are frozen dataclasses registered by :func:`transform`; they implement ``apply``.

    Attributes:
        name: the name under which it is registered, such as ``fold-weights``.
        preserves: the level of equality that the pass guarantees for all changes; None by default.
        bounded: whether its results are not equal, but have a computable bound.
    """

    name: ClassVar[str] = ""
    preserves: ClassVar[Exactness] = Exactness.DIFFERENT
    bounded: ClassVar[bool] = False

    @final
    def __post_init__(self) -> None:
        """Convert each option to its type, so that strings are accepted for enumeration members."""
        for each in options_of(type(self)):
            try:
                value = each.read(getattr(self, each.name))
            except OptionError as error:
                raise OptionError(f"Pass {self.name!r}: {error}") from error
            object.__setattr__(self, each.name, value)
            if value is Exactness.DIFFERENT:
                levels = ", ".join(level for level in Exactness if level is not value)
                raise OptionError(
                    f"{each.name}={value} would accept any change; expected one of {levels}."
                )
        self.check_options()

    def check_options(self) -> None:
        """Raise an OptionError if options contradict each other; their types are checked."""

    @abstractmethod
    def apply(self, model: Model, report: Report) -> None:
        """Rewrite ``model`` in place and enter every site into ``report``."""

    @final
    def call(self, model: ir.Model) -> TransformResult:
        """Run the pass on an onnx_ir model, as the pass managers of onnx_ir do."""
        report, whole = Report(), Model(model)
        decoders = list(whole.nodes("DequantizeLinear"))
        refused = set(refused_pairs(model, decoders))
        products = _coded_products(whole, decoders)
        self.apply(whole, report)
        if report.modified:
            decoders = list(whole.nodes("DequantizeLinear"))
            signed = [n for n in refused_pairs(model, decoders) if n not in refused]
            if signed:
                from qgraph.transforms.integers.shifted_chains import keep_unsigned

                keep_unsigned(whole, signed, report)
                decoders = list(whole.nodes("DequantizeLinear"))
            if (more := _coded_products(whole, decoders) - products) > 0:
                weights = "1 weight" if more == 1 else f"{more} weights"
                report.notes.append(f"{ABOUT_RUNTIME}{_rule().reason} ({weights})")
        return TransformResult(model, report.modified, report.under(self.name))


def _coded_products(model: Model, decoders: Iterable[ir.Node]) -> int:
    """Return the number of weights for whose products ONNX Runtime may quantize the data."""
    nodes = [node for node in decoders if constant_tensor(node.inputs[0]) is not None]
    if not nodes or next(model.nodes("MatMul"), None) is None:
        return 0
    from qgraph.targets.rules import weight_form

    forms = map(weight_form, nodes)
    return sum(form is not None and _rule().fits(form) for form in forms)


def _rule() -> LoadRule:
    """Return what is known about such weights; it is loaded only for models that have some."""
    from qgraph.targets.reader import load_rule

    return load_rule(_RUNTIME, _QUANTIZES_DATA)


logger = logging.getLogger(__name__)

TRANSFORMS: Registry[type[Transform]] = Registry("pass", "qgraph.transforms", "passes")

C = TypeVar("C", bound=type[Transform])


@dataclass_transform(frozen_default=True, kw_only_default=True)
def transform(
    name: str, *, preserves: Exactness | None = None, bounded: bool = False
) -> Callable[[C], C]:
    """Return a decorator that makes a class a frozen dataclass and registers it as a pass.

    What the pass guarantees may be stated here, or by attributes of the class.
    """

    def register(cls: C) -> C:
        guarded(frozen=True, kw_only=True)(cls)
        cls.name, cls.bounded = name, bounded or cls.bounded
        cls.preserves = preserves or cls.preserves
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

    A text names an entry of the registry; without one, it is free.
    """
    return dataclasses.field(default=default, metadata={"help": help, "registry": registry})


def exact_option(
    help: str = "minimum level of equality to accept",  # noqa: A002 - as in click
) -> Any:
    """Return the option ``exact`` of passes that compare their drafts; default: values."""
    return option(Exactness.VALUES, help=help)


def opset_option() -> Any:
    """Return the option ``opset``, the highest one that a pass may raise a model to."""
    return option(None, help="highest opset to use; default: 21, or the model's if it is higher")


def selects(patterns: str, name: str) -> bool:
    """Return whether patterns select a name: one of them matches, and none that begins with ``!``.

    They have ``*`` and ``?``, and are joined by ``|``. If all begin with ``!``, they select every
    other name.
    """
    if patterns == "*":
        return True
    listed = re.split(r"\s*\|(?!\])\s*", patterns.strip())
    wanted = [pattern for pattern in listed if not pattern.startswith("!")] or ["*"]
    unwanted = [pattern[1:] for pattern in listed if pattern.startswith("!")]
    fits = functools.partial(fnmatchcase, name)
    return any(map(fits, wanted)) and not any(map(fits, unwanted))


def escaped(name: str) -> str:
    """Return a pattern that matches exactly one name."""
    return re.sub(r"([*?\[|])", r"[\1]", name)


@dataclass(frozen=True)
class PassInfo:
    """Name, description and options of a pass, for the help.

    Attributes:
        summary: what it does, in a sentence.
        preserves: minimum level of equality that it accepts by default; "bounded" if its changes
            have a bound.
        options: its options, in the order of the fields.
    """

    name: str
    summary: str
    preserves: Exactness | ProofVerdict
    options: tuple[Option, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the description as JSON, for its view."""
        options = [fields_json(each, "name", "kind", "default", "help") for each in self.options]
        return fields_json(self, "name", "summary", "preserves") | {"options": options}


def parse_spec(text: str) -> Transform:
    """Return the pass that ``text`` specifies: ``name`` or ``name{option=value,option=value}``.

    Values are ``true`` and ``false``, numbers, and the members of a choice, all in any case, and
    ``none`` if the option allows None. They contain no braces and no commas.

    Raises:
        OptionError: the text has another form, the pass or an option is unknown, a required
            option is missing, or a value does not fit.
    """
    form = re.fullmatch(_SPEC, text)
    if form is None:
        raise OptionError(
            f"Pass specification {text!r} is not of the form NAME or NAME{{option=value,...}}; "
            "expected one pair of braces at the end. Write for example 'convert{to=qdq}', in "
            "quotes where a shell reads it."
        )
    cls = TRANSFORMS.find(form[1])
    options = {each.name: each for each in options_of(cls)}
    values: dict[str, Any] = {}
    stated = (form[2] or "").strip()
    for item in stated.split(",") if stated else ():
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise OptionError(
                f"Pass specification {text!r}: {item.strip()!r} is not of the form option=value. "
                f"{_known(cls, options)}"
            )
        if name not in options:
            raise OptionError(
                f"Pass {cls.name!r} has no option {name!r}; {_nearest(name, options)}"
            )
        if name in values:
            raise OptionError(f"Pass {cls.name!r}: option {name!r} is given twice, expected once.")
        try:
            values[name] = options[name].parse(value)
        except OptionError as error:
            raise OptionError(f"Pass {cls.name!r}: {error}") from error
    missing = [each for each in options.values() if each.is_required and each.name not in values]
    if missing:
        name = missing[0].name
        raise OptionError(
            f"Pass {cls.name!r} needs the option {name!r} ({missing[0].help}), which is not given. "
            f"Write '{cls.name}{{{name}=...}}'."
        )
    try:
        return cls(**values)
    except OptionError as error:
        raise OptionError(f"Pass {cls.name!r}: {error}") from error


def describe(cls: type[Transform]) -> PassInfo:
    """Return name, description and options of a pass."""
    summary = (cls.__doc__ or "").strip().splitlines()[0].replace("``", "")
    kept = ProofVerdict.BOUNDED if cls.bounded else cls.preserves
    return PassInfo(cls.name, summary, kept, options_of(cls))


def _known(cls: type[Transform], names: Collection[str]) -> str:
    return f"The options of {cls.name!r} are {', '.join(names)}." if names else "It has no options."


def _nearest(name: str, names: Collection[str]) -> str:
    if near := closest(name, names):
        return f"did you mean {near!r}?"
    return f"it has {', '.join(names)}." if names else "it has none at all."
