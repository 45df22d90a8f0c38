"""Records behave like dataclasses of the standard library; only guarded ones are frozen."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, ClassVar

import pytest

from qgraph import records

MAKERS = (records.dataclass, records.guarded, dataclasses.dataclass)
OPTIONS = [{}, {"eq": False}, {"frozen": True}, {"frozen": True, "eq": False}, {"repr": False}]


def classes(maker: Any, **options: bool) -> list[type]:
    """Return one class without fields, one with, one derived, and one with methods of its own."""

    @maker(**options)
    class Empty:
        pass

    @maker(**options)
    class Base:
        a: int
        label: str = dataclasses.field(default="", compare=False)
        hidden: list[int] = dataclasses.field(default_factory=list, repr=False, compare=False)

    @maker(**options)
    class Derived(Base):
        b: object = None

    @maker(**options)
    class Own(Base):
        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own)

        @cached_property
        def double(self) -> int:
            return 2 * self.a

    return [Empty, Base, Derived, Own]


def facts(made: list[type]) -> list[object]:
    """Return what equality, hashes and texts of objects of all classes are."""
    empty, base, derived, own = made
    # from Python 3.13 on, dataclasses differ from themselves if a field is NaN
    nan = float("nan") if sys.version_info < (3, 13) else -0.0
    objects = [empty(), empty(), base(1), base(1, "x"), base(2), derived(1), derived(1, b=nan)]
    objects += [derived(1, b=nan), derived(1, b=[1]), own(1), own(2), base(base(1))]
    is_hashed = []
    for each in objects:
        try:
            is_hashed.append([hash(each) == hash(x) for x in objects if x == each])
        except TypeError as error:
            is_hashed.append(str(error))
    equal = [[each == other for other in objects] for each in objects]
    texts = [repr(each).split(" at ")[0] for each in objects]
    return [is_hashed, equal, texts, dataclasses.replace(base(1), a=3).a, own(4).double]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_records_equal_and_show_like_dataclasses(options):
    ours, guarded, theirs = (facts(classes(maker, **options)) for maker in MAKERS)
    assert ours == guarded == theirs


@records.dataclass(frozen=True)
class Shown:
    inner: Any = None


@records.guarded(frozen=True)
class Frozen:
    a: int


def test_a_record_that_contains_itself_is_shown_and_records_are_pickled():
    shown = Shown([])
    shown.inner.append(shown)
    assert repr(shown) == "Shown(inner=[...])"
    for record in (Shown(3), Frozen(3)):
        assert pickle.loads(pickle.dumps(record)) == record


def test_objects_are_made_like_those_of_dataclasses():
    def made(maker: Any) -> list[object]:
        @maker
        class Made:
            """A class."""

            first: int
            second: str = "x"
            rest: list[int] = dataclasses.field(default_factory=list)
            last: bool = dataclasses.field(default=True, kw_only=True)

            def __post_init__(self) -> None:
                self.total = len(self.rest)

        @maker
        class Derived(Made):
            """A class with a field that has a new default."""

            second: str = "y"
            more: float = 0.5

        found = []
        for cls in (Made, Derived):
            one, other = cls(1, rest=[2]), cls(3, "z", last=False)
            assert cls(1).rest is not cls(1).rest
            found += [vars(one), vars(other), str(inspect.signature(cls)), cls.__match_args__]
            for wrong in ({}, {"first": 1, "nothing": 2}):
                with pytest.raises(TypeError) as error:
                    cls(**wrong)
                found.append(str(error.value))
        return found

    assert made(records.dataclass) == made(records.guarded) == made(dataclasses.dataclass)


@pytest.mark.parametrize("maker", MAKERS)
def test_the_first_and_the_hundredth_object_are_made_alike(maker: Any):
    @maker
    class Made:
        """A class."""

        a: int
        b: list[int] = dataclasses.field(default_factory=list)
        c: str = dataclasses.field(default="c", kw_only=True)

    made = [Made(1, [2], c="d") for _ in range(100)]
    assert {repr(each) for each in made} == {repr(made[0])}
    assert [*vars(made[0])] == [*vars(made[-1])] == ["a", "b", "c"]
    for wrong in (lambda: Made(), lambda: Made(1, a=2), lambda: Made(1, [], "c")):
        with pytest.raises(TypeError, match=r"Made.__init__\(\) "):
            wrong()


def test_a_value_may_stand_for_no_value():
    @records.dataclass
    class Made:
        """A class."""

        a: object
        b: list[int] = dataclasses.field(default_factory=list)

    assert Made(dataclasses.MISSING).a is dataclasses.MISSING


@pytest.mark.parametrize("maker", MAKERS[:2])
def test_objects_do_not_need_the_description_of_their_class(maker: Any):
    @maker
    class Base:
        a: int
        number: ClassVar[int] = 3
        b: list[int] = dataclasses.field(default_factory=list, compare=False)

    @maker
    class Derived(Base):
        a: int = 2
        c: str = dataclasses.field(default="c", compare=False)

    one, other = Derived(1, [5]), Derived(1, c="d")
    assert (one, one.b, Derived(), Base(4).b) == (other, [5], Derived(2), [])
    assert [*vars(one)] == ["a", "b", "c"]
    if maker is records.dataclass:  # a guarded class that derives is described at once
        for cls in (Base, Derived):
            assert isinstance(vars(cls)["__dataclass_fields__"], records._Described)
    assert [each.name for each in dataclasses.fields(Derived)] == ["a", "b", "c"]
    assert not isinstance(vars(Base)["__dataclass_fields__"], records._Described)
    assert (Derived(1), Derived(3, [], "e").c) == (one, "e")


def test_a_field_that_is_stated_again_keeps_its_default_but_no_factory():
    def made(maker: Any) -> list[object]:
        @maker
        class Base:
            c: list[int] = dataclasses.field(default_factory=list)
            a: int = 1
            b: int = dataclasses.field(default=2, compare=False)

        @maker
        class Derived(Base):
            a: int
            b: int

        @maker
        class Without(Base):
            a: int = 3
            c: list[int]

        with pytest.raises(TypeError, match="'c'"):
            Without()
        return [vars(Derived()), Derived(b=2) == Derived(b=3), vars(Without(c=[1]))]

    assert made(records.dataclass) == made(dataclasses.dataclass)


def test_fields_after_a_mark_are_named():
    def made(maker: Any) -> list[object]:
        @maker
        class Made:
            a: int
            _: dataclasses.KW_ONLY
            b: int = 2

        @maker
        class Given:
            a: int
            start: dataclasses.InitVar[int] = 3

            def __post_init__(self, start: int) -> None:
                self.a += start

        with pytest.raises(TypeError):
            Made(1, 3)
        return [vars(Made(1, b=3)), vars(Made(1))]

    assert made(records.dataclass) == made(dataclasses.dataclass)


def test_threads_describe_a_class_once():
    for _ in range(20):

        @records.dataclass
        class Base:
            a: int = dataclasses.field(default=1, compare=False)

        @records.dataclass
        class Derived(Base):
            b: int = 2

        with ThreadPoolExecutor(4) as pool:
            found = {pool.submit(dataclasses.fields, Derived) for _ in range(8)}
            assert {tuple(f.name for f in each.result()) for each in found} == {("a", "b")}


def test_a_class_without_objects_has_the_signature_of_its_fields():
    @records.dataclass(frozen=True)
    class Never:
        """A class."""

        a: int
        b: str = "b"

    assert str(inspect.signature(Never)) == "(a: 'int', b: 'str' = 'b') -> None"
    assert inspect.signature(Never.__init__).parameters.keys() == {"self", "a", "b"}


@pytest.mark.parametrize("deriving", MAKERS[1:])
@pytest.mark.parametrize("maker", MAKERS[1:])
def test_guarded_records_are_frozen_like_dataclasses(maker: Any, deriving: Any):
    @maker(frozen=True)
    class Base:
        a: int = 1

        @cached_property
        def double(self) -> int:
            return 2 * self.a

    @deriving(frozen=True)
    class Derived(Base):
        b: int = 2

    class Plain(Base):
        pass

    for record, own in ((Base(), "a"), (Derived(5), "b"), (Plain(), "a")):
        assert record.double == 2 * record.a
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"assign to field '{own}'"):
            setattr(record, own, 3)
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"delete field '{own}'"):
            delattr(record, own)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Derived().new = 3
    plain = Plain()
    plain.new = 3
    del plain.new
    with pytest.raises(TypeError, match="frozen"):
        deriving(type("Open", (Base,), {"__annotations__": {"c": int}}))
