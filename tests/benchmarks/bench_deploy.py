"""Time a deployed MobileNet-v1 against float, its input, and ``quantize_static``.

For weights and activations of 8 and of 4 bits, in ONNX Runtime, and in OpenVINO with the hint f32
and at its defaults:

* ``float``: the network without quantizers;
* ``input``: the exactly converted input, ``qgraph convert --to qdq``;
* ``deployed``: ``qgraph deploy`` for the runtime;
* ``static``: ``onnxruntime.quantization.quantize_static`` of the network in float.

Each runs in a process of its own, in turns, with one thread; ratios are medians over the rounds.

    python tests/benchmarks/bench_deploy.py [MODEL.onnx]... [--trunc] [--only onnxruntime]

``quantize_static`` quantizes the pool and the last layer, too; with ``--trunc`` the input does so
as well.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
import onnxruntime
from make_mobilenet import make_mobilenet
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

import qgraph
from qgraph import transforms
from qgraph.execution.inputs import make_inputs
from qgraph.transforms.deployment.attempts import float_network

SAMPLES = 4
WIDTHS = (8, 4)


@dataclass(frozen=True)
class Setting:
    """A runtime and its options."""

    name: str
    target: str
    options: Mapping[str, str] = field(default_factory=dict)


SETTINGS = (
    Setting("onnxruntime", "onnxruntime-cpu"),
    Setting("openvino f32", "openvino-cpu", {"INFERENCE_PRECISION_HINT": "f32"}),
    Setting("openvino", "openvino-cpu"),
)


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Random inputs for the calibration."""

    def __init__(self, model: qgraph.Model) -> None:
        self._batches = iter([make_inputs(model.inputs, number=n) for n in range(SAMPLES)])

    def get_next(self) -> dict[str, npt.NDArray[np.float32]] | None:
        """Return the inputs of the next run."""
        return next(self._batches, None)


def forms(source: qgraph.Model, target: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Write the network in each form; yield its name and its file."""
    plain = float_network(source)
    plain.save(folder / "float.onnx")
    yield "float", folder / "float.onnx"

    converted = source.clone()
    converted.apply(transforms.ConvertDialect(to="qdq"), transforms.FoldWeights())
    converted.save(folder / "input.onnx")
    yield "input", folder / "input.onnx"

    deployed = source.clone()
    report = qgraph.deploy(deployed, target)
    summary = report.to_json()["summary"]
    print(
        f"deploy: {summary['integer_layers']} of {summary['quantized_layers']} layers in integer "
        f"kernels ({summary['integer_layers_before']} before), {report.certificate.verdict}, at "
        f"most {summary['max_steps']} steps, {summary['tie_distance_steps']:.2g} from a tie"
    )
    deployed.save(folder / "deployed.onnx")
    yield "deployed", folder / "deployed.onnx"

    ready, static = folder / "ready.onnx", folder / "static.onnx"
    quant_pre_process(str(folder / "float.onnx"), str(ready))
    kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(str(ready), str(static), Reader(plain), per_channel=True, **kinds)
    yield "static", static


def compare(source: qgraph.Model, setting: Setting, rounds: int) -> None:
    """Print the times of all forms, and their ratios."""
    with tempfile.TemporaryDirectory() as name:
        known = dict(forms(source, setting.target, Path(name)))
        runtime = setting.target.removesuffix("-cpu")
        timing = qgraph.Timing(runtime, rounds=rounds, options=setting.options)
        report = qgraph.bench(list(known.values()), timing)
    print(f"{'':9} {'ms':>8} {'quartiles':>17} {'float':>6} {'input':>6} {'static':>6}  kernels")
    times = dict(zip(known, report.models, strict=True))
    for form, time in times.items():
        ratios = [
            median(a / b for a, b in zip(time.rounds_ms, times[other].rounds_ms, strict=True))
            for other in ("float", "input", "static")
        ]
        quartiles = f"{time.low_ms:.2f} .. {time.high_ms:.2f}"
        kernels = f"{time.kernels.integer_nodes} integer, {time.kernels.float_nodes} float"
        shown = " ".join(f"{ratio:6.3f}" for ratio in ratios)
        print(f"{form:9} {time.median_ms:8.2f} {quartiles:>17} {shown}  {kernels}", flush=True)


def main() -> None:
    """Time all models in all runtimes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--trunc", action="store_true", help="quantize the pool too, by a Trunc")
    parser.add_argument("--only", help="one of " + ", ".join(each.name for each in SETTINGS))
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    onnxruntime.set_default_logger_severity(3)
    given = {str(path): qgraph.load(path) for path in options.models}
    known = given or {
        f"MobileNet-v1, {b} bits": qgraph.load(make_mobilenet(bits=b, trunc=options.trunc))
        for b in WIDTHS
    }
    for name, model in known.items():
        for setting in SETTINGS:
            if options.only in (None, setting.name):
                print(f"\n{name}, {setting.name}, 1 thread, {options.rounds} rounds")
                compare(model, setting, options.rounds)


if __name__ == "__main__":
    main()
