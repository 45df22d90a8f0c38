"""Convert two quantized digit classifiers to QuantizeLinear/DequantizeLinear, and deploy them.

    python examples/convert_digits.py [FOLDER]

``digits_brevitas.onnx`` is spelled with QONNX's Quant, ``digits_nncf.onnx`` with OpenVINO's
FakeQuantize. Both are converted, their weights packed, and the results compared with the originals
on 360 held-out images: in NumPy, and in ONNX Runtime where it is installed. There, the originals
are deployed, too: rewritten so that ONNX Runtime executes their layers in integers, within proved
bounds. The exit status is 0 only if every quantizer was converted, every output is equal, and the
deployed models are within their bounds.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from rich.console import Console
from rich.table import Table

import qgraph
from qgraph import transforms

HERE = Path(__file__).parent
MODELS = ("digits_brevitas", "digits_nncf")
QUANTIZERS = ("Quant", "FakeQuantize", "QuantizeLinear", "DequantizeLinear")

Backend = Literal["numpy", "ort"]


@dataclass(frozen=True)
class Outcome:
    """The column of one model: what was found, and whether all of it is as it should be."""

    cells: dict[str, str]
    good: bool


def convert(name: str, folder: Path, backends: list[Backend]) -> Outcome:
    """Convert one model, write it to ``folder`` and compare it with its original."""
    source, target = HERE / f"{name}.onnx", folder / f"{name}_qdq.onnx"
    original, model = qgraph.load(source), qgraph.load(source)

    report = model.apply(transforms.ConvertDialect(to="qdq"), transforms.FoldWeights())
    model.save(target)
    onnx.checker.check_model(str(target), full_check=True)

    summary = report.to_json()["summary"]
    methods = Counter(site["method"] for site in report.to_json()["sites"])
    cells = {
        "quantizers before": count_operators(original),
        "quantizers after": count_operators(model),
        "converted, refused": f"{summary['changed']}, {summary['refused']}",
        "proved for all inputs": str(methods["congruence"] + methods["intervals"]),
        "compared value by value": str(methods["constant"]),
        "lowest exactness": str(report.exactness),
        "weights": f"{summary['weight_bytes_before']:,} -> {summary['weight_bytes_after']:,} bytes",
        "file": f"{source.stat().st_size:,} -> {target.stat().st_size:,} bytes",
    }
    good = summary["refused"] == 0

    with np.load(HERE / "digits_test.npz") as test:
        images, labels = test["x"], test["label"]
    for backend in backends:
        checked = qgraph.check(source, target, {"x": images}, backend=backend)
        before, after = (accuracy(m, images, labels, backend) for m in (original, model))
        cells[f"accuracy, {backend}"] = f"{before:.4f} -> {after:.4f}"
        cells[f"outputs, {backend}"] = checked.verdict
        good = good and checked.verdict == "equal"
    if "ort" in backends:
        deployed = deploy(name, folder, {"x": images}, labels)
        cells |= deployed.cells
        good = good and deployed.good
    return Outcome(cells, good)


def deploy(
    name: str, folder: Path, inputs: dict[str, npt.NDArray[Any]], labels: npt.NDArray[Any]
) -> Outcome:
    """Deploy one model for ONNX Runtime, and time it beside its exactly converted form."""
    model, target = qgraph.load(HERE / f"{name}.onnx"), folder / f"{name}_deployed.onnx"
    found = qgraph.deploy(model, "onnxruntime-cpu", inputs=inputs, labels=labels)
    model.save(target)
    document = found.to_json()
    summary, shown = document["summary"], document["accuracy"]
    reasons = [f"{layer.op}: {layer.reason}" for layer in found.left]
    times = qgraph.bench([folder / f"{name}_qdq.onnx", target], qgraph.Timing(rounds=11))
    cells = {
        "integer layers, deployed": f"{summary['integer_layers_before']} -> "
        f"{summary['integer_layers']} of {summary['quantized_layers']}",
        "left in float": "\n".join(reasons) or "none",
        "bound, deployed": f"{summary['max_steps']} step, {summary['tie_distance_steps']:.2g} "
        "from a tie",
        "accuracy, deployed": f"{shown['before']:.4f} -> {shown['after']:.4f}",
        "codes that differ": f"{shown['codes_that_differ']:.2%}",
        "time, deployed / converted": f"{times.models[1].ratio:.2f}",
    }
    return Outcome(cells, shown["violated_bounds"] == 0)


def count_operators(model: qgraph.Model) -> str:
    """Return how often each quantizer's operator occurs, one to a line."""
    counts = Counter(node.op_type for node in model.nodes(*QUANTIZERS))
    return "\n".join(f"{count} {op}" for op, count in counts.items())


def accuracy(
    model: qgraph.Model, images: npt.NDArray[Any], labels: npt.NDArray[Any], backend: Backend
) -> float:
    """Return the share of images whose largest score is the label's."""
    scores = model.run({"x": images}, backend=backend)["scores"]
    return float(np.mean(scores.argmax(axis=1) == labels))


def main() -> int:
    """Convert and deploy both models, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folder", nargs="?", type=Path, default=HERE / "converted", help="for the converted models"
    )
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    backends: list[Backend] = ["numpy"]
    if importlib.util.find_spec("onnxruntime") is not None:
        backends.append("ort")

    outcomes = {name: convert(name, folder, backends) for name in MODELS}

    table = Table("", *outcomes)
    for row in outcomes[MODELS[0]].cells:
        table.add_row(row, *(outcome.cells[row] for outcome in outcomes.values()))
    console = Console()
    console.print(table)
    good = all(outcome.good for outcome in outcomes.values())
    message = "Every output of the converted models is equal."
    if "ort" in backends:
        message += " The deployed models are within their bounds."
    console.print(message if good else "Something differs: see the table.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
