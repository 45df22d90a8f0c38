"""Options that take words: members and strings in any case mean the same, others are refused."""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import click
import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph import Exactness, Model, Report
from qgraph.bound import Limit
from qgraph.cli import commands
from qgraph.cli.options import Word
from qgraph.errors import Choice, OptionError, member
from qgraph.execution.executor import Backend
from qgraph.numerics.rounding import Rounding, round_to_integer
from qgraph.quantizers.dialects.dialect import DIALECTS
from qgraph.reports import SiteReport, SiteStatus
from qgraph.transforms import TRANSFORMS, parse_spec
from qgraph.transforms.base import Option, Transform, options_of

LEVELS = ["bits", "values", "codes", "near", "different"]
REQUIRED: dict[str, dict[str, Any]] = {"convert": {"to": "qdq"}}
"""Arguments that a pass needs."""


def cases(text: str) -> list[str]:
    mixed = "".join(c.upper() if i % 2 else c.lower() for i, c in enumerate(text))
    return [text.lower(), text.upper(), mixed]


def words_of(option: Option) -> list[str]:
    if option.registry is not None:
        return option.registry.names()
    return list(option.type) if issubclass(option.type, StrEnum) else []


OPTIONS = [
    pytest.param(cls, option, id=f"{cls.name}.{option.name}")
    for cls in TRANSFORMS
    for option in options_of(cls)
]


def made(cls: type[Transform], option: Option, value: object) -> Transform:
    return cls(**(REQUIRED.get(cls.name, {}) | {option.name: value}))


def outcome(make: Callable[[], object]) -> object:
    """Return what is made, or the message: options may not go together with the others."""
    try:
        return make()
    except OptionError as error:
        return str(error)


@pytest.mark.parametrize(("cls", "option"), OPTIONS)
def test_words_of_passes_match_in_any_case(cls: type[Transform], option: Option) -> None:
    for text in words_of(option):
        expected = outcome(lambda: made(cls, option, option.type(text)))  # noqa: B023
        if isinstance(expected, Transform):
            assert type(getattr(expected, option.name)) is option.type
        for each in cases(text):
            assert outcome(lambda: made(cls, option, each)) == expected  # noqa: B023
            required = "".join(f"{k}={v}," for k, v in REQUIRED.get(cls.name, {}).items())
            if option.name not in REQUIRED.get(cls.name, {}):
                spec = f"{cls.name.upper()}{{{required}{option.name}={each}}}"
                if isinstance(expected, Transform):
                    assert parse_spec(spec) == expected


@pytest.mark.parametrize(("cls", "option"), OPTIONS)
def test_unknown_words_and_wrong_types_are_refused(cls: type[Transform], option: Option) -> None:
    known = words_of(option)
    wrong: list[object] = [
        object(),
        [],
        b"bits",
        *([3, 1.5, True, "no-such-word", ""] if known else []),
    ]
    wrong += {bool: ["true", 1], int: ["1", 1.5, True], float: ["1", True], str: [3]}.get(
        option.type, []
    )
    if not option.optional:
        wrong.append(None)
    for value in wrong:
        with pytest.raises(OptionError) as caught:
            made(cls, option, value)
        message = str(caught.value)
        assert all(text in message for text in known)
        assert cls.name in message or option.registry is not None
    for text in known:
        with pytest.raises(OptionError, match=r"(?i)did you mean"):
            made(cls, option, text + "x")


def test_dialects_are_known_when_a_pass_is_made() -> None:
    assert parse_spec("convert{to=QDQ}") == parse_spec("convert{to=qdq}")
    with pytest.raises(OptionError, match="did you mean 'qdq'"):
        parse_spec("convert{to=qqd}")


def test_kinds_of_weights_are_words_too() -> None:
    step = parse_spec("quantize-weights{types=MATMUL|gemm}")
    assert step == parse_spec("quantize-weights{types=MatMul|Gemm}")
    with pytest.raises(OptionError, match="Did you mean 'MatMul'"):
        parse_spec("quantize-weights{types=MatMull}")


@pytest.mark.parametrize("name", [name for name in DIALECTS.names() for name in cases(name)])
def test_names_in_registries_match_in_any_case(name: str) -> None:
    assert DIALECTS.find(name).name == name.lower()


@pytest.mark.parametrize(("first", "second"), list(itertools.product(LEVELS, LEVELS)))
def test_levels_compare_by_strength_with_strings_too(first: str, second: str) -> None:
    difference = LEVELS.index(second) - LEVELS.index(first)  # positive: first is stronger
    member_, other = Exactness(first), Exactness(second)
    pairs: list[tuple[Any, Any]] = [(member_, other)]
    pairs += [(member_, each) for each in cases(second)] + [(each, other) for each in cases(first)]
    for a, b in pairs:
        assert (a > b, a >= b, a < b, a <= b) == (
            difference > 0,
            difference >= 0,
            difference < 0,
            difference <= 0,
        )


@pytest.mark.parametrize("other", ["bit", "", "equal"])
def test_levels_do_not_compare_with_other_words(other: str) -> None:
    for compare in ("__lt__", "__le__", "__gt__", "__ge__"):
        with pytest.raises(OptionError, match="expected one of bits, values"):
            getattr(Exactness.BITS, compare)(other)
    with pytest.raises(TypeError):
        assert Exactness.BITS < 3


def enumerations() -> list[type[Choice]]:
    return sorted(Choice.__subclasses__(), key=lambda kind: f"{kind.__module__}.{kind.__name__}")


def test_only_levels_are_ordered() -> None:
    """An enumeration of strings with an order of its own has to order plain strings, too."""
    own = [kind for kind in StrEnum.__subclasses__() if "__lt__" in vars(kind)]
    assert own == []
    assert [kind for kind in enumerations() if "__lt__" in vars(kind)] == [Exactness]


def test_constructors_take_any_case() -> None:
    for cls in TRANSFORMS:
        options_of(cls)  # every module with an enumeration is imported
    for kind in enumerations():
        for each in kind:
            assert [kind(text) for text in cases(each)] == [each] * 3
        with pytest.raises(ValueError, match="no-such-word"):
            kind("no-such-word")


def test_message_names_option_value_and_words() -> None:
    with pytest.raises(OptionError) as caught:
        member(Backend, "numpi", "backend")
    expected = "backend is 'numpi', expected one of auto, numpy, ort. Did you mean 'numpy'?"
    assert str(caught.value) == expected


@pytest.fixture
def model() -> Model:
    return qgraph.load(
        ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["": 21]>
        g (float[3] x) => (float[3] y) <float s = {0.5}, int8 z = {0}> {
            q = QuantizeLinear (x, s, z)
            y = DequantizeLinear (q, s, z)
        }""")
    )


@pytest.fixture
def other() -> Model:
    return qgraph.load(
        ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["": 21]>
        g (float[3] x) => (float[3] y) { y = Neg (x) }""")
    )


X = {"x": np.array([-1.2, 0.3, 7.0], np.float32)}


def test_prove_takes_levels_in_any_case(assert_onnx_proved: Any) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[3] x) => (float[4] y) <float[1] c = {{{}}}> {{ y = Concat <axis = 0> (x, c) }}"""
    plus, minus = (qgraph.load(ir.from_onnx_text(text.format(c))) for c in ("0.0", "-0.0"))
    verdicts = {"bits": "different", "values": "proved"}
    for level, verdict in verdicts.items():
        for exact in (Exactness(level), *cases(level)):
            assert qgraph.prove(plus, minus, exact=exact).verdict == verdict
            assert assert_onnx_proved(plus, plus, exact=exact).verdict == "proved"
    for wrong in ("codes", "bitz", 3, None):
        with pytest.raises(OptionError):
            qgraph.prove(plus, minus, exact=wrong)  # type: ignore[arg-type]
        with pytest.raises(OptionError):
            assert_onnx_proved(plus, plus, exact=wrong)


def test_backends_match_in_any_case(
    model: Model, other: Model, assert_onnx_equivalent: Any
) -> None:
    (expected,) = model.run(X, backend=Backend.NUMPY).values()
    for text in cases("numpy"):
        np.testing.assert_array_equal(model.run(X, backend=text)["y"], expected)
        assert qgraph.check(model, model, X, backend=text).verdict == "equal"
        assert qgraph.reduce(model, other, X, backend=text).tensor == "y"
        assert assert_onnx_equivalent(model, model, X, backend=text).verdict == "equal"
    for wrong in ("numpi", "", 3, None):
        for call in (qgraph.check, qgraph.reduce, qgraph.why, assert_onnx_equivalent):
            with pytest.raises(OptionError, match="expected one of auto, numpy, ort"):
                call(model, model, X, backend=wrong)
        with pytest.raises(OptionError, match="expected one of auto, numpy, ort"):
            model.run(X, backend=wrong)  # type: ignore[arg-type]


def test_metrics_match_in_any_case(model: Model) -> None:
    rows = {"x": np.stack([X["x"]])}
    wide = qgraph.load(
        ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["": 21]>
        g (float[N, 3] x) => (float[N, 3] y) { y = Neg (x) }""")
    )
    for text in cases("top1"):
        report = qgraph.check(wide, wide, rows, scoring=qgraph.Scoring(labels=[0], metric=text))
        assert report.metric is not None
        assert report.metric.name == "top1"
    for wrong in ("top2", 3):
        with pytest.raises(OptionError, match="top1"):
            qgraph.check(wide, wide, rows, scoring=qgraph.Scoring(labels=[0], metric=wrong))  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="top1"):
            qgraph.why(wide, wide, rows, labels=[0], metric=wrong)  # type: ignore[arg-type]


def test_units_of_limits_match_in_any_case() -> None:
    assert Limit.parse("2STEP") == Limit.parse("2step")
    assert Limit.parse("y:3ULP") == Limit.parse("y:3ulp")


@pytest.mark.parametrize("text", ["1step", "0.05step", "y:1234567", "y:1e30", "y:.5e-9", "2.5e+3%"])
def test_limits_are_written_as_they_are_read(text: str) -> None:
    limit = Limit.parse(text)
    assert limit.number == float(text.split(":")[-1].rstrip("step%"))
    assert Limit.parse(str(limit)) == limit


@pytest.mark.parametrize("text", ["1e999step", "nanstep", "-1step", "1", "1steps", "y:1e400"])
def test_what_is_no_number_is_no_limit(text: str) -> None:
    with pytest.raises(OptionError, match="is no limit, expected one such as 1step"):
        Limit.parse(text)


def test_words_of_rewrites_match_in_any_case(model: Model) -> None:
    for text in cases("bits"):
        assert qgraph.convert(model.clone(), to="QDQ", exact=text).count("refused") == 0
        assert qgraph.fold(model.clone(), exact=text).count("refused") == 0
    for call in (
        lambda word: qgraph.convert(model.clone(), to="qdq", exact=word),
        lambda word: qgraph.convert(model.clone(), to="qdq", fake_quantize=word),
        lambda word: qgraph.fold(model.clone(), exact=word),
        lambda word: qgraph.fold(model.clone(), scale_type=word),
        lambda word: qgraph.report({}, form=word),
        lambda word: qgraph.plot(model, "q", form=word),
    ):
        with pytest.raises(OptionError, match="expected one of"):
            call("sideways")


def test_preferences_match_in_any_case(model: Model) -> None:
    for text in cases("size"):
        assert not qgraph.deploy(model.clone(), "onnxruntime-cpu", prefer=text).left
    with pytest.raises(OptionError, match="expected one of speed, size, tuned"):
        qgraph.deploy(model, "onnxruntime-cpu", prefer="small")


COVERED = {
    ("check", "backend"),
    ("convert", "exact"),
    ("convert", "fake_quantize"),
    ("deploy", "prefer"),
    ("deploy", "within"),
    ("Scoring", "metric"),
    ("fold", "exact"),
    ("fold", "scale_type"),
    ("plot", "form"),
    ("prove", "exact"),
    ("reduce", "backend"),
    ("report", "form"),
    ("run", "backend"),
    ("why", "backend"),
    ("why", "metric"),
}
"""Parameters of public functions that take words; each has a test above."""


def test_every_public_parameter_that_takes_words_is_covered() -> None:
    functions = [f for name in qgraph.__all__ if inspect.isroutine(f := getattr(qgraph, name))]
    functions += [qgraph.Inputs, qgraph.Tolerances, qgraph.Scoring]
    functions += [f for name, f in vars(Model).items() if inspect.isfunction(f) and name[0] != "_"]
    found = {
        (function.__name__, name)
        for function in functions
        for name, parameter in inspect.signature(function).parameters.items()
        if isinstance(parameter.default, str) and name != "values"  # a pattern for names
    }
    assert found == COVERED


def test_reports_count_outcomes_by_word() -> None:
    report = Report(sites=[SiteReport("n", "Op", "p", SiteStatus.REFUSED)])
    for text in (SiteStatus.REFUSED, *cases("refused")):
        assert report.count(text) == 1
    with pytest.raises(OptionError, match="expected one of changed, kept, refused"):
        report.count("refuse")


@pytest.mark.parametrize("mode", list(Rounding))
def test_rounding_modes_match_in_any_case(mode: Rounding) -> None:
    y = np.array([-1.5, -0.2, 0.5, 2.5, 3.7], np.float32)
    expected = round_to_integer(y, mode)
    for text in cases(mode):
        np.testing.assert_array_equal(round_to_integer(y, text), expected)
    with pytest.raises(ValueError, match="not known"):
        round_to_integer(y, "sideways")


def test_every_word_on_the_command_line_matches_in_any_case() -> None:
    found = []
    for info in pkgutil.iter_modules(commands.__path__):
        command = importlib.import_module(f"qgraph.cli.commands.{info.name}").command
        for parameter in command.params:
            if isinstance(parameter.type, click.Choice):
                assert isinstance(parameter.type, Word), (info.name, parameter.name)
                found.append(parameter.type)
    assert len(found) > 5
    for kind in found:
        for text in kind.choices:
            assert [kind.convert(each, None, None) for each in cases(text)] == [text] * 3
            with pytest.raises(click.BadParameter, match="Did you mean"):
                kind.convert(text + "x", None, None)
