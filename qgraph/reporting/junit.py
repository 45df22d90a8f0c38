"""Reports as JUnit test suites: a case for each region of a proof, or each output of a check."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from qgraph.errors import OptionError
from qgraph.files import json_text
from qgraph.junit import Case, junit
from qgraph.reporting.check_view import origin
from qgraph.reporting.prove_view import difference, place, remark


def junit_report(document: Mapping[str, Any]) -> str:
    """Return a JUnit report.

    Args:
        document: a JSON report of check or prove.

    Raises:
        OptionError: it is no such report.
    """
    plain = json.loads(json_text(dict(document)))
    command = plain.get("command")
    found = _CASES.get(command)
    if found is None:
        raise OptionError(
            f"The report is of {command!r}, expected one of {' and '.join(_CASES)}: only these "
            "have cases that fail. Write another form."
        )
    candidate = plain.get("candidate") or {}
    told = str((plain.get("runtimes") or {}).get("sentence", ""))
    return junit(str(command), candidate.get("path"), list(found(plain)), told)


def _of_proof(document: Mapping[str, Any]) -> Iterator[Case]:
    regions = document["regions"]
    for region in regions:
        name = place(region, "reference")
        if region["verdict"] == "proved":
            yield Case(name)
        elif region["verdict"] == "undecided":
            yield Case(name, remark(region) or "no reason is known", "undecided", is_error=True)
        else:
            yield Case(name, difference(region), "different", text=remark(region))
    if not regions:
        verdict = document["verdict"]
        failure = None if verdict == "proved" else f"the verdict is {verdict}"
        yield Case("the whole graph", failure, verdict, is_error=verdict == "undecided")


def _of_check(document: Mapping[str, Any]) -> Iterator[Case]:
    first = document.get("first_divergence")
    text = "" if first is None else origin(first)
    for output in document["outputs"]:
        yield Case(str(output["name"]), output.get("failed"), text=text)
    if metric := document.get("metric"):
        yield Case(f"metric {metric['name']}", metric["failed"], text=text)


_CASES: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Case]]] = {
    "check": _of_check,
    "prove": _of_proof,
}
