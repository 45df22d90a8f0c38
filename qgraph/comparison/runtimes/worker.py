"""A separate process that runs a model in a runtime, in several configurations.

Runtimes set flags of the calling thread, and may crash; a separate process protects the caller,
see :mod:`qgraph.comparison.runtimes.causes`. Called with the path of a job: a folder with
``job.json`` and the inputs; results go there too.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qgraph.errors import runtime_message
from qgraph.numerics import Array

Feeds = Mapping[str, Array]
Runner = Callable[[Feeds], Sequence[Any]]


def main(folder: Path) -> None:
    """Run a job and write its outputs, or the reason for its failure."""
    job = json.loads((folder / "job.json").read_text())
    prepare = _RUNTIMES[job["runtime"]]
    module = importlib.import_module(job["runtime"])
    batches = [_read(folder / f"inputs{n}.npz", job["inputs"]) for n in range(job["batches"])]
    results: list[str | None] = []
    for number, configuration in enumerate(job["configurations"]):
        try:
            run = prepare(module, str(folder / job["model"]), configuration)
            for index, feeds in enumerate(batches):
                arrays: dict[str, Any] = {f"o{n}": np.asarray(y) for n, y in enumerate(run(feeds))}
                with (folder / f"outputs{number}.{index}.npz").open("wb") as file:
                    np.savez(file, **arrays)
            results.append(None)
        except Exception as error:  # the runtimes' exceptions have no common base class
            results.append(runtime_message(error, folder))
    version = str(getattr(module, "__version__", ""))
    answer = {"version": version, "failures": results}
    (folder / "answer.json").write_text(json.dumps(answer))


def _read(path: Path, names: Sequence[str]) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as content:
        return {name: content[f"i{n}"] for n, name in enumerate(names) if f"i{n}" in content}


def _onnxruntime(module: Any, path: str, configuration: Mapping[str, Any]) -> Runner:
    options = module.SessionOptions()
    options.log_severity_level = 4
    level = configuration.get("level", "ORT_ENABLE_ALL")
    options.graph_optimization_level = getattr(module.GraphOptimizationLevel, level)
    for key, value in configuration.get("entries", {}).items():
        options.add_session_config_entry(key, value)
    session = module.InferenceSession(
        path,
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=list(configuration.get("disabled", ())),
    )
    return lambda feeds: session.run(None, dict(feeds))


def _openvino(module: Any, path: str, configuration: Mapping[str, Any]) -> Runner:
    core = module.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", dict(configuration))

    def run(feeds: Feeds) -> list[Array]:
        outputs = compiled(dict(feeds))
        return [np.array(outputs[port]) for port in compiled.outputs]

    return run


_RUNTIMES: dict[str, Callable[[Any, str, Mapping[str, Any]], Runner]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]))
