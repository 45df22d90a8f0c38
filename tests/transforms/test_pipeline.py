"""Passes as text: what is understood, what is refused with which words."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from enum import StrEnum

import pytest

from qgraph import transforms
from qgraph.errors import OptionError
from qgraph.exactness import Exactness
from qgraph.model import Model
from qgraph.registry import Registry
from qgraph.reports import Report
from qgraph.transforms import base
from qgraph.transforms.base import TRANSFORMS, Transform, describe, option, parse_spec


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


@pytest.fixture
def every(monkeypatch):
    """A pass with an option of each type, in a registry of its own."""
    registry: Registry[type[Transform]] = Registry("pass", "qgraph.cli.commands")
    monkeypatch.setattr(base, "TRANSFORMS", registry)
    monkeypatch.setattr(base, "TRANSFORMS", registry)

    @base.transform("try-everything")
    class Every(Transform):
        """Do ``nothing`` with every option.

        At all.
        """

        path: str = option(help="a text")
        number: int = option(3, help="a whole number")
        ratio: float = option(0.5, help="a number")
        flag: bool = option(False, help="a switch")
        colour: Colour = option(Colour.RED, help="a choice")
        limit: int | None = option(None, help="a number or nothing")
        tint: Colour | None = option(None, help="a choice or nothing")

        def apply(self, model: Model, report: Report) -> None:
            pass

    @base.transform("do-nothing")
    class Nothing(Transform):
        """Do nothing."""

        def apply(self, model: Model, report: Report) -> None:
            pass

    return Every


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("try-everything{path=a}", {}),
        (" try-everything { path = a } ", {}),
        ("try-everything{path=a,number=-7}", {"number": -7}),
        ("try-everything{path=a,ratio=1e-3}", {"ratio": 1e-3}),
        ("try-everything{path=a,ratio=2}", {"ratio": 2.0}),
        ("try-everything{path=a,flag=true}", {"flag": True}),
        ("try-everything{flag=false,path=a}", {"flag": False}),
        ("try-everything{path=a,colour=green}", {"colour": Colour.GREEN}),
        ("try-everything{path=a,limit=4}", {"limit": 4}),
        ("try-everything{path=a,limit=none}", {"limit": None}),
        ("try-everything{path=a,tint=red}", {"tint": Colour.RED}),
        ("try-everything{path=x=y}", {"path": "x=y"}),
        ("try-everything{path=none}", {"path": "none"}),
    ],
)
def test_options_get_the_type_of_their_field(every, text, values):
    found = parse_spec(text)
    assert found == every(**{"path": "a", **values})
    for field in dataclasses.fields(found):
        expected = values.get(field.name, field.default if field.name != "path" else "a")
        assert type(getattr(found, field.name)) is type(expected)


@pytest.mark.parametrize("text", ["do-nothing", "do-nothing{}", "do-nothing { }"])
def test_a_pass_without_options_needs_no_braces(every, text):
    assert parse_spec(text).name == "do-nothing"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not of the form NAME or NAME{option=value,...}"),
        ("try-everything{path=a", "is not of the form"),
        ("try-everything path=a}", "is not of the form"),
        ("try-everything{path={a}}", "is not of the form"),
        ("try-everything{path=a}{flag=true}", "is not of the form"),
        ("try-everything{path=a}x", "is not of the form"),
        ("try-everythin{path=a}", "no pass called 'try-everythin'; did you mean 'try-everything'?"),
        ("nonsense", "no pass called 'nonsense'; known: do-nothing, try-everything."),
        ("try-everything{path=a,nummer=3}", "no option 'nummer'; did you mean 'number'?"),
        ("try-everything{path=a,zzz=3}", "no option 'zzz'; it has path, number, ratio,"),
        ("do-nothing{a=1}", "'do-nothing' has no option 'a'; it has none at all."),
        ("try-everything{path=a,flag}", "'flag' is not of the form option=value"),
        ("try-everything{path=a,}", "'' is not of the form option=value"),
        ("try-everything{=a}", "has no option ''"),
        ("try-everything{path=a,path=b}", "option 'path' is given twice"),
        ("try-everything", "needs the option 'path' (a text), which is not given. Write"),
        ("try-everything{path=}", "option 'path' is '', expected text."),
        ("try-everything{path=a,number=1.5}", "'number' is '1.5', expected a whole number."),
        ("try-everything{path=a,number=none}", "'number' is 'none', expected a whole number."),
        ("try-everything{path=a,ratio=half}", "'ratio' is 'half', expected a number."),
        ("try-everything{path=a,flag=yes}", "'flag' is 'yes', expected true or false."),
        ("try-everything{path=a,limit=few}", "'few', expected a whole number, or none."),
        (
            "try-everything{path=a,colour=gren}",
            "'gren', expected one of red, green. Did you mean 'green'?",
        ),
        ("try-everything{path=a,tint=blue}", "'blue', expected one of red, green, or none."),
    ],
)
def test_what_is_wrong_is_said(every, text, message):
    with pytest.raises(OptionError) as caught:
        parse_spec(text)
    assert message in str(caught.value)


def test_a_pass_is_described_by_its_fields(every):
    info = describe(every)
    assert (info.name, info.summary) == ("try-everything", "Do nothing with every option.")
    assert info.preserves is Exactness.DIFFERENT  # a pass that states nothing promises nothing
    assert [(o.name, o.kind, o.default, o.help) for o in info.options] == [
        ("path", "text", None, "a text"),
        ("number", "a whole number", "3", "a whole number"),
        ("ratio", "a number", "0.5", "a number"),
        ("flag", "true or false", "false", "a switch"),
        ("colour", "one of red, green", "red", "a choice"),
        ("limit", "a whole number, or none", "none", "a number or nothing"),
        ("tint", "one of red, green, or none", "none", "a choice or nothing"),
    ]


def test_the_documented_specifications_are_understood():
    convert = parse_spec("convert{to=qdq,exact=bits}")
    assert convert == transforms.ConvertDialect(to="qdq", exact=Exactness.BITS)
    assert parse_spec("fold-weights") == transforms.FoldWeights()


@pytest.mark.parametrize("name", TRANSFORMS.names())
def test_each_pass_can_be_described_specified_and_imported(name):
    cls = TRANSFORMS.find(name)
    info = describe(cls)
    assert info.summary.endswith(".")
    assert all(each.help for each in info.options)
    required = ",".join(f"{each.name}=qdq" for each in info.options if each.default is None)
    assert isinstance(parse_spec(f"{name}{{{required}}}"), cls)
    spelled = [each for each in info.options if each.default != ""]
    defaults = ",".join(f"{each.name}={each.default or 'qdq'}" for each in spelled)
    assert parse_spec(f"{name}{{{defaults}}}") == parse_spec(f"{name}{{{required}}}")
    assert getattr(transforms, cls.__name__) is cls
    assert cls.__name__ in transforms.__all__


def test_unknown_names_of_the_package_are_attribute_errors():
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = transforms.Nothing
    assert all(hasattr(transforms, name) for name in transforms.__all__)


def test_a_refusal_of_options_names_the_pass():
    with pytest.raises(OptionError) as caught:
        parse_spec("quantize-weights{format=int4,block_size=1}")
    assert str(caught.value).startswith("Pass 'quantize-weights': block_size is 1, expected 2 or")


@pytest.mark.parametrize("text", ["GREEN", "Green", "gReen"])
def test_words_match_in_any_case(every, text):
    step = parse_spec(f"Try-Everything{{path=x,colour={text},flag=TRUE,limit=None}}")
    assert (step.colour, step.flag, step.limit) == (Colour.GREEN, True, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain-pairs", "widen-floats", "lower-mat-mul-n-bits", "repack"])
def test_a_pass_in_a_file_of_another_name_is_found_without_loading_all_passes(name):
    program = (
        "import sys; from qgraph.transforms.base import TRANSFORMS; "
        f"print(TRANSFORMS.find({name!r}).name, 'qgraph.transforms.tune_ranges' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [name, "False"]
