"""Fixtures of pytest that compare ONNX models; pytest finds them if qgraph is installed.

    def test_export(assert_onnx_proved, assert_onnx_equivalent):
        assert_onnx_proved("reference.onnx", "export.onnx")
        limits = qgraph.Tolerances(max_steps=1)
        assert_onnx_equivalent("reference.onnx", "optimized.onnx", tolerances=limits)

qgraph is imported when one of them is first called.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    import numpy.typing as npt

    from qgraph.certificate import Certificate
    from qgraph.comparison.check import Inputs
    from qgraph.comparison.report import CheckReport
    from qgraph.comparison.tolerance import Tolerances
    from qgraph.model import Source

_RUNS = 100
"""Maximum number of runs of each model to find a witness of a failed proof."""

_SHOWN = 5
"""Maximum number of listed findings."""


class AssertEquivalent(Protocol):
    """Type of the fixture ``assert_onnx_equivalent``."""

    def __call__(
        self,
        reference: Source,
        candidate: Source,
        inputs: Inputs | Mapping[str, npt.ArrayLike] | None = None,
        *,
        tolerances: Tolerances | None = None,
        backend: str = "auto",
        **old: Any,
    ) -> CheckReport:
        """Fail unless both models give the same outputs; see :func:`qgraph.check`."""


class AssertProved(Protocol):
    """Type of the fixture ``assert_onnx_proved``."""

    def __call__(
        self,
        reference: Source,
        candidate: Source,
        *,
        exact: str = "values",
        keep_inputs: bool = False,
    ) -> Certificate:
        """Fail unless both models are proved equal for every input; see :func:`qgraph.prove`."""


@pytest.fixture(scope="session")
def assert_onnx_equivalent(tmp_path_factory: pytest.TempPathFactory) -> AssertEquivalent:
    """Run two models on the same inputs, and fail if an output exceeds the tolerance.

    Outputs must be equal, unless ``tolerances=qgraph.Tolerances(...)`` allows for more. Random
    inputs are described by ``inputs=qgraph.Inputs(...)``. Returns the report.
    """

    def compare(
        reference: Source,
        candidate: Source,
        inputs: Inputs | Mapping[str, npt.ArrayLike] | None = None,
        *,
        tolerances: Tolerances | None = None,
        backend: str = "auto",
        **old: Any,
    ) -> CheckReport:
        __tracebackhide__ = True
        from qgraph.comparison.check import check

        report = check(reference, candidate, inputs, tolerances=tolerances, backend=backend, **old)
        if report.verdict != "equal":
            lines = _lines(report.to_json())
            replay = f"qgraph check {_name(reference)} {_name(candidate)}"
            lines += _saved(tmp_path_factory, report.example, replay)
            raise AssertionError("\n".join(lines))
        return report

    return compare


@pytest.fixture(scope="session")
def assert_onnx_proved(tmp_path_factory: pytest.TempPathFactory) -> AssertProved:
    """Prove two models equal for every input, and fail if they differ or it is undecided.

    ``exact`` is ``values``, or ``bits``, which covers NaN and the sign of zero. Returns the
    certificate.
    """

    def compare(
        reference: Source, candidate: Source, *, exact: str = "values", keep_inputs: bool = False
    ) -> Certificate:
        __tracebackhide__ = True
        from qgraph.comparison.prove import prove

        certificate = prove(reference, candidate, exact=exact, keep_inputs=keep_inputs, runs=_RUNS)
        if certificate.verdict != "proved":
            lines = _lines(certificate.to_json())
            replay = f"qgraph check {_name(reference)} {_name(candidate)}"
            lines += _saved(tmp_path_factory, certificate.counterexample, replay)
            raise AssertionError("\n".join(lines))
        return certificate

    return compare


def _lines(document: Mapping[str, Any]) -> list[str]:
    """Return the verdict of a report, and the first findings."""
    from qgraph.reporting.pages import page_of

    page = page_of(document)
    texts = [f"  {finding.place}: {finding.text}" for finding in page.findings if finding.rule]
    more = [f"  and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
    return [f"the models are {page.verdict}: {page.sentence}", *texts[:_SHOWN], *more]


def _saved(
    factory: pytest.TempPathFactory, feeds: Mapping[str, Any] | None, replay: str
) -> list[str]:
    """Write inputs on which the models differ; return the command that repeats the comparison."""
    if not feeds:
        return []
    import numpy as np

    path: Path = factory.mktemp("onnx") / "inputs.npz"
    arrays: dict[str, Any] = {name: np.asarray(array) for name, array in feeds.items()}
    np.savez(path, **arrays)
    return [f"see it again: {replay} --inputs {path}"]


def _name(source: Source) -> str:
    """Return the file of a model, or a name for a model in memory."""
    path = source if isinstance(source, str | os.PathLike) else getattr(source, "path", None)
    return "MODEL" if path is None else str(path)
