"""Fixtures of pytest that compare ONNX models; pytest finds them where qgraph is installed.

    def test_export(assert_onnx_proved, assert_onnx_equivalent):
        assert_onnx_proved("reference.onnx", "export.onnx")
        assert_onnx_equivalent("reference.onnx", "optimized.onnx", max_steps=1)

Nothing of qgraph is loaded before one of them is called.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    import numpy.typing as npt

    from qgraph.certification.certificate import Certificate, Region
    from qgraph.equivalence.report import CheckReport
    from qgraph.equivalence.tolerance import Limit
    from qgraph.model import Source

_RUNS = 100
"""Runs of each model that a witness of a failed proof is worth."""

_SHOWN = 5
"""Up to so many outputs or regions are told one by one."""


class AssertEquivalent(Protocol):
    """What the fixture ``assert_onnx_equivalent`` is."""

    def __call__(
        self,
        reference: Source,
        candidate: Source,
        inputs: Mapping[str, npt.ArrayLike] | None = None,
        *,
        random: int | None = None,
        seed: int = 0,
        shapes: Mapping[str, Sequence[int]] | None = None,
        probes: int = 0,
        backend: str = "auto",
        atol: Limit = 0.0,
        rtol: Limit = 0.0,
        max_steps: Limit | None = None,
        max_ulp: Limit | None = None,
        min_sqnr: Limit | None = None,
        min_top1: Limit | None = None,
    ) -> CheckReport:
        """Fail unless both models give the same outputs; see :func:`qgraph.check`."""


class AssertProved(Protocol):
    """What the fixture ``assert_onnx_proved`` is."""

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
    """Run two models on the same inputs, and fail where an output is beyond the tolerance.

    The tolerances are those of ``qgraph check``: exact equality, unless ``atol``, ``rtol``,
    ``max_steps``, ``max_ulp``, ``min_sqnr`` or ``min_top1`` allow for more. Returns the report.
    """

    def compare(
        reference: Source,
        candidate: Source,
        inputs: Mapping[str, npt.ArrayLike] | None = None,
        *,
        random: int | None = None,
        seed: int = 0,
        shapes: Mapping[str, Sequence[int]] | None = None,
        probes: int = 0,
        backend: str = "auto",
        atol: Limit = 0.0,
        rtol: Limit = 0.0,
        max_steps: Limit | None = None,
        max_ulp: Limit | None = None,
        min_sqnr: Limit | None = None,
        min_top1: Limit | None = None,
    ) -> CheckReport:
        __tracebackhide__ = True
        from qgraph import check

        found = check(
            reference,
            candidate,
            inputs,
            random=random,
            seed=seed,
            shapes=shapes,
            probes=probes,
            backend=backend,
            atol=atol,
            rtol=rtol,
            max_steps=max_steps,
            max_ulp=max_ulp,
            min_sqnr=min_sqnr,
            min_top1=min_top1,
        )
        if found.verdict != "equal":
            lines = _check_lines(found)
            replay = f"qgraph check {_name(reference)} {_name(candidate)}"
            lines += _saved(tmp_path_factory, found.example, replay)
            raise AssertionError("\n".join(lines))
        return found

    return compare


@pytest.fixture(scope="session")
def assert_onnx_proved(tmp_path_factory: pytest.TempPathFactory) -> AssertProved:
    """Prove two models equal for every input, and fail where they differ or it stays undecided.

    ``exact`` is ``values``, or ``bits``, which covers NaN and the sign of zero. Returns the
    certificate.
    """

    def compare(
        reference: Source,
        candidate: Source,
        *,
        exact: str = "values",
        keep_inputs: bool = False,
    ) -> Certificate:
        __tracebackhide__ = True
        from qgraph import prove

        found = prove(reference, candidate, exact=exact, keep_inputs=keep_inputs, runs=_RUNS)
        if found.verdict != "proved":
            lines = _proof_lines(found)
            replay = f"qgraph check {_name(reference)} {_name(candidate)}"
            lines += _saved(tmp_path_factory, found.counterexample, replay)
            raise AssertionError("\n".join(lines))
        return found

    return compare


def _check_lines(found: CheckReport) -> list[str]:
    """Return the verdict, why, and the first tensor that differs."""
    lines = [f"the models are {found.verdict}"]
    lines += _few([f"  output {name}: {reason}" for name, reason in found.failed.items()])
    if found.metric is not None and found.metric.failed:
        lines.append(f"  {found.metric.name}: {found.metric.failed}")
    first = found.first_divergence
    if first is not None:
        by = "" if first.max_abs is None else f" by up to {first.max_abs:g}"
        lines.append(
            f"first divergence: {first.reference!r}{by}, which {first.op} {first.node!r} produces "
            "in the reference"
        )
    return lines


def _proof_lines(found: Certificate) -> list[str]:
    """Return the verdict and the regions that are the cause."""
    causes = [region for region in found.regions if region.verdict != "proved"]
    lines = [f"the models are {found.verdict}, in {len(causes)} of {len(found.regions)} regions"]
    return lines + _few(
        [
            f"  {cause.reference_value} -> {cause.candidate_value}: {_cause(cause)}"
            for cause in causes
        ]
    )


def _cause(region: Region) -> str:
    parts = [str(region.verdict)]
    if region.differing not in ("", "0"):
        what = "elements differ" if region.method == "constant" else "inputs give other values"
        parts.append(f"{region.differing} {what}")
    witness = region.witness
    if witness is not None:
        what = "element" if region.method == "constant" else "input"
        parts.append(
            f"{what} {witness.input:.9g}: {witness.reference:.9g}, not {witness.candidate:.9g}"
        )
    if region.reason:
        parts.append(region.reason)
    return "; ".join(parts)


def _few(lines: list[str]) -> list[str]:
    more = len(lines) - _SHOWN
    return lines if more <= 0 else [*lines[:_SHOWN], f"  and {more} more"]


def _saved(
    factory: pytest.TempPathFactory, feeds: Mapping[str, Any] | None, replay: str
) -> list[str]:
    """Write inputs on which the models differ; return how to see it again."""
    if not feeds:
        return []
    import numpy as np

    path: Path = factory.mktemp("onnx") / "inputs.npz"
    arrays: dict[str, Any] = {name: np.asarray(array) for name, array in feeds.items()}
    np.savez(path, **arrays)
    return [f"see it again: {replay} --inputs {path}"]


def _name(source: Source) -> str:
    """Return the file of a model; of one in memory, how it would be called."""
    known = source if isinstance(source, str | os.PathLike) else getattr(source, "path", None)
    return "MODEL" if known is None else str(known)
