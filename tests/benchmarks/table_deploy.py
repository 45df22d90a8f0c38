"""Deploy models for targets, and write what became of their layers as a table.

For each model and target: quantized layers, those in integer kernels before and after (executed
where the runtime can be run here, otherwise as the profile predicts), the worst bound in steps, the
share of codes that differ on data, and rows whose largest output is the right label.

    python tests/benchmarks/table_deploy.py FOLDER... [--target NAME ...] [--out TABLE.md]

A model that lies beside an archive of its name (``x``, ``label``) is run on these data. Others are
run on random data, and their own answers count as labels; those are marked with *. Dimensions that
are open, other than the first, are 16. Models that do not run on random data have no figures of
data. Each pair runs in a process of its own; ``--reasons`` adds a list of the layers that are left.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import qgraph
from qgraph.comparison.check import Inputs
from qgraph.errors import QGraphError
from qgraph.execution.executor import Executor
from qgraph.execution.inputs import make_inputs

BATCHES = 4
OPEN = 16
"""Size of dimensions that models leave open."""

HEAD = (
    "model | target | layers | before | after | steps | tie distance | codes that differ | labels"
)


def data_of(model: qgraph.Model, path: Path) -> tuple[Mapping[str, npt.NDArray[Any]], Any, bool]:
    """Return inputs, their labels if there are any, and whether both were made up."""
    archive = path.with_suffix(".npz")
    if archive.is_file():
        known = np.load(archive)
        return {model.inputs[0].name: known["x"]}, known["label"], False
    shapes = {
        value.name: [n if isinstance(n, int) else (OPEN if k else 1) for k, n in enumerate(sizes)]
        for value in model.inputs
        if (sizes := value.shape)
    }
    batches = [make_inputs(model.inputs, number=n, shapes=shapes) for n in range(BATCHES)]
    if not all(array.ndim for array in batches[0].values()):
        return batches[0], None, True  # no rows
    feeds = {name: np.concatenate([each[name] for each in batches]) for name in batches[0]}
    executor = Executor(model.ir)
    answers = [list(executor.run(each).values()) for each in batches]
    if len(answers[0]) != 1 or answers[0][0].ndim != 2:
        return feeds, None, True  # no scores
    return feeds, np.concatenate([np.argmax(each[0], -1) for each in answers]), True


def row(path: Path, target: str) -> dict[str, Any]:
    """Return what is to be told of one model and one target."""
    found: dict[str, Any] = {"model": path.stem, "target": target}
    try:
        model = qgraph.load(path)
    except QGraphError as error:
        return found | {"error": str(error)}
    shown: dict[str, Any] = {"codes_that_differ": None, "before": None, "invented": True}
    try:
        feeds, labels, invented = data_of(model, path)
        report = qgraph.deploy(model, target, inputs=Inputs(feeds), labels=labels)
        known = report.to_json()["accuracy"]
        shown = {k: v for k, v in known.items() if k != "bounds"} | {"invented": invented}
    except QGraphError as error:
        shown["without_data"] = str(error)
        report = qgraph.deploy(model, target)
    left = {each.node: f"[{each.reason_id}] {each.reason}" for each in report.left}
    return found | report.to_json()["summary"] | shown | {"left": left}


def line(found: Mapping[str, Any]) -> str:
    """Return the row of a table."""
    head = f"| {found['model']} | {found['target']} |"
    if "error" in found:
        return f"{head} {found['error']} | | | | | | |"
    figures = [found[n] for n in ("quantized_layers", "integer_layers_before", "integer_layers")]
    differ, before = found["codes_that_differ"], found["before"]
    labels = ""
    if before is not None:
        rows = found["samples"]
        labels = f"{before * rows:.0f}, {found['after'] * rows:.0f} of {rows}"
    texts = [
        *map(str, figures),
        str(found["max_steps"]),
        f"{found['tie_distance_steps']:.2g}",
        "" if differ is None else f"{differ:.3%}",
        labels + ("*" if labels and found["invented"] else ""),
    ]
    return f"{head} {' | '.join(texts)} |"


def apart(path: Path, target: str) -> dict[str, Any]:
    """Return the row as a process of its own finds it."""
    command = [sys.executable, __file__, "--row", str(path), "--target", target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        loaded: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.splitlines() or ["it stopped"])[-1]
        return {"model": path.stem, "target": target, "error": last}
    return loaded


def table(rows: Sequence[Mapping[str, Any]], *, reasons: bool) -> str:
    """Return all rows, and the sums of each target."""
    lines = [f"| {HEAD} |", "|---|---|" + 7 * "---:|", *map(line, rows), ""]
    for target in dict.fromkeys(each["target"] for each in rows):
        own = [each for each in rows if each["target"] == target and "error" not in each]
        names = ("quantized_layers", "integer_layers_before", "integer_layers")
        layers, before, after = (sum(each[name] for each in own) for name in names)
        lines.append(f"{target}: {before} of {layers} layers before, {after} after.  ")
    if reasons:
        lines += ["", "Layers that are left:", ""]
        told: dict[tuple[str, str, str], list[str]] = {}
        for each in rows:
            for node, reason in each.get("left", {}).items():
                told.setdefault((each["model"], each["target"], reason), []).append(node)
        for (model, target, reason), nodes in told.items():
            more = "" if len(nodes) == 1 else f" and {len(nodes) - 1} more"
            lines.append(f"- {model}, {target}: {nodes[0]}{more}: {reason}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, nargs="*", help="models, or folders of models")
    parser.add_argument("--target", nargs="+", default=["onnxruntime-cpu", "openvino-cpu"])
    parser.add_argument("--out", type=Path, help="file to write the table to")
    parser.add_argument("--reasons", action="store_true")
    parser.add_argument("--row", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    if options.row is not None:
        print(json.dumps(row(options.row, options.target[0])))
        return
    paths = [
        path
        for given in options.models
        for path in (sorted(given.glob("*.onnx")) if given.is_dir() else [given])
    ]
    rows = []
    for target in options.target:
        for path in paths:
            rows.append(apart(path, target))
            print(line(rows[-1]), flush=True)
            if options.out is not None:
                options.out.write_text(table(rows, reasons=options.reasons))
    if options.out is None:
        print(table(rows, reasons=options.reasons))


if __name__ == "__main__":
    main()
