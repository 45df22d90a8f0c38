"""Reports for people: pages, and the line of advice after a command, usually another command.

Pages are HTML that needs no network, script or font, and Markdown for CI summaries.
"""

from __future__ import annotations

import importlib
import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qgraph.errors import OptionError
from qgraph.reporting.view import Cell, Column, Page, Section, Table, Tone
from qgraph.text import as_read, markdown, markdown_code, one_line

_PAGES = {
    "bench": "runtimes_view.bench_page",
    "check": "check_view.check_page",
    "convert": "rewrite_view.rewrite_page",
    "deploy": "deploy_view.deploy_page",
    "fold": "rewrite_view.rewrite_page",
    "info": "model_view.info_page",
    "lint": "lint_view.lint_page",
    "prove": "prove_view.prove_page",
    "run": "model_view.run_page",
    "transform": "rewrite_view.rewrite_page",
    "why": "lint_view.why_page",
}
"""The function that makes the page, by command; its module is imported when it is needed."""


def page_of(document: Mapping[str, Any]) -> Page:
    """Return the page of a JSON report; its charts are drawn on demand.

    Data that :func:`qgraph.inventory.pictures.illustrated` added are drawn.

    Raises:
        OptionError: it is no report of a command that has a page.
    """
    plain = as_read(dict(document))
    home = _PAGES.get(str(plain.get("command")))
    if home is None:
        raise OptionError(
            f"The report is of {plain.get('command')!r}, expected one of {', '.join(_PAGES)}. "
            f"Write it with one of these commands."
        )
    module, name = home.split(".")
    make = getattr(importlib.import_module(f"qgraph.reporting.{module}"), name)
    page: Page = make(plain)
    return page


_SIGNS = {Tone.GOOD: "✓", Tone.BAD: "✗", Tone.OPEN: "≈", Tone.PLAIN: "•"}
_UNDECIDED = "?"


def html_page(document: Mapping[str, Any]) -> str:
    """Return a report, see :func:`page_of`, as an HTML page.

    Raises:
        OptionError: it is no such report, or the libraries that draw are not installed.
    """
    from qgraph.reporting.drawing import require_drawing

    require_drawing("an HTML page")
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=_shown)
    template = environment.from_string(_resource("page.html.jinja"))
    style = _resource("page.css").replace("\n", " ")
    # The style sheet is part of the package; escaping would break its quotes.
    from markupsafe import Markup

    page = page_of(document)
    sign = _UNDECIDED if page.verdict == "undecided" else _SIGNS[page.tone]
    return template.render(page=page, style=Markup(style), sign=sign) + "\n"


def _shown(value: object) -> object:
    """Return a value without control characters, which HTML does not allow."""
    from markupsafe import Markup

    return one_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _resource(name: str) -> str:
    from importlib.resources import files  # only HTML pages need it

    return files("qgraph.reporting").joinpath(name).read_text("utf-8")


_ROWS = 100
"""Maximum number of rows of a table: job summaries have a limit of bytes."""


def markdown_report(document: Mapping[str, Any]) -> str:
    """Return a report, see :func:`page_of`, in GitHub's Markdown.

    Raises:
        OptionError: it is no such report.
    """
    return "\n".join(_page(page_of(document))) + "\n"


def _page(page: Page) -> Iterator[str]:
    yield f"## {page.command.capitalize()}: {page.verdict}"
    yield ""
    yield markdown(page.sentence)
    yield ""
    for file in page.files:
        remark = f", {file.remark}" if file.remark else ""
        yield f"- {file.role}: {markdown_code(file.name)}{remark}"
    if page.facts:
        yield "- " + ", ".join(f"{fact.name}: {markdown(fact.value)}" for fact in page.facts)
    for section in page.sections:
        if not section.is_drawn_only:
            yield from _section(section)
    if page.closing:
        yield ""
        yield from (f"- {markdown(line)}" for line in page.closing)


def _section(section: Section) -> Iterator[str]:
    yield ""
    yield f"### {section.title}"
    for text in section.text:
        yield ""
        yield markdown(text)
    if section.points:
        yield ""
        yield from (f"- {markdown(point)}" for point in section.points)
    for table in section.tables:
        yield ""
        if table.folded:
            label = f"{len(table.rows)} {table.label}"
            yield from (f"<details><summary>{label}</summary>", "")
        yield from _table(table)
        if table.folded:
            yield from ("", "</details>")


def _table(table: Table) -> Iterator[str]:
    columns = [table.columns[index] for index in table.shown]
    yield _row([column.name for column in columns])
    yield _row(["---:" if column.number else "---" for column in columns])
    for row in table.rows[:_ROWS]:
        yield _row([_cell(table.columns[index], row[index]) for index in table.shown])
    if len(table.rows) > _ROWS:
        yield ""
        yield f"{len(table.rows) - _ROWS} more are in the JSON report."


def _cell(column: Column, cell: Cell) -> str:
    return markdown_code(cell.text) if column.code else markdown(cell.text)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


Document = Mapping[str, Any]


_ROUNDING_DB = 30.0
"""Signal-to-noise ratio of outputs above which rounding alone may explain the difference."""


def next_step(
    document: Document, models: Sequence[object] = (), inputs: Sequence[str] = ()
) -> str | None:
    """Return the next step after a result, in one line; None if there is none.

    The line is a command, usually with a comment, so that it can be pasted as a whole. ``models``
    are the files that the command was given, in their order; ``inputs`` are options to repeat.
    """
    names = [shlex.quote(str(model)) for model in models]
    command = str(document.get("command"))
    given = "".join(f" {shlex.quote(word)}" for word in inputs)
    if command == "check" and len(names) == 2:
        return _after_check(document, names[0], names[1], given)
    if command == "prove" and given and document["verdict"] == "proved":
        return f"qgraph prove {' '.join(names)}{given}  # checks it without the search"
    if command in _PAIRS and len(names) == 2:
        return _PAIRS[command](document, *names)
    if command in _OTHERS:
        return _OTHERS[command](document, names[0] if names else "MODEL")
    return _ADVICE.get((command, len(names)), "").format(*names) or None


def _after_check(document: Document, first: str, second: str, inputs: str) -> str:
    if document["verdict"] == "equal":
        limits = _limits(document.get("bounds") or {})
        return f"qgraph prove {first} {second}{limits}  # covers every input, not only these"
    ratios = [output["sqnr_db"] for output in document["outputs"] if output["mismatches"]]
    if all(ratio is not None and ratio >= _ROUNDING_DB for ratio in ratios):
        return f"qgraph prove {first} {second} --within 1step  # whether only rounding differs"
    return f"qgraph reduce {first} {second} -o parts{inputs}  # the nodes that begin to differ"


def _limits(document: Document) -> str:
    """Return the options that repeat the limits of bounds, and the order of additions."""
    limits = "".join(f" --within {shlex.quote(limit)}" for limit in document.get("limits", ()))
    is_ordered = limits and document["order"] != "any"
    return f"{limits} --order {document['order']}" if is_ordered else limits


def _after_prove(document: Document, first: str, second: str) -> str:
    pair = f"{first} {second}"
    match document["verdict"]:
        case "proved":
            return f"qgraph prove {pair} --certificate proof.json  # for 'prove --verify'"
        case "bounded" if not document["limits"]:
            return f"qgraph prove {pair} --within 1step  # judges the bounds by a limit"
        case "bounded":
            return f"qgraph check {pair}{_limits(document)}  # how many codes differ on data"
        case "different":
            return f"qgraph prove {pair} --witness w.npz  # an input on which outputs differ"
    reasons = (region.get("reason_id") for region in document["regions"])
    reason_id = next(filter(None, reasons), None)
    if reason_id is not None:
        return f"qgraph explain {reason_id}  # why it is undecided, and what to do"
    return f"qgraph check {pair} --probes 2  # compares them on data"


def _after_diff(document: Document, first: str, second: str) -> str:
    if document["verdict"] == "same":
        return f"qgraph prove {first} {second}  # compares everything else too"
    return f"qgraph why {first} {second}  # ranks quantizers by what they cost"


def _after_why(document: Document, first: str, second: str) -> str:
    costs = [cost for cost in document["quantizers"] if cost["reason"] is None]
    if document["sqnr_db"] is None:
        return f"qgraph prove {first} {second}  # covers every input, not only these"
    if not costs:
        return f"qgraph diff {first} {second}  # shows which quantizers correspond"
    if costs[0].get("is_weight"):
        return f"qgraph run {second} --stats  # shows the codes that weights and data use"
    node = shlex.quote(str(costs[0]["node"]))
    return f"qgraph plot {second} --node {node} -o worst.svg  # draws the first one"


def _after_run(document: Document, model: str) -> str:
    if not document["quantizers"]:
        return f"qgraph run {model} --stats  # shows clipping too"
    return f"qgraph lint {model}  # looks for known traps"


def _after_bench(document: Document, _: str) -> str:
    first, *others = document["models"]
    model = shlex.quote(str(first["path"]))
    target = _TARGETS.get(str(document["runtime"]).split(" ")[0])
    is_float = not any(each.get("integer_nodes") for each in document["models"])
    if target is not None and first.get("float_nodes") and is_float:
        taken = [each["path"] for each in document["models"]]
        names = (f"deployed{number or ''}.onnx" for number in itertools.count())
        out = next(name for name in names if name not in taken)
        return f"qgraph deploy {model} -o {out} --target {target}  # for integer kernels"
    if not others:
        return f"qgraph info {model}  # shows the quantizers"
    second = shlex.quote(str(others[0]["path"]))
    return f"qgraph check {model} {second}  # whether both give equal outputs"


def _after_lint(document: Document, model: str) -> str:
    ids = [finding["id"] for each in document["models"] for finding in each.get("findings", ())]
    if ids:
        return f"qgraph explain {ids[0]}  # what it means and what to do"
    if document["target"] is None:
        return "qgraph targets  # names for --target, with which lint finds more"
    target = shlex.quote(str(document["target"]))
    return f"qgraph deploy {model} --target {target} --dry-run  # shows the kernel of each layer"


def _after_targets(document: Document, name: str) -> str:
    if "targets" in document:
        name = shlex.quote(str(document["targets"][0]["name"]))
        return f"qgraph targets {name}  # shows the facts of one, with their sources"
    return f"qgraph deploy MODEL -o deployed.onnx --target {name}  # rewrites a model for it"


def _after_passes(document: Document, _: str) -> str:
    if "passes" in document:
        return f"qgraph passes {document['passes'][0]['name']}  # shows the options of one"
    return f"qgraph transform MODEL -o out.onnx -p {document['name']}  # applies it"


def _after_explain(document: Document, _: str) -> str:
    if "ids" in document:
        return f"qgraph explain {document['ids'][0]['id']}  # explains one of them"
    if document.get("is_rule"):
        return f"qgraph lint MODEL --select {document['id']}  # looks for it in a model"
    return "qgraph explain  # lists all ids"


_PAIRS = {"prove": _after_prove, "diff": _after_diff, "why": _after_why}
_TARGETS = {"onnxruntime": "onnxruntime-cpu", "openvino": "openvino-cpu"}
"""Targets by the names of runtimes."""
_OTHERS = {
    "bench": _after_bench,
    "explain": _after_explain,
    "lint": _after_lint,
    "passes": _after_passes,
    "run": _after_run,
    "targets": _after_targets,
}
_LINT = "qgraph lint {0}  # looks for known traps"
_ADVICE = {
    ("info", 1): _LINT,
    ("lock", 1): _LINT,
    ("lock", 2): "qgraph lock {0} --check {1}  # compares a later version of the model with it",
    ("plot", 1): "qgraph run {0} --stats  # shows which of the codes random data use",
    ("plot", 2): "qgraph diff {0} {1}  # compares the parameters of all quantizers",
    ("prove --verify", 2): "qgraph check {0} {1}  # compares the models on data too",
    ("reduce", 2): "qgraph prove {0} {1}  # names the regions that differ",
} | {
    (command, number): text
    for command in ("convert", "fold", "transform")
    for number, text in (
        (1, _LINT),
        (2, "qgraph prove {0} {1}  # whether both are equal for every input"),
    )
}
"""Advice by command and number of models."""
