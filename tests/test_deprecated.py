"""Old names and keywords still work, and say what takes their place."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph import pytest_plugin, transforms
from qgraph.version import RENAMED

MOST_PARAMETERS = 8


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [(module, old, new) for module, names in RENAMED.items() for old, new in names.items()],
)
def test_old_names_give_what_has_another_name_now(module: str, old: str, new: str) -> None:
    home = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{old} is now called {new}"):
        found = getattr(home, old)
    assert found is getattr(home, new)


def test_names_that_never_were_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        importlib.import_module("qgraph.reports").Nonsense  # noqa: B018 - the attribute is asked for


SCALED = """<ir_version: 10, opset_import: ["": 21]>
net (float[N] x) => (float[N] y) <float s = {FACTOR}> { y = Mul (x, s) }"""


def models() -> list[ir.Model]:
    return [ir.from_onnx_text(SCALED.replace("FACTOR", factor)) for factor in ("1", "1.5")]


def test_old_keywords_of_check_do_what_the_dataclasses_do() -> None:
    x = np.float32([1, 2, 3])
    with pytest.warns(DeprecationWarning, match=r"check: write tolerances=Tolerances\(atol=...\)"):
        old = qgraph.check(*models(), {"x": x}, atol=1.5)
    new = qgraph.check(*models(), {"x": x}, tolerances=qgraph.Tolerances(atol=1.5))
    assert (old.verdict, new.verdict) == ("equal", "equal")
    with pytest.warns(DeprecationWarning, match="check: write") as told:
        found = qgraph.check(*models(), inputs={"x": x}, batch=2, labels=[0, 0, 0], metric=_first)
    assert [str(each.message).split(";")[0] for each in told] == [
        "check: write inputs=Inputs(batch=...)",
        "check: write scoring=Scoring(labels=..., metric=...)",
    ]
    assert found.batches == 2
    assert found.metric is not None
    assert (found.metric.reference, found.metric.candidate) == (1, 1.5)


def _first(outputs: dict[str, np.ndarray], _labels: np.ndarray) -> float:
    return float(outputs["y"][0])


def test_old_keywords_are_added_to_a_dataclass_that_is_given() -> None:
    limits = qgraph.Tolerances(atol=0.5)
    with pytest.warns(DeprecationWarning, match="rtol"):
        found = qgraph.check(*models(), {"x": np.float32([4])}, tolerances=limits, rtol=0.5)
    assert found.verdict == "equal"


def test_unknown_keywords_are_errors_still() -> None:
    with pytest.raises(TypeError, match="nonsense"):
        qgraph.check(*models(), nonsense=1)


def public() -> Iterator[tuple[str, object]]:
    for module in (qgraph, transforms):
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isfunction(found):
                yield f"{module.__name__}.{name}", found
    for name, found in vars(qgraph.Model).items():
        if not name.startswith("_") and inspect.isfunction(found):
            yield f"Model.{name}", found
    for group in (qgraph.Inputs, qgraph.Tolerances, qgraph.Scoring, transforms.Writing):
        yield group.__name__, group
    for fixture in (pytest_plugin.AssertEquivalent, pytest_plugin.AssertProved):
        yield fixture.__name__, fixture.__call__


def test_nothing_public_has_many_parameters() -> None:
    """Passes are not counted: their fields are the options of one pass, named on one line."""
    counts = {}
    for name, found in public():
        counts[name] = len([p for p in inspect.signature(found).parameters if p != "self"])
    assert {"qgraph.check", "qgraph.transforms.rewrite", "Model.save"} <= counts.keys()
    assert {name: count for name, count in counts.items() if count > MOST_PARAMETERS} == {}
