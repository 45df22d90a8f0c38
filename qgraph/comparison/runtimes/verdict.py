"""Decide whether a difference comes from a rewrite or a runtime, and by which change.

Both models are run by the definitions of their operators, which shows the changes of the rewrite.
Then runtimes run the candidate, without optimizations and by default, which shows their changes. If
a runtime does not accept the candidate as written, it runs it with quantizers in standard
operators. If the defaults make a difference, options that disable known changes are tried one by
one.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from qgraph.comparison.metrics import Comparing, OutputComparison
from qgraph.comparison.report import (
    ROUNDING,
    STOPPED,
    CandidateForm,
    RuntimeReport,
    RuntimeResult,
    StandardForm,
    Stopped,
)
from qgraph.comparison.runtimes.causes import (
    RUNTIMES,
    Options,
    Runtime,
    RuntimeJobs,
    RuntimeLevel,
    Suspect,
    merged,
)
from qgraph.errors import QGraphError
from qgraph.execution.executor import Backend
from qgraph.execution.prepare import prepare
from qgraph.graph.constants import constant, constant_expression, overridable
from qgraph.graph.scopes import bodies, input_of
from qgraph.model import Model
from qgraph.ops.operator import operator_of
from qgraph.quantizers.standardize import standardize
from qgraph.records import dataclass, replace

Outputs = Mapping[str, Any]

_TOGETHER = 3
"""Maximum number of options to combine."""

_FEW = 1.05
"""Options whose remaining errors differ by less than this factor count as equal."""


def judge_runtimes(
    candidate: Model,
    batches: Sequence[Mapping[str, Any]],
    reference_outputs: Sequence[Outputs],
    candidate_outputs: Sequence[Outputs],
    names: Mapping[str, str],
    *,
    runtimes: Sequence[Runtime] = RUNTIMES,
) -> RuntimeReport:
    """Return the changes by the rewrite, and by those of the runtimes that are installed.

    All outputs are those by definition, for each batch; ``names`` are outputs of the candidate, by
    outputs of the reference.
    """
    renamed = [{a: batch[b] for a, b in names.items()} for batch in candidate_outputs]
    rewrite, error = compare_outputs(reference_outputs, renamed)
    written = _Stripped(candidate, batches)
    standard: tuple[StandardForm, _Stripped] | None = None
    results: list[RuntimeResult] = []
    missing = []
    for runtime in runtimes:
        if importlib.util.find_spec(runtime.module) is None:
            missing.append(runtime.name)
            continue
        tried = _try(runtime, written, candidate_outputs, CandidateForm.WRITTEN)
        if all(result.failure is not None for result in tried):
            standard = standard or _standard(candidate, batches, candidate_outputs)
            if standard is not None and standard[0].is_runnable:
                refused = tried[-1].failure
                tried = _try(runtime, standard[1], candidate_outputs, CandidateForm.STANDARD)
                tried = [replace(result, refused=refused) for result in tried]
        results += tried
    return RuntimeReport(
        rewrite, error, results, missing, None if standard is None else standard[0]
    )


def _standard(
    candidate: Model, batches: Sequence[Mapping[str, Any]], expected: Sequence[Outputs]
) -> tuple[StandardForm, _Stripped] | None:
    """Return the candidate in standard operators, and the report on this form."""
    standard = in_standard_operators(candidate, batches)
    if standard is None:
        return None
    executor = prepare(standard.model.ir, Backend.NUMPY)
    outputs, error = compare_outputs(expected, [executor.run(batch) for batch in batches])
    form = StandardForm(standard.respelled, standard.left, outputs, error)
    return form, _Stripped(standard.model, batches)


def _try(
    runtime: Runtime, stripped: _Stripped, expected: Sequence[Outputs], form: CandidateForm
) -> list[RuntimeResult]:
    with RuntimeJobs(stripped.candidate, stripped.batches) as jobs:
        return _Trial(runtime, jobs, expected, stripped, form).results()


class _Stripped:
    """Outputs of the candidate, by definition, without quantizers of its data."""

    def __init__(self, candidate: Model, batches: Sequence[Mapping[str, Any]]) -> None:
        self.candidate = candidate
        self.batches = batches
        self._known: list[tuple[str, list[dict[str, Any]]]] | None = None

    def explain(self, actual: Sequence[Outputs], error: float) -> list[Stopped]:
        """Return the cause "quantizers are left out" if it explains the outputs."""
        for what, outputs in self._outputs():
            left = compare_outputs(outputs, actual)[1]
            if left is not None and left <= max(ROUNDING, STOPPED * STOPPED * error):
                return [Stopped(what, None, left)]
        return []

    def _outputs(self) -> list[tuple[str, list[dict[str, Any]]]]:
        if self._known is None:
            self._known = []
            for bits, noun in ((16, "16-bit quantizers"), (None, "quantizers")):
                model, number = without_quantizers(self.candidate, bits)
                if not number:
                    continue
                try:
                    executor = prepare(model.ir, Backend.NUMPY)
                    outputs = [executor.run(batch) for batch in self.batches]
                except QGraphError:  # the remaining model may not be runnable
                    continue
                what = f"{number} {noun} of data are left out"
                self._known.append((what, outputs))
        return self._known


@dataclass(frozen=True, eq=False)
class _Trial:
    """Test of one runtime at all its levels."""

    _runtime: Runtime
    _jobs: RuntimeJobs
    _expected: Sequence[Outputs]
    _stripped: _Stripped
    _form: CandidateForm

    def results(self) -> list[RuntimeResult]:
        """Return the result of each level."""
        levels = self._runtime.levels
        answers = self._jobs.run(self._runtime.module, [level.options for level in levels])
        version = self._jobs.versions.get(self._runtime.module, "")
        name = f"{self._runtime.name} {version.split('-')[0]}".strip()
        results: list[RuntimeResult] = []
        least = 0.0
        for level, answer in zip(levels, answers, strict=True):
            if answer.failure is not None:
                enabling: Sequence[Stopped] = ()
                if any(other.failure is None for other in answers):
                    enabling = self._enabling(level)
                failed = RuntimeResult(name, level.name, level.setting, suspects=enabling)
                results.append(replace(failed, failure=answer.failure, form=self._form))
                continue
            outputs, error = compare_outputs(self._expected, answer.batches)
            amount = math.inf if error is None else error
            if level is levels[0]:
                least = amount
            suspects: Sequence[Stopped] = ()
            if amount > ROUNDING:
                suspects = self._stripped.explain(answer.batches, amount)
            if not suspects and amount > ROUNDING and amount > least and level is not levels[0]:
                earlier = self._same(results, outputs)
                suspects = self._suspects(level, amount, least) if earlier is None else earlier
            results.append(
                RuntimeResult(
                    name, level.name, level.setting, outputs, error, suspects, form=self._form
                )
            )
        return results

    def _same(
        self, results: Sequence[RuntimeResult], outputs: Sequence[OutputComparison]
    ) -> Sequence[Stopped] | None:
        """Return the causes found at an earlier level with the same outputs."""
        alike = (result for result in results if list(result.outputs) == list(outputs))
        return next((result.suspects for result in alike if result.suspects), None)

    def _suspects(self, level: RuntimeLevel, error: float, least: float) -> list[Stopped]:
        """Choose options that remove the difference, greedily."""
        options, left = level.options, error
        usable = [each for each in self._runtime.suspects if "level" not in each.options]
        if level is self._runtime.levels[-1]:
            usable = list(self._runtime.suspects)
        suspects: list[Stopped] = []
        while usable and len(suspects) < _TOGETHER:
            errors = self._errors(options, usable)
            best = min(errors)
            if not best < left / _FEW:
                break
            # earlier causes are more specific than later ones
            index = next(n for n, each in enumerate(errors) if each <= max(best * _FEW, ROUNDING))
            chosen = usable.pop(index)
            left = errors[index]
            options = merged(options, chosen.options)
            suspects.append(Stopped(chosen.what, chosen.option, left))
            if left <= max(error * STOPPED, least, ROUNDING):
                break
        return suspects

    def _enabling(self, level: RuntimeLevel) -> list[Stopped]:
        """Return the first option with which a failing level runs."""
        usable = [each for each in self._runtime.suspects if "level" not in each.options]
        errors = self._errors(level.options, usable)
        works = [n for n, error in enumerate(errors) if error < math.inf]
        return [Stopped(usable[n].what, usable[n].option, errors[n]) for n in works[:1]]

    def _errors(self, options: Options, suspects: Sequence[Suspect]) -> list[float]:
        tried = [merged(options, suspect.options) for suspect in suspects]
        answers = self._jobs.run(self._runtime.module, tried)
        errors = (
            compare_outputs(self._expected, answer.batches)[1] if answer.failure is None else None
            for answer in answers
        )
        return [math.inf if error is None else error for error in errors]


def compare_outputs(
    expected: Sequence[Outputs], actual: Sequence[Outputs]
) -> tuple[list[OutputComparison], float | None]:
    """Return the differences of the outputs, for each output and in total."""
    comparisons = {name: Comparing(name) for name in (expected[0] if expected else ())}
    for ours, theirs in zip(expected, actual, strict=True):
        for name, comparing in comparisons.items():
            comparing.add(ours[name], theirs[name])
    outputs = [comparing.result() for comparing in comparisons.values()]
    powers = [comparing.power for comparing in comparisons.values()]
    signal, noise = (sum(power[part] for power in powers) for part in (0, 1))
    if noise == 0:
        return outputs, 0.0
    return outputs, math.sqrt(noise / signal) if signal and math.isfinite(noise) else None


def without_quantizers(model: Model, bits: int | None) -> tuple[Model, int]:
    """Return a copy without Q/DQ pairs of data, of some width or all, and how many were removed."""
    copy = model.clone()
    number = 0
    for node in list(copy.ir.graph):
        data = node.inputs[0] if node.inputs else None
        if node.domain != "" or node.op_type != "QuantizeLinear" or data is None:
            continue
        if constant_expression(data) is not None or bits not in (None, _width(node)):
            continue
        for pair in _readers(node.outputs[0]):
            if pair.outputs[0].is_graph_output():
                # an output keeps its name; other readers skip the quantizer
                uses = list(pair.outputs[0].uses())
                for reader, index in uses:
                    reader.replace_input_with(index, data)
                number += bool(uses)
                continue
            pair.outputs[0].replace_all_uses_with(data)
            number += 1
    return copy, number


def _readers(codes: ir.Value) -> Iterator[ir.Node]:
    for node in codes.consumers():
        if node.op_type == "DequantizeLinear" and node.inputs[0] is codes:
            yield node
        elif node.op_type in ("Clip", "Identity") and node.inputs[0] is codes:
            yield from _readers(node.outputs[0])


def _width(node: ir.Node) -> int | None:
    codes = node.outputs[0].dtype
    if codes is not None:
        return codes.bitwidth
    zero = constant(input_of(node, 2))
    if zero is not None:
        return ir.DataType.from_numpy(zero.dtype).bitwidth
    stated = node.attributes.get_int("output_dtype", ir.DataType.UINT8.value)
    return ir.DataType(stated or ir.DataType.UINT8.value).bitwidth


_THEIRS = frozenset({"", "ai.onnx", "com.microsoft"})


@dataclass(frozen=True)
class Standardized:
    """A model whose quantizers are in standard operators, except for those that are ``left``."""

    model: Model
    respelled: int
    left: Sequence[str]


def in_standard_operators(
    model: Model, batches: Sequence[Mapping[str, Any]]
) -> Standardized | None:
    """Return ``model`` with each quantizer in standard operators that are equal in every bit.

    None if there is nothing to rewrite, or if the batches feed initializers, which become constants
    in this form.
    """
    fixed = {value.name for value in overridable(model.ir.graph)}
    if any(not fixed.isdisjoint(batch) for batch in batches):
        return None
    standardized = standardize(model.ir)
    if standardized is model.ir:
        return None
    before, left = _quantizers(model.ir), _quantizers(standardized)
    return Standardized(Model(standardized), len(before) - len(left), left)


def _quantizers(model: ir.Model) -> list[str]:
    """Return the operators of quantizers that ONNX does not define; FakeQuantize has any domain."""
    return [
        node.op_type
        for body in bodies(model)
        for node in body
        if node.domain not in _THEIRS or node.op_type == "FakeQuantize"
        if operator_of(node) is not None and node.op_identifier() not in model.functions
    ]
