"""Running two models on the same inputs and comparing all outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.equivalence.divergence import Run, first_divergence
from qgraph.equivalence.grids import output_step
from qgraph.equivalence.inputs import make_inputs
from qgraph.equivalence.metrics import compare
from qgraph.equivalence.report import CheckReport, CheckVerdict
from qgraph.equivalence.tolerance import Limit, tolerances
from qgraph.errors import ModelError, OptionError
from qgraph.executor import Backend, prepare
from qgraph.model import Source, load

Feeds = Mapping[str, npt.ArrayLike]


def check(
    reference: Source,
    candidate: Source,
    inputs: Feeds | None = None,
    *,
    random: int = 1,
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
    backend: str = Backend.AUTO,
    atol: Limit = 0.0,
    rtol: Limit = 0.0,
    max_steps: Limit | None = None,
    min_sqnr: Limit | None = None,
) -> CheckReport:
    """Run both models in one backend on the same inputs and compare every output.

    Without a tolerance all values have to be equal (-0 equals +0, NaN equals NaN); each tolerance
    that is given has to be met. Inputs and outputs belong together by name, or by position where
    the names differ.

    Args:
        reference: a path or a model.
        candidate: a path or a model.
        inputs: one batch, by the names of the reference; None for random ones.
        random: number of random batches, see :func:`qgraph.equivalence.inputs.make_inputs`.
        seed: of the random batches.
        shapes: of the random inputs, by name; needed where they are dynamic beyond the batch.
        backend: "auto", "numpy" or "ort".
        atol: ``|reference - candidate| <= atol + rtol * |reference|`` for every value; like the
            other tolerances a number for all outputs, or numbers by name.
        rtol: see ``atol``.
        max_steps: largest difference in steps of the quantizer that produces the output.
        min_sqnr: smallest ratio of signal to error, in decibels.

    Raises:
        ModelError: a model is not usable, or their numbers of inputs or outputs differ.
        OptionError: an option is wrong.
        ExecutionError: a model cannot be run on the inputs.
    """
    if random < 1:
        raise OptionError(f"{random} random batches are asked for, expected at least 1.")
    first, second = load(reference), load(candidate)
    notes: list[str] = []
    feeds = _match("input", first.inputs, second.inputs, notes)
    names = _match("output", first.outputs, second.outputs, notes)
    limits = {"atol": atol, "rtol": rtol, "max_steps": max_steps, "min_sqnr": min_sqnr}
    allowed = tolerances(names, **limits)
    batches: list[Feeds] = [inputs] if inputs is not None else []
    if inputs is None:
        numbers = range(random)
        batches += [make_inputs(first, seed=seed, number=n, shapes=shapes) for n in numbers]
    ours, theirs = (prepare(m.ir, backend, as_written=True) for m in (first, second))
    renamed = [{feeds.get(name, name): x for name, x in batch.items()} for batch in batches]
    results = [(ours.run(a), theirs.run(b)) for a, b in zip(batches, renamed, strict=True)]
    outputs, failed, wrong = [], {}, set()
    for value in first.outputs:
        name = str(value.name)
        x, y = [a[name] for a, _ in results], [b[names[name]] for _, b in results]
        found = [output_step(value, np.shape(array)) for array in x]
        steps = [step for step in found if step is not None]
        outputs.append(compare(name, x, y, steps if len(steps) == len(found) else None))
        if not outputs[-1].equal:
            wrong |= {n for n in range(len(x)) if not compare(name, [x[n]], [y[n]]).equal}
        reason = allowed[name].judge(outputs[-1], x, y)
        if reason is not None:
            failed[name] = reason
    divergence = None
    if wrong:
        n = min(wrong)
        divergence = first_divergence(
            Run(first.ir.graph, ours, batches[n]), Run(second.ir.graph, theirs, renamed[n]), names
        )
    verdict = CheckVerdict.DIFFERENT if failed else CheckVerdict.EQUAL
    return CheckReport(verdict, outputs, failed, divergence, notes)


def _match(
    kind: str, reference: Sequence[ir.Value], candidate: Sequence[ir.Value], notes: list[str]
) -> dict[str, str]:
    """Pair names by name; by position where the sets of names differ."""
    ours, theirs = ([str(value.name) for value in side] for side in (reference, candidate))
    if set(ours) == set(theirs):
        return dict(zip(ours, ours, strict=True))
    if len(ours) != len(theirs):
        raise ModelError(
            f"The reference has the {kind}s {', '.join(ours)}, the candidate {', '.join(theirs)}; "
            "expected as many. Compare models of one interface."
        )
    pairs = dict(zip(ours, theirs, strict=True))
    told = ", ".join(f"{a!r} with {b!r}" for a, b in pairs.items() if a != b)
    notes.append(f"{kind}s are matched by position: {told}")
    return pairs
