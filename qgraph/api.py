"""The commands of qgraph as functions of paths or models, which return reports; their pages."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import onnx_ir as ir

from qgraph.certificate import Certificate
from qgraph.comparison.replay import read, replay
from qgraph.errors import Choice, OptionError, QGraphError, member, require
from qgraph.exactness import Exactness, Verification
from qgraph.inventory.differences import ModelDifferences, diff as differences
from qgraph.inventory.lockfile import check_lock as compared_with_lock, lock_text
from qgraph.inventory.overview import Overview, overview
from qgraph.lint.engine import Ids, LintReport, lint as linted
from qgraph.lint.rule import known_cause, known_causes
from qgraph.model import Model, Source, load
from qgraph.ops.definitions.fake_quantize import Arithmetic
from qgraph.quantizers.dialects.parts import Scales
from qgraph.reasons import Cause
from qgraph.reporting.pages import html_page
from qgraph.reports import Report
from qgraph.storage.archive import Arrays, NamedArrays, arrays_by_name
from qgraph.targets.profile import Profile
from qgraph.targets.reader import profile_of, profiles
from qgraph.text import Displayed
from qgraph.transforms.base import TRANSFORMS, PassInfo, describe, parse_spec
from qgraph.transforms.convert import ConvertDialect, FoldWeights
from qgraph.transforms.rewriting import expect_names, rewrite
from qgraph.verify.verify import verify as checked
from qgraph.version import head

PathLike = str | os.PathLike[str]
Level = Literal["bits", "values", "codes", "near"]
PageForm = Literal["html", "markdown", "sarif", "junit"]


class _ReportForm(Choice):
    """Forms of a report."""

    HTML = "html"
    MARKDOWN = "markdown"
    SARIF = "sarif"
    JUNIT = "junit"


class _PictureForm(Choice):
    """Forms of a picture."""

    SVG = "svg"
    PNG = "png"


def info(model: Source) -> Overview:
    """Return what a model, or the model of a path, contains, and which runtimes can load it.

    Raises:
        ModelError: it is not usable.
    """
    return overview(load(model).ir)


def convert(
    model: Source,
    to: str,
    *,
    exact: Level | Exactness = "values",
    opset: int | None = None,
    fake_quantize: Literal["reference", "plugin"] | Arithmetic = "reference",
    values: str = "*",
    keep_inputs: bool = False,
    output: PathLike | None = None,
) -> Report:
    """Convert all quantizers of a model to another dialect, as a whole or not at all.

    Args:
        model: a :class:`qgraph.Model`, which is changed; or, with ``output``, a path or any model.
        to: name of a dialect: ``qdq``, ``qonnx``, ``openvino``, ``onnx``, or one of a plugin.
        exact: the least level of equality to accept.
        opset: the highest opset to use; None for 21, or that of the model if it is higher.
        fake_quantize: what FakeQuantize means: its definition, or what OpenVINO's CPU plugin does.
        values: patterns of names of the results of quantizers to convert, joined by ``|``.
        keep_inputs: leave initializers that are inputs too; they are not constant then.
        output: file to write.

    Raises:
        OptionError: an option is wrong.
        QGraphError: the model is not usable, or the file cannot be written.
    """
    level = member(Exactness, exact, "exact")
    meaning = member(Arithmetic, fake_quantize, "fake_quantize")
    step = ConvertDialect(to=to, exact=level, opset=opset, fake_quantize=meaning, values=values)
    return _rewritten("convert", model, [step], output, keep_inputs=keep_inputs)


def fold(
    model: Source,
    *,
    exact: Level | Exactness = "values",
    opset: int | None = None,
    scale_type: Literal["float32", "smallest"] | Scales = "float32",
    keep_inputs: bool = False,
    output: PathLike | None = None,
) -> Report:
    """Store the quantized weights of a model as packed codes.

    Args:
        model: a :class:`qgraph.Model`, which is changed; or, with ``output``, a path or any model.
        exact: the least level of equality to accept.
        opset: the highest opset to use; None for 21, or that of the model if it is higher.
        scale_type: float32, or the smallest type that changes no scale.
        keep_inputs: leave initializers that are inputs too; they are not constant then.
        output: file to write.

    Raises:
        OptionError: an option is wrong.
        QGraphError: the model is not usable, or the file cannot be written.
    """
    level, scales = member(Exactness, exact, "exact"), member(Scales, scale_type, "scale_type")
    step = FoldWeights(exact=level, opset=opset, scale_type=scales)
    return _rewritten("fold", model, [step], output, keep_inputs=keep_inputs)


def transform(
    model: Source,
    *steps: str | ir.passes.PassBase,
    keep_inputs: bool = False,
    output: PathLike | None = None,
) -> Report:
    """Apply passes in the order given, all or none.

    Args:
        model: a :class:`qgraph.Model`, which is changed; or, with ``output``, a path or any model.
        steps: passes, or specifications such as ``fold-weights`` or ``convert{to=qdq,exact=bits}``.
        keep_inputs: leave initializers that are inputs too; they are not constant then.
        output: file to write.

    Raises:
        OptionError: a specification is wrong, or there is none.
        QGraphError: the model is not usable, a pass fails, or the file cannot be written.
    """
    if not steps:
        raise OptionError(
            "transform is given no pass, expected passes or specifications such as 'fold-weights'. "
            "qgraph.passes() lists all."
        )
    parsed = [parse_spec(step) if isinstance(step, str) else step for step in steps]
    return _rewritten("transform", model, parsed, output, keep_inputs=keep_inputs)


def _rewritten(
    command: str,
    model: Source,
    steps: Sequence[ir.passes.PassBase],
    output: PathLike | None,
    *,
    keep_inputs: bool,
) -> Report:
    if output is None and not isinstance(model, Model):
        raise OptionError(
            f"{command} changes a model in memory, and got {type(model).__name__}, expected a "
            "qgraph.Model. Load it first (qgraph.load), or name the output."
        )
    require(output, str | os.PathLike | None, "output", "the path of a file to write")
    if output is not None and isinstance(model, str | os.PathLike):
        return rewrite(model, output, *steps, command=command, keep_inputs=keep_inputs)
    changed = load(model) if output is None else load(model).clone()
    report = changed.apply(*steps, keep_inputs=keep_inputs)
    report.command = command
    if not report.modified:
        expect_names(changed, steps)
    if output is not None:
        changed.save(output)
    return report


def diff(reference: Source, candidate: Source, *, keep_inputs: bool = False) -> ModelDifferences:
    """Compare the quantizers of two models, each a path or a model.

    With ``keep_inputs``, initializers that are inputs too are not constant.
    """
    return differences(load(reference).ir, load(candidate).ir, keep_inputs=keep_inputs)


def lock(model: Source, *, keep_inputs: bool = False) -> str:
    """Return the text of the lock file of the quantizers of a model, or of the model of a path.

    With ``keep_inputs``, initializers that are inputs too are not constant.
    """
    return lock_text(load(model).ir, keep_inputs=keep_inputs)


def check_lock(model: Source, lock: PathLike, *, keep_inputs: bool = False) -> ModelDifferences:
    """Compare the quantizers of a model with the lock file of a path; see :func:`lock`.

    Raises:
        QGraphError: the file cannot be read, or is no lock file.
    """
    require(lock, str | os.PathLike, "lock", "the path of a lock file")
    return compared_with_lock(load(model).ir, Path(lock), keep_inputs=keep_inputs)


def verify(
    certificate: Certificate | PathLike,
    reference: Source,
    candidate: Source,
    *,
    prover: bool = True,
) -> Verification:
    """Check a certificate of two models, by the definitions of operators alone.

    Args:
        certificate: the result of :func:`qgraph.prove`; or its file, which must be about the two
            models; these are then given by paths.
        reference: a path or a model.
        candidate: a path or a model.
        prover: let the prover decide again the parts that the checker cannot decide.

    Raises:
        ModelError: the file is no certificate, or a model is not usable.
        EquivalenceError: the file is about other models.
    """
    if not isinstance(certificate, Certificate):
        wanted = "a qgraph.Certificate, or the path of one; Certificate.from_json reads a document"
        require(certificate, str | os.PathLike, "the certificate", wanted)
        paths = [Path(m) for m in (reference, candidate) if isinstance(m, str | os.PathLike)]
        if len(paths) < 2:
            raise OptionError(
                "The certificate is a file, expected paths of models too: it is about files."
            )
        certificate = read(Path(certificate), *paths)
    verification = checked(certificate, load(reference).ir, load(candidate).ir)
    return replay(certificate, verification, reference, candidate) if prover else verification


def passes(name: str | None = None) -> list[PassInfo]:
    """Return the descriptions of all passes, or of one.

    Raises:
        OptionError: there is none of this name.
    """
    return [describe(cls) for cls in (TRANSFORMS if name is None else [TRANSFORMS.find(name)])]


def targets(name: PathLike | None = None) -> list[Profile]:
    """Return the profiles of all targets, or of one, given by name or by the path of a profile.

    Raises:
        OptionError: there is none of this name, or the file is no profile.
    """
    return list(profiles()) if name is None else [profile_of(name)]


def lint(
    model: Source,
    target: PathLike | None = None,
    *,
    select: Ids = (),
    ignore: Ids = (),
    inputs: Arrays | Sequence[NamedArrays] = (),
) -> LintReport:
    """Return the findings of lint in a model.

    Args:
        model: a path or a model, which is not changed.
        target: name or path of a profile; None to apply no rules about kernels of a target.
        select: the rules to apply: ids, prefixes of ids, names or families. All by default.
        ignore: rules to skip.
        inputs: arrays by input name, of one batch or of several, or the path of an archive with
            them (.npz): the model is run on them for the rules about data.

    Raises:
        ModelError: the model is not usable.
        OptionError: there is no such target or rule.
    """
    batches = map(arrays_by_name, inputs if isinstance(inputs, list | tuple) else [inputs])
    return linted(model, target, select=select, ignore=ignore, inputs=list(batches))


@overload
def explain(reason_id: str) -> Cause: ...


@overload
def explain(reason_id: None = None) -> list[Cause]: ...


def explain(reason_id: str | None = None) -> Cause | list[Cause]:
    """Return what the id of a reason or of a rule means, and what to do; without an id, all.

    An id is such as ``QG001`` or ``QG112``, or the name of a rule.

    Raises:
        OptionError: there is none of this id.
    """
    require(reason_id, str | None, "reason_id", "an id such as 'QG001'")
    return list(known_causes().values()) if reason_id is None else known_cause(reason_id)


def plot(
    model: Source,
    node: str,
    *,
    compare: Source | None = None,
    channel: int | None = None,
    form: Literal["svg", "png"] = "svg",
) -> bytes:
    """Return a picture of the output and the error of a quantizer over its input.

    Args:
        model: a path or a model.
        node: name of a node of the quantizer.
        compare: a model whose quantizer at the same position is drawn too.
        channel: index of the channel; None for the one that differs most, else 0.
        form: format of the picture.

    Raises:
        OptionError: there is no such quantizer, or the libraries that draw are not installed.
    """
    from qgraph.inventory.pictures import plot_data
    from qgraph.reporting.drawing import plot as picture, require_drawing

    require(node, str, "node", "the name of a node; qgraph.info lists quantizers")
    chosen = member(_PictureForm, form, "form")
    require_drawing("a plot")
    other = None if compare is None else load(compare).ir
    return picture(plot_data(load(model).ir, node, compare=other, channel=channel), format=chosen)


def report(document: Mapping[str, Any] | Displayed, form: PageForm = "html") -> str:
    """Return a report in another form.

    Args:
        document: a report, a model, or the content of a JSON report.
        form: ``html``, ``markdown``, ``sarif`` or ``junit``.

    Raises:
        OptionError: it is no such report, or has no such form.
    """
    from qgraph.reporting import findings, pages

    wanted = "a report of qgraph, or what a JSON file of one has; json.load reads it"
    require(document, Mapping | Displayed, "the document", wanted)
    document = document.document if isinstance(document, Displayed) else document
    written = {
        _ReportForm.HTML: pages.html_page,
        _ReportForm.MARKDOWN: pages.markdown_report,
        _ReportForm.SARIF: findings.sarif_log,
        _ReportForm.JUNIT: findings.junit_report,
    }
    chosen = member(_ReportForm, form, "form")
    try:
        return written[chosen](document)
    except (AttributeError, LookupError, TypeError) as error:
        raise QGraphError(
            f"The document is no valid report of qgraph ({type(error).__name__}: {error}), "
            "expected what to_json of a report returns."
        ) from error


def page_in_frame(thing: Displayed) -> str | None:
    """Return the page of a model or a report, for notebooks, in a frame that isolates its style.

    None is returned if the libraries that draw are not installed.
    """
    try:
        page = html_page(document_of(thing))
    except OptionError:
        return None
    style = "width: 100%; height: 480px; border: 0"
    return f'<iframe srcdoc="{html.escape(page)}" style="{style}"></iframe>'


def document_of(thing: Any) -> dict[str, Any]:
    """Return the JSON document of a model or a report."""
    if isinstance(thing, Model):
        return (
            head("info") | {"path": str(thing.path or "in memory")} | overview(thing.ir).to_json()
        )
    if isinstance(thing, Overview):
        return head("info") | {"path": "in memory"} | thing.to_json()
    if isinstance(thing, Report):
        return head(thing.command) | thing.to_json()
    document: dict[str, Any] = thing.to_json()
    return document
