"""Advice after a deployment: the command that repeats the proof, and the next step."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from qgraph.bound import Bounding
from qgraph.reporting.deploy_view import not_loaded
from qgraph.text import counted


def proof_command(request: Bounding, source: str, result: str) -> str:
    """Return the command line that repeats the proof of a deployment.

    Args:
        request: the options of bounds.
        source: path of the input.
        result: path of the deployed model.
    """
    words = ["qgraph", "prove", source, result]
    for limit in request.limits:
        words += ["--within", str(limit)]
    words += ["--against", str(request.against), "--order", request.order]
    for name, (low, high) in request.ranges.items():
        words += ["--range", f"{name}={low!r}:{high!r}"]
    return shlex.join(words)


def advice(document: Mapping[str, Any]) -> str:
    """Return the most useful next step after a deployment, in one line.

    Args:
        document: the JSON report.
    """
    left = [layer for layer in document["layers"] if layer["kernel"] is None]
    options = [f"{key}={value}" for key, value in document["session_options"].items()]
    measured = document["measured"]
    needed = f"set {', '.join(options)} in the session that runs the result"
    if not document["layers"] and options:
        return needed
    if not document["layers"]:
        return (
            "quantize the operands of convolutions and matrix products to integers of 8 bits or "
            "fewer, as with Brevitas, NNCF or onnxruntime.quantization"
        )
    refusal = not_loaded(document)
    if refusal is not None:
        known = refusal.rpartition("[")[2].rstrip("]")
        return f"'qgraph explain {known}' says what to do about what {document['target']} refuses"
    if document["refusal"]:
        return f"change what {document['target']} refuses, then deploy again"
    if document["summary"].get("saturating_layers"):
        return "'qgraph explain QG239' says how to keep the sums of these layers within 16 bits"
    tuned = document["tuning"]
    if left and not tuned:
        ids = dict.fromkeys(layer["reason_id"] for layer in left if layer["reason_id"])
        what = counted(len(left), "layer")
        return f"'qgraph explain {next(iter(ids))}' says what to do about {what} in float"
    if measured is not None and measured["ratio_to_float"] >= 1 and not tuned:
        return "the result is not faster than the network in float; try --tune"
    if options:
        return needed
    if document["accuracy"] is None:
        return "--inputs DATA.npz --labels NAME shows the accuracy before and after on your data"
    if measured is None:
        return "--measure shows the time beside that of the input and of the network in float"
    return "--certificate FILE keeps the proof, which 'qgraph prove --verify FILE' checks"
