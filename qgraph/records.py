"""Dataclasses that cost little until they are used much; records grouped by keys.

``dataclasses.dataclass`` compiles up to six functions for each class. A short command loads some
120 classes, and this took a fifth of its time. Here, classes share all functions but ``__init__``,
which is compiled if a class has many objects. ``dataclasses`` describes the fields of a class when
a function such as ``fields`` or ``replace`` asks for them; making objects does not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import (
    MISSING,
    Field,
    FrozenInstanceError,
    dataclass as described,
    field,
    fields,
    is_dataclass,
    replace,
)
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
        there is no difference. Objects compare like tuples of their fields, also from Python 3.13
        on, where those of ``dataclasses`` differ from themselves if a field is NaN.
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
                cls._compared = _ComparedFields(cls)
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


_DESCRIPTION = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
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

    @property
    def is_simple(self) -> bool:
        """Whether the fields are what the annotations say."""
        kinds = self._cls.__annotations__.values()
        texts = "".join(kind if isinstance(kind, str) else "KW_ONLY" for kind in kinds)
        return not ("kw_only" in self._options or "KW_ONLY" in texts or "InitVar" in texts)

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
    made: Any = described(init=False, eq=False, repr=False, **options)(cls)
    made._compared = _ComparedFields(made)
    return made


class _ComparedFields:
    """Function that returns the class and the compared fields of an object; made at first use."""

    def __init__(self, cls: type[Any]) -> None:
        self._cls = cls

    def __get__(self, record: object, owner: type[Any] | None = None) -> Any:
        compared = (name for name, each in _fields(self._cls).items() if each.compare)
        type.__setattr__(self._cls, "_compared", attrgetter("__class__", *compared))
        return self._cls._compared


def _fields(cls: type[Any]) -> dict[str, Field[Any]]:
    """Return the fields of a class by name, without describing it if it is simple."""
    found: dict[str, Field[Any]] = {}
    with _LOCK:
        for base in reversed(cls.__mro__):
            own = vars(base)
            description = own.get("__dataclass_fields__")
            if isinstance(description, _Described) and description.is_simple:
                for name, kind in base.__annotations__.items():
                    if "ClassVar" not in kind:
                        given: Any = getattr(base, name, MISSING)
                        if name not in own and isinstance(given, Field):
                            given = given.default  # as of a class that is described
                        found[name] = given if isinstance(given, Field) else field(default=given)
            elif description is not None:
                found |= {each.name: each for each in fields(base)}
    return found


_FEW = 30
"""Making so many objects takes as long as compiling the function ``__init__`` of their class."""


class _Init:
    """The function ``__init__`` of a class, compiled when it is inspected or used often."""

    def __init__(self, cls: type[Any], is_frozen: bool) -> None:
        self._cls, self._is_frozen = cls, is_frozen
        self._uses = 0

    @cached_property
    def _fields(self) -> dict[str, Field[Any]]:
        return _fields(self._cls)

    @cached_property
    def _places(self) -> tuple[str, ...]:
        """Names of the fields that arguments without names are for."""
        return tuple(name for name, each in self._fields.items() if each.kw_only is not True)

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        """Defaults of all fields; _ABSENT for those that have none, or a factory."""
        defaults = {name: each.default for name, each in self._fields.items()}
        return {n: _ABSENT if d is MISSING else d for n, d in defaults.items()}

    @cached_property
    def _made(self) -> tuple[str, ...]:
        """Names of the fields without default, and of those with a factory."""
        return tuple(name for name, default in self._defaults.items() if default is _ABSENT)

    def __get__(self, record: object, owner: type[Any] | None = None) -> Any:
        self._uses += 1
        if record is None or isinstance(record, type) or self._uses > _FEW:  # inspect asks a class
            init = self._compiled()
            return init if record is None else init.__get__(record)
        return partial(self._assign, record)

    def _assign(self, record: Any, /, *args: Any, **named: Any) -> None:
        """Do what the compiled function does."""
        places, defaults = self._places, self._defaults
        values = defaults | dict(zip(places, args, strict=False)) | named
        is_right = len(values) == len(defaults) and len(args) <= len(places)
        if not is_right or (args and not named.keys().isdisjoint(places[: len(args)])):
            self._compiled()(record, *args, **named)  # raises an error
        for name in self._made:
            if values[name] is _ABSENT:
                make: Any = self._fields[name].default_factory
                if make is MISSING:
                    self._compiled()(record, *args, **named)
                values[name] = make()
        assign = object.__setattr__  # keeps the dictionaries of objects small
        for name, value in values.items():
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
            if each.default_factory is not MISSING:
                scope[f"_default_{name}"], default = each.default_factory, "=_ABSENT"
                value = f"_default_{name}() if {name} is _ABSENT else {name}"
            elif each.default is not MISSING:
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
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(record, name, value)


def _not_deleted(record: Any, name: str) -> None:
    if _is_frozen(record, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(record, name)


def _is_frozen(record: Any, name: str) -> bool:
    """Return whether an attribute may not change; a derived class may add others."""
    return "__dataclass_fields__" in vars(type(record)) or name in record.__dataclass_fields__
