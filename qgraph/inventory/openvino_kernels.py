"""Read the kernels of OpenVINO from its compiled model.

Run as a program, it compiles the model in a file, and writes version and kernels, or the reason for
a failure, to another file. It is a separate process because OpenVINO may hang.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from qgraph.execution.loading import reason
from qgraph.inventory.kernels import RunKernel

_OPENVINO_LAYERS = frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul"})
_OPENVINO_OTHERS = frozenset({"Const", "Constant", "Input", "Output", "Parameter", "Result"})
_CODES = frozenset({"i8", "u8"})


def of_openvino(compiled: Any) -> list[RunKernel]:
    """Return the nodes of a model that OpenVINO compiled."""
    kernels = []
    for node in compiled.get_runtime_model().get_ops():
        facts = node.get_rt_info()
        layer_type, precision, names = (
            str(facts[key].astype(str)) if key in facts else ""
            for key in ("layerType", "runtimePrecision", "originalLayersNames")
        )
        if layer_type in _OPENVINO_OTHERS:
            continue
        # Where only the weights are codes, the precision is that of the weights.
        types = {
            precision,
            *(each.get_element_type().get_type_name() for each in node.inputs()[:1]),
        }
        on_codes = types <= _CODES
        kernels.append(
            RunKernel(f"{layer_type} {precision}", names, layer_type in _OPENVINO_LAYERS, on_codes)
        )
    return kernels


def main(model: Path, answer: Path) -> None:
    """Compile the model in a file, and write its kernels, or why there are none, to ``answer``."""
    runtime = importlib.import_module("openvino")
    content: dict[str, Any] = {"version": runtime.__version__, "failure": None}
    try:
        kernels = of_openvino(runtime.Core().compile_model(str(model), "CPU"))
        content["kernels"] = [dataclasses.asdict(each) for each in kernels]
    except Exception as error:  # the runtimes' exceptions have no common base class
        content["failure"] = reason(error, model.parent)
    answer.write_text(json.dumps(content))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
