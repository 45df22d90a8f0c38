"""Views of runtimes: changes by the rewrite and by runtimes, with causes; and times of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qgraph.records import dataclass
from qgraph.reporting.view import (
    Cell,
    Column,
    Columns,
    File,
    KeyFigure,
    Page,
    Row,
    Section,
    Table,
    Tone,
    numbers,
)
from qgraph.text import NONE, amount, counted

Part = Mapping[str, Any]


def runtimes_section(runtimes: Mapping[str, Any] | None) -> Iterator[Section]:
    """Yield the section on the changes by the rewrite and by runtimes."""
    if not runtimes:
        return
    error = _error(runtimes["rewrite"]["error"])
    rows: list[Row] = [["definition: candidate against reference", "", "", error, "", ""]]
    for result in runtimes["results"]:
        causes, failure = result["culprits"], result["failure"]
        rows.append(
            [
                str(result["runtime"]),
                str(result["level"]),
                str(result.get("form") or ""),
                Cell("does not run", Tone.OPEN) if failure else _error(result["error"]),
                failure or "; ".join(str(cause["what"]) for cause in causes),
                "; ".join(str(cause["option"]) for cause in causes if cause["option"]),
            ]
        )
    points = [f"{name} is not installed and was not tested." for name in runtimes["missing"]]
    refused = {str(r["runtime"]): r["refused"] for r in runtimes["results"] if r.get("refused")}
    points += [
        f"{runtime} does not run the candidate as written: {reason}"
        for runtime, reason in refused.items()
    ]
    columns: Columns = [
        "computed by",
        "level",
        "given",
        *numbers("error"),
        "because of",
        "disabled by",
    ]
    sentence = str(runtimes["sentence"])
    yield Section(
        "Rewrite or runtime",
        [f"{sentence[:1].upper()}{sentence[1:]}."],
        points,
        tables=[Table("runtimes", columns, rows)],
        detail=True,
    )


def _error(error: float | None) -> Cell:
    if error is None:
        return Cell("not finite", Tone.BAD)
    return Cell("exact", Tone.GOOD) if error == 0 else Cell(f"{100 * error:.3g} %", Tone.OPEN)


def runtime_sentence(runtimes: Part, *, rounding: float, stopped: float) -> str:
    """Return one sentence about the origin of differences, from the part ``runtimes`` of a check.

    Relative errors up to ``rounding`` are explained by another order of summation. An option
    removes a difference if less than the fraction ``stopped`` of it remains.
    """
    words, rewrite = _Words(rounding, stopped), runtimes["rewrite"]
    error = rewrite["error"]
    if _is_equal(rewrite):
        parts = ["the rewrite is exact"]
    elif error is not None and error <= rounding:
        parts = [f"the rewrite is equal except for {error:.1g} of the outputs' norm"]
    else:
        parts = [f"the rewrite changes the outputs by {words.share(error)}"]
    names = dict.fromkeys(result["runtime"] for result in runtimes["results"])
    parts += [
        words.of_runtime(name, [each for each in runtimes["results"] if each["runtime"] == name])
        for name in names
    ]
    if runtimes["standard_form"] is not None:
        parts.append(words.of_form(runtimes["standard_form"]))
    return "; ".join(parts)


def _is_equal(part: Part) -> bool:
    """Return whether all outputs are equal; without an error they cannot be compared."""
    return part["error"] is not None and not any(each["mismatches"] for each in part["outputs"])


@dataclass(frozen=True)
class _Words:
    rounding: float
    stopped: float

    def share(self, error: float | None) -> str:
        if error is None:
            return "an infinite amount"
        if error == 0:
            return "0"
        return f"{100 * error:.2g} %" if error > self.rounding else f"{error:.1g}"

    def of_form(self, form: Part) -> str:
        """Return a text on the standard form and its equality."""
        text = f"standard form: {counted(form['respelled'], 'quantizer')} in standard operators"
        if form["left"]:
            names = ", ".join(dict.fromkeys(form["left"]))
            return f"{text}, but there is none for {names}, so it was not run"
        text += ", each proved equal in every bit"
        if _is_equal(form):
            return f"{text}, all outputs equal on these inputs"
        return f"{text}, outputs on these inputs differ by {self.share(form['error'])}"

    def of_runtime(self, runtime: str, results: Sequence[Part]) -> str:
        """Return a text on the last level that makes a difference, or the worst level."""
        refused = results[0]["refused"]
        failed = [result for result in results if result["failure"] is not None]
        ran = [result for result in results if result["failure"] is None]
        if not ran:
            reason = failed[-1]["failure"]
            also = "" if refused is None else f", and in standard form neither ({reason})"
            return f"{runtime} does not run the candidate ({refused or reason}){also}"
        text = self._changes(runtime, ran)
        for result in failed[:1]:
            levels = " and ".join(each["setting"] for each in failed)
            text += f"; it does not run {levels} ({result['failure']})"
            text += "".join(f", but with {cause['option']}" for cause in result["culprits"])
        return text

    def _changes(self, runtime: str, results: Sequence[Part]) -> str:
        """Return a text on the changes of a runtime to the candidate, over the levels that run."""
        first = results[0]
        what = "it" if first["form"] == "as written" else "its standard form"
        bad = [each for each in results if each["error"] is None or each["error"] > self.rounding]
        if not bad:
            worst = max(result["error"] for result in results)
            text = f"{runtime} computes {what} as defined"
            return text if worst == 0 else f"{text} except for {worst:.1g}, by order of summation"
        last = bad[-1]
        is_default = last["level"] == "default"
        subject = (
            f"{runtime}'s defaults change" if is_default else f"{runtime} {last['setting']} changes"
        )
        text = f"{subject} {what} by {self.share(last['error'])}"
        if first is not last and first is bad[0]:
            text += f" (and by {self.share(first['error'])} {first['setting']})"
        if not last["culprits"]:
            return text
        causes = ", and ".join(
            f"{cause['what']} ({cause['option'] or 'no known option disables it'})"
            for cause in last["culprits"]
        )
        left = last["culprits"][-1]["error"]
        if left > max(self.rounding, self.stopped * (last["error"] or 0.0)):
            causes += f"; {self.share(left)} is left, which no known option removes"
        return f"{text}: {causes}"


_KERNELS = 6
"""Maximum number of kernels that are named; the JSON report has all."""


def bench_page(document: Mapping[str, Any]) -> Page:
    """Return the page of the times of some models."""
    models = document["models"]
    first, last = models[0], models[-1]
    ratio = float(last["ratio"])
    faster = ratio < 1
    tone = Tone.PLAIN if len(models) == 1 else Tone.GOOD if faster else Tone.OPEN
    settings = ", ".join(f"{key}={value}" for key, value in document["options"].items())
    return Page(
        "bench",
        str(document["qgraph"]),
        _headline(len(models), ratio),
        tone,
        f"{document['runtime']}, {counted(document['threads'], 'thread')}, batch "
        f"{document['batch']}, {counted(document['rounds'], 'round')} in turns"
        + (f", with {settings}." if settings else "."),
        [File(f"model {n}", model["path"]) for n, model in enumerate(models, 1)],
        [KeyFigure("median of the first", f"{amount(first['median_ms'], 4)} ms")],
        list(_sections(models)),
        [],
    )


def _headline(count: int, ratio: float) -> str:
    if count == 1:
        return "timed"
    if ratio < 1:
        return f"the last model is {1 / ratio:.2f} times as fast as the first"
    return f"the last model takes {ratio:.2f} times as long as the first"


def _sections(models: list[Mapping[str, Any]]) -> Iterator[Section]:
    columns: Columns = [
        Column("model", code=True),
        *numbers("median ms", "quartiles ms", "ratio", "integer", "float"),
        *numbers("first ms", "load ms", "MB", spare=True),
    ]
    rows: list[Row] = [_row(n, model) for n, model in enumerate(models, 1)]
    text = (
        "ratio: median over the rounds of the time divided by that of the first model. integer, "
        "float: convolutions and matrix products that the runtime executes on integer codes and "
        "on floats. MB: largest memory of the process, runtime included."
    )
    yield Section("Times", [text], tables=[Table("models", columns, rows)])
    shown: list[Row] = [
        [_name(number, model), _kernels(model["kernels"])] for number, model in enumerate(models, 1)
    ]
    table = Table("models", [Column("model", code=True), "kernels"], shown)
    yield Section("Kernels", ["What the runtime executes."], tables=[table])


def _kernels(counts: Mapping[str, int]) -> str:
    listed = [f"{count} {name}" for name, count in list(counts.items())[:_KERNELS]]
    rest = len(counts) - _KERNELS
    return ", ".join([*listed, f"{rest} others"] if rest > 0 else listed)


def _row(number: int, model: Mapping[str, Any]) -> Row:
    ratio = float(model["ratio"])
    tone = Tone.PLAIN if number == 1 else Tone.GOOD if ratio < 1 else Tone.OPEN
    return [
        _name(number, model),
        amount(model["median_ms"], 4),
        f"{amount(model['low_ms'], 4)} .. {amount(model['high_ms'], 4)}",
        Cell(f"{ratio:.3f}", tone),
        str(model["integer_nodes"]),
        str(model["float_nodes"]),
        amount(model["first_run_ms"], 4),
        amount(model["load_ms"], 4),
        NONE if model["peak_mb"] is None else f"{model['peak_mb']:.0f}",
    ]


def _name(number: int, model: Mapping[str, Any]) -> str:
    return f"model {number}" if model["path"] is None else str(model["path"])
