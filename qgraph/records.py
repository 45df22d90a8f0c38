"""Dataclasses that cost little until they are used much; records grouped by keys.

``dataclasses.dataclass`` compiles up to six functions for each class. A short command loads some
120 classes, and this took a fifth of its time. Here, classes share all functions but ``__init__``,
which is compiled if a class has many objects. The fields of a class are described when it has the
first one; half of the classes of a command have none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from dataclasses import field, fields, is_dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from reprlib import recursive_repr
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["by_key", "dataclass", "field", "fields", "guarded", "is_dataclass", "replace"]

T = TypeVar("T", bound=type[Any])
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def by_key(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the values of each key in their order, the keys in the order of their first values."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass, dataclass as guarded
else:

    def dataclass(
        cls: T | None = None,
        /,
        *,
        eq: bool = True,
        frozen: bool = False,
        repr: bool = True,  # noqa: A002 - as in dataclasses
        guard: bool = False,
        **others: bool,
    ) -> T | Callable[[T], T]:
        """Return a class as a dataclass, or a decorator that does; for classes inside qgraph.

        There is one difference to ``dataclasses.dataclass``: only type checkers enforce ``frozen``.
        So fields are assigned directly, and an object is made three times as fast. With ``guard``,
        there is no difference.
        """

        def decorated(cls: T) -> T:
            # dataclasses derives only frozen classes from frozen ones.
            derives = guard and any(map(is_dataclass, cls.__mro__[1:]))
            others["frozen"] = frozen and derives
            made = cls
            if derives or "slots" in others:  # may fail, or return another class
                made = _describe(cls, others)
                made.__dataclass_params__.frozen = guard and frozen
            else:
                for name in _DESCRIPTION:
                    setattr(cls, name, _Described(cls, name, guard and frozen, others))
            if guard and frozen:
                made.__setattr__, made.__delattr__ = _not_assigned, _not_deleted
            own = vars(made)
            if "__init__" not in own:
                made.__init__ = _Init(made, guard and frozen)
            if repr and "__repr__" not in own:
                made.__repr__ = _shown
            if eq:
                if "__eq__" not in own:
                    made.__eq__ = _is_equal
                if own.get("__hash__") is None:
                    made.__hash__ = _hashed if frozen else None
            return made

        return decorated if cls is None else decorated(cls)

    guarded = partial(dataclass, guard=True)
    """For classes that ``qgraph`` exports."""


class _Absent:
    def __repr__(self) -> str:
        return "<factory>"


_ABSENT = _Absent()
"""Default of a parameter that has none, or whose value a factory makes."""


_DESCRIPTION = ("__dataclass_fields__", "__dataclass_params__", "__match_args__", "_compared")
"""Attributes of a dataclass that follow from its fields."""

_LOCK = RLock()
"""Held while a class is described: this changes its attributes."""


class _Described:
    """One of the attributes :data:`_DESCRIPTION`; all are set when one is first read."""

    def __init__(
        self, cls: type[Any], name: str, is_frozen: bool, options: dict[str, bool]
    ) -> None:
        self._cls, self._name = cls, name
        self._is_frozen, self._options = is_frozen, options

    def __get__(self, record: object, owner: type[Any] | None = None) -> Any:
        cls = self._cls
        with _LOCK:
            if vars(cls)[self._name] is self:
                _describe(cls, self._options)
                vars(cls)["__dataclass_params__"].frozen = self._is_frozen
                named = (each.name for each in fields(cls) if each.kw_only is not True)
                type.__setattr__(cls, "__match_args__", tuple(named))
        return vars(cls)[self._name]


def _describe(cls: type[Any], options: dict[str, bool]) -> Any:
    """Return a class as a dataclass without functions; mostly this is the class itself."""
    cls.__doc__ = cls.__doc__ or cls.__name__  # or dataclasses imports inspect to make one
    made: Any = dataclasses.dataclass(init=False, eq=False, repr=False, **options)(cls)
    compared = (each.name for each in fields(made) if each.compare)
    made._compared = attrgetter("__class__", *compared)
    return made


_FEW = 30
"""Making so many objects takes as long as compiling the function ``__init__`` of their class."""


class _Init:
    """The function ``__init__`` of a class, compiled when it is inspected or used often."""

    def __init__(self, cls: type[Any], is_frozen: bool) -> None:
        self._cls, self._is_frozen = cls, is_frozen
        self._uses = 0

    @cached_property
    def _places(self) -> tuple[str, ...]:
        """Names of the fields that arguments without names are for."""
        return tuple(each.name for each in fields(self._cls) if each.kw_only is not True)

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        """Defaults of all fields; _ABSENT for those that have none, or a factory."""
        defaults = {each.name: each.default for each in fields(self._cls)}
        return {n: _ABSENT if d is dataclasses.MISSING else d for n, d in defaults.items()}

    def __get__(self, record: object, owner: type[Any] | None = None) -> Any:
        self._uses += 1
        if record is None or self._uses > _FEW:
            init = self._compiled()
            return init if record is None else init.__get__(record)
        return partial(self._assign, record)

    def _assign(self, record: Any, /, *args: Any, **named: Any) -> None:
        """Do what the compiled function does."""
        places, defaults = self._places, self._defaults
        values = defaults | dict(zip(places, args, strict=False)) | named
        is_right = len(values) == len(defaults) and len(args) <= len(places)
        if not is_right or not named.keys().isdisjoint(places[: len(args)]):
            self._compiled()(record, *args, **named)  # raises an error
        assign = object.__setattr__
        for name, value in values.items():
            if value is _ABSENT:
                make = self._cls.__dataclass_fields__[name].default_factory
                if make is dataclasses.MISSING:
                    self._compiled()(record, *args, **named)
                value = make()
            assign(record, name, value)
        if hasattr(record, "__post_init__"):
            record.__post_init__()

    def _compiled(self) -> Any:
        cls = self._cls
        scope: dict[str, Any] = {"_ABSENT": _ABSENT}
        parameters, named = ["self"], list[str]()
        lines, assign = ["pass"], "self.{}={}"
        if self._is_frozen:
            scope["_assign"], assign = object.__setattr__, "_assign(self,'{}',{})"
        for each in fields(cls):
            name, value, default = each.name, each.name, ""
            if each.default_factory is not dataclasses.MISSING:
                scope[f"_default_{name}"], default = each.default_factory, "=_ABSENT"
                value = f"_default_{name}() if {name} is _ABSENT else {name}"
            elif each.default is not dataclasses.MISSING:
                scope[f"_default_{name}"], default = each.default, f"=_default_{name}"
            (named if each.kw_only is True else parameters).append(name + default)
            lines.append(assign.format(name, value))
        if hasattr(cls, "__post_init__"):
            lines.append("self.__post_init__()")
        parameters += ["*", *named] if named else []
        exec(f"def __init__({','.join(parameters)}):\n " + "\n ".join(lines), scope)
        init = scope["__init__"]
        init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
        init.__annotations__ = {each.name: each.type for each in fields(cls)} | {"return": None}
        cls.__init__ = init
        return init


@recursive_repr()
def _shown(record: Any) -> str:
    names = [each.name for each in fields(record) if each.repr]
    values = ", ".join(f"{name}={getattr(record, name)!r}" for name in names)
    return f"{type(record).__qualname__}({values})"


def _is_equal(record: Any, other: Any) -> bool:
    same_class = other.__class__ is record.__class__
    return record._compared(record) == record._compared(other) if same_class else NotImplemented


def _hashed(record: Any) -> int:
    return hash(record._compared(record))


def _not_assigned(record: Any, name: str, value: object) -> None:
    if _is_frozen(record, name):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(record, name, value)


def _not_deleted(record: Any, name: str) -> None:
    if _is_frozen(record, name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(record, name)


def _is_frozen(record: Any, name: str) -> bool:
    """Return whether an attribute may not change; a derived class may add others."""
    return "__dataclass_fields__" in vars(type(record)) or name in record.__dataclass_fields__
