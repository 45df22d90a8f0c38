"""Advice after a command: one line, usually another command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]


_ROUNDING_DB = 30.0
"""Signal-to-noise ratio of outputs above which rounding alone may explain the difference."""


def next_step(
    document: Document, models: Sequence[object] = (), inputs: Sequence[str] = ()
) -> str | None:
    """Return the next step after a result, in one line; None if there is none.

    The line is a command, usually with a comment, so that it can be pasted as a whole.

    Args:
        document: the JSON document of the result.
        models: the files that the command was given, in their order.
        inputs: options with which the command got its inputs.
    """
    names = [shlex.quote(str(model)) for model in models]
    command = document.get("command")
    if command in ("convert", "fold", "transform") and len(names) == 2:
        return f"qgraph prove {names[0]} {names[1]}  # whether both are equal for every input"
    if command == "check" and len(names) == 2:
        given = "".join(f" {shlex.quote(word)}" for word in inputs)
        return _after_check(document, names[0], names[1], given)
    if command in _PAIRS and len(names) == 2:
        return _PAIRS[command](document, *names)
    if command in _OTHERS:
        return _OTHERS[command](document, names[0] if names else "")
    return None


def _after_check(document: Document, first: str, second: str, inputs: str) -> str:
    if document["verdict"] == "equal":
        return f"qgraph prove {first} {second}  # covers every input, not only these"
    ratios = [output["sqnr_db"] for output in document["outputs"] if output["mismatches"]]
    if all(ratio is not None and ratio >= _ROUNDING_DB for ratio in ratios):
        return f"qgraph prove {first} {second} --within 1step  # whether only rounding differs"
    return f"qgraph reduce {first} {second} -o parts{inputs}  # the nodes that begin to differ"


def _after_prove(document: Document, first: str, second: str) -> str:
    pair = f"{first} {second}"
    match document["verdict"]:
        case "proved":
            return f"qgraph prove {pair} --certificate proof.json  # for 'prove --verify'"
        case "bounded" if not document["limits"]:
            return f"qgraph prove {pair} --within 1step  # judges the bounds by a limit"
        case "bounded":
            return f"qgraph check {pair} --within 1step  # how many codes differ on data"
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


def _after_why(document: Document, first: str, second: str) -> str | None:
    costs = [cost for cost in document["quantizers"] if cost["reason"] is None]
    if document["sqnr_db"] is None:
        return f"qgraph prove {first} {second}  # covers every input, not only these"
    if not costs:
        return None
    node = shlex.quote(str(costs[0]["node"]))
    return f"qgraph plot {second} --node {node} -o worst.svg  # draws the first one"


def _after_info(document: Document, model: str) -> str | None:
    if not document["quantizers"] or not model:
        return None
    return f"qgraph lint {model}  # looks for known traps"


def _after_run(document: Document, model: str) -> str | None:
    if not document["quantizers"]:
        return f"qgraph run {model} --stats  # shows clipping too"
    return f"qgraph lint {model}  # looks for known traps"


def _after_bench(document: Document, _: str) -> str | None:
    first = document["models"][0] if document["models"] else {}
    target = _TARGETS.get(str(document["runtime"]).split(" ")[0])
    if target is None or not first.get("float_nodes") or first.get("integer_nodes"):
        return None
    model = shlex.quote(str(first["path"]))
    return f"qgraph deploy {model} -o deployed.onnx --target {target}  # for integer kernels"


def _after_lint(document: Document, model: str) -> str | None:
    ids = [finding["id"] for each in document["models"] for finding in each.get("findings", ())]
    return f"qgraph explain {ids[0]}  # what it means and what to do" if ids else None


_PAIRS = {"prove": _after_prove, "diff": _after_diff, "why": _after_why}
_TARGETS = {"onnxruntime": "onnxruntime-cpu", "openvino": "openvino-cpu"}
"""Targets by the names of runtimes."""
_OTHERS = {"bench": _after_bench, "info": _after_info, "run": _after_run, "lint": _after_lint}
