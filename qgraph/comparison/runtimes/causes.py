"""What runtimes change in quantized models, with options that disable it; runs of a model in them.

Each run is in a separate process, as in other programs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from qgraph.effort import LOADING_SECONDS, seconds_left
from qgraph.errors import QGraphError
from qgraph.graph.opset.versions import declare_domains, minimum_ir_version
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.records import dataclass

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Suspect:
    """A change that a runtime makes by default, and the option against it, as users write it."""

    what: str
    option: str
    options: Options


@dataclass(frozen=True)
class RuntimeLevel:
    """A configuration of a runtime to test; it is named plain, basic or default."""

    name: str
    setting: str
    options: Options


@dataclass(frozen=True)
class Runtime:
    """A runtime to try: levels from fewest changes on, suspects from the most specific."""

    module: str
    name: str
    levels: Sequence[RuntimeLevel]
    suspects: Sequence[Suspect]


def merged(first: Options, second: Options) -> Options:
    """Return both sets of options; lists and tables of one name are joined."""
    result = dict(first)
    for key, value in second.items():
        known = result.get(key)
        if isinstance(known, Mapping):
            result[key] = {**known, **value}
        elif isinstance(known, list):
            result[key] = [*known, *value]
        else:
            result[key] = value
    return result


def _without(what: str, *optimizers: str) -> Suspect:
    named = ", ".join(optimizers)
    return Suspect(what, f"disabled_optimizers={named}", {"disabled": list(optimizers)})


def _entry(what: str, key: str, value: str) -> Suspect:
    return Suspect(what, f"{key}={value}", {"entries": {key: value}})


def _property(what: str, key: str, value: str) -> Suspect:
    return Suspect(what, f"{key}={value}", {key: value})


ONNX_RUNTIME = Runtime(
    "onnxruntime",
    "ONNX Runtime",
    (
        RuntimeLevel("plain", "without optimizations", {"level": "ORT_DISABLE_ALL"}),
        RuntimeLevel("basic", "at BASIC", {"level": "ORT_ENABLE_BASIC"}),
        RuntimeLevel("default", "by default", {"level": "ORT_ENABLE_ALL"}),
    ),
    (
        _entry("MatMulNBits with int8 activations", "session.qdq_matmulnbits_accuracy_level", "1"),
        _without("float weights and biases next to Q/DQ are quantized", "WeightBiasQuantization"),
        _without("neighbouring Q/DQ pairs are merged", "DoubleQDQPairsRemover"),
        _without("Q/DQ are moved across other operators", "QDQPropagationTransformer"),
        _without("additions of zero and similar operators are removed", "NoopElimination"),
        _without(
            "scales and shifts are folded into weights of convolutions",
            "ConvBNFusion",
            "ConvMulFusion",
            "ConvAddFusion",
        ),
        _without(
            "scales are folded into matrix products",
            "MatMul_BatchNormalization_Fusion",
            "MatMulScaleFusion",
        ),
        _without("activations are quantized for MatMulInteger", "DynamicQuantizeMatMulFusion"),
        _without("Q/DQ around operators become integer kernels", "QDQSelectorActionTransformer"),
        _without("MatMul and Add become Gemm", "MatMulAddFusion"),
        _without(
            "activations are fused into convolutions and Gemm",
            "ConvActivationFusion",
            "ConvAddActivationFusion",
            "GemmActivationFusion",
            "MatMulActivationFusion",
        ),
        _without("convolutions use another memory layout", "NchwcTransformer", "NhwcTransformer"),
        _without("constants are folded", "ConstantFolding"),
        _entry("Q/DQ are fused and removed", "session.disable_quant_qdq", "1"),
        Suspect(
            "fusions above the level EXTENDED",
            "graph_optimization_level=ORT_ENABLE_EXTENDED",
            {"level": "ORT_ENABLE_EXTENDED"},
        ),
        Suspect(
            "fusions above the level BASIC",
            "graph_optimization_level=ORT_ENABLE_BASIC",
            {"level": "ORT_ENABLE_BASIC"},
        ),
    ),
)

OPENVINO = Runtime(
    "openvino",
    "OpenVINO",
    (
        RuntimeLevel(
            "plain",
            "in its accuracy mode",
            {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_PRECISION_HINT": "f32"},
        ),
        RuntimeLevel("default", "by default", {}),
    ),
    (
        _property(
            "activations are quantized for compressed weights",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE",
            "0",
        ),
        _property("a narrower type than float32", "INFERENCE_PRECISION_HINT", "f32"),
        _property(
            "narrower types and quantized activations, for speed", "EXECUTION_MODE_HINT", "ACCURACY"
        ),
    ),
)

RUNTIMES = (ONNX_RUNTIME, OPENVINO)


Configuration = Mapping[str, Any]
"""Options of a runtime, as :mod:`qgraph.comparison.runtimes.worker` reads them."""

_WORKER = "qgraph.comparison.runtimes.worker"
_MOST_SECONDS = 900


@dataclass(frozen=True)
class Answer:
    """Outputs of one configuration by name, for each batch, or the reason why there are none."""

    batches: Sequence[Mapping[str, Array]] = ()
    failure: str | None = None


class RuntimeJobs:
    """A model and its inputs in files, for runs in separate processes.

    The file has the lowest IR version that the model needs, because runtimes refuse newer versions
    without need.
    """

    def __init__(self, model: Model, batches: Sequence[Mapping[str, Any]]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="qgraph-")
        self._path = Path(self._folder.name)
        copy = model.clone()
        declare_domains(copy.ir)
        copy.ir.ir_version = max(minimum_ir_version(copy.ir), 8)
        copy.save(self._path / "model.onnx")
        self._inputs = [str(value.name) for value in model.ir.graph.inputs]
        self._outputs = [str(value.name) for value in model.outputs]
        self._batches = len(batches)
        for number, feeds in enumerate(batches):
            named = {f"i{self._inputs.index(name)}": np.asarray(x) for name, x in feeds.items()}
            np.savez(self._path / f"inputs{number}.npz", **named)  # type: ignore[arg-type]
        self.versions: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._folder.cleanup()

    def run(self, runtime: str, configurations: Sequence[Configuration]) -> list[Answer]:
        """Return the outputs of each configuration of a runtime, given by its module's name."""
        job = {
            "runtime": runtime,
            "model": "model.onnx",
            "inputs": self._inputs,
            "batches": self._batches,
            "configurations": list(configurations),
        }
        path = self._path / "job.json"
        path.write_text(json.dumps(job))
        answer = self._path / "answer.json"
        answer.unlink(missing_ok=True)
        # a file in the current folder must not shadow a module
        command = [sys.executable, "-P", "-m", _WORKER, str(path)]
        limit = seconds_left(min(_MOST_SECONDS, LOADING_SECONDS * len(configurations)))
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            text = f"it has not loaded and run the model within {limit:.3g} s"
            return [Answer(failure=text) for _ in configurations]
        except OSError as error:
            return [Answer(failure=str(error)) for _ in configurations]
        if not answer.exists():
            last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
            return [Answer(failure=last) for _ in configurations]
        content = json.loads(answer.read_text())
        self.versions[runtime] = content["version"]
        return [self._answer(n, failure) for n, failure in enumerate(content["failures"])]

    def _answer(self, number: int, failure: str | None) -> Answer:
        if failure is not None:
            return Answer(failure=failure)
        answers = []
        for index in range(self._batches):
            path = self._path / f"outputs{number}.{index}.npz"
            try:
                with np.load(path, allow_pickle=False) as content:
                    arrays = [content[f"o{n}"] for n in range(len(self._outputs))]
            except (OSError, ValueError, KeyError) as error:
                raise QGraphError(
                    f"{path}: the outputs of a runtime cannot be read ({error}), expected its "
                    "outputs. Free some space and try again."
                ) from error
            path.unlink()
            answers.append(dict(zip(self._outputs, arrays, strict=True)))
        return Answer(answers)
