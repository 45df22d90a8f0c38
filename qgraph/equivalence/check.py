"""Running two models on the same inputs and comparing all outputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.equivalence.grids import output_step
from qgraph.equivalence.inputs import make_inputs
from qgraph.equivalence.metrics import OutputComparison, compare, within
from qgraph.equivalence.report import CheckReport, CheckVerdict, Divergence
from qgraph.errors import ModelError, OptionError
from qgraph.executor import Backend, Executor, prepare
from qgraph.model import Model, Source, load
from qgraph.report import operator_name

Feeds = Mapping[str, npt.ArrayLike]
Limit = float | Mapping[str, float]
"""A number for all outputs, or numbers by output name."""

_TAPS_AT_ONCE = 32
"""How many inner tensors are held at a time while looking for the first that differs."""


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

    Without a tolerance all values have to be equal (-0 equals +0, NaN equals NaN). Each tolerance
    that is given has to be met. Inputs and outputs belong together by name, or by position where
    the names differ.

    Args:
        reference, candidate: paths or models.
        inputs: one batch, by the names of the reference; None for random ones.
        random: number of random batches, see :func:`qgraph.equivalence.inputs.make_inputs`.
        seed: of the random batches.
        shapes: of the random inputs, needed where they are dynamic beyond the batch.
        backend: "auto", "numpy" or "ort".
        atol, rtol: ``|reference - candidate| <= atol + rtol * |reference|`` for every value.
        max_steps: largest difference in steps of the quantizer that produces the output.
        min_sqnr: smallest ratio of signal to error, in decibels.

    Raises:
        ModelError: a model is not usable, or they differ in their number of inputs or outputs.
        OptionError: an option is wrong.
        ExecutionError: a model cannot be run on the inputs.
    """
    models = load(reference), load(candidate)
    notes: list[str] = []
    names = _match("input", *(model.inputs for model in models), notes)
    outputs = _match("output", *(model.outputs for model in models), notes)
    limits = {"atol": atol, "rtol": rtol, "max_steps": max_steps, "min_sqnr": min_sqnr}
    tolerances = {name: _limits(limits, name, outputs) for name in outputs}
    if random < 1:
        raise OptionError(f"{random} random batches are asked for, expected at least 1.")
    batches: list[Feeds] = [inputs] if inputs is not None else []
    if inputs is None:
        made = range(random)
        batches += [make_inputs(models[0], seed=seed, number=n, shapes=shapes) for n in made]
    first, second = (prepare(model.ir, backend) for model in models)
    results = [(first.run(b), second.run(_renamed(b, names))) for b in batches]
    compared, failed = [], {}
    for value in models[0].outputs:
        name = str(value.name)
        x, y = [r[name] for r, _ in results], [c[outputs[name]] for _, c in results]
        steps = [output_step(value, np.shape(array)) for array in x]
        compared.append(compare(name, x, y, steps))
        reason = _judge(compared[-1], tolerances[name], x, y)
        if reason is not None:
            failed[name] = reason
    divergence = None
    wrong = [k for k, (r, c) in enumerate(results) if any(_differs(r[n], c[outputs[n]]) for n in outputs)]
    if wrong:
        batch = batches[wrong[0]]
        divergence = _first_divergence(
            (models[0].ir.graph, models[1].ir.graph),
            (first, second),
            (batch, _renamed(batch, names)),
            outputs,
        )
    verdict = CheckVerdict.DIFFERENT if failed else CheckVerdict.EQUAL
    return CheckReport(verdict, compared, failed, divergence, notes)
