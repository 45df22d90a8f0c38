"""Advice after a command: one line, usually another command."""

from __future__ import annotations

import itertools
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
