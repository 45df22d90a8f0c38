"""A separate process that runs a model in a runtime: to time it, or for its outputs.

Runtimes set flags of the calling thread, print, and may crash; a separate process protects the
caller. It is called with the path of a job, a JSON file.

A job of times (:mod:`qgraph.comparison.bench`) loads a model, runs it once, and prints a
line of JSON. Then each line of its standard input is a number of runs, which it answers with a line
of JSON: the seconds that they took. A job of outputs (:mod:`qgraph.comparison.runtimes.causes`)
runs a model in several configurations, and writes the outputs into the folder of the job.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qgraph.errors import runtime_message
from qgraph.inventory.kernels import Kernels, of_graph, of_onnxruntime, of_openvino
from qgraph.numerics import Array

Job = Mapping[str, Any]
Feeds = Mapping[str, Array]
Runner = Callable[[Feeds], Sequence[Any]]


class _Timed(NamedTuple):
    version: str
    run: Callable[[], object]
    kernels: Callable[[], Kernels]


def main(path: Path) -> None:
    """Do a job."""
    job = json.loads(path.read_text())
    if "configurations" in job:
        _write_outputs(job, path.parent)
    else:
        _answer(job)


def _read(path: str | Path, names: Iterable[str]) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as content:
        return {name: content[f"i{n}"] for n, name in enumerate(names) if f"i{n}" in content}


def _session(
    module: Any,
    path: str,
    entries: Mapping[str, str],
    *,
    level: str = "ORT_ENABLE_ALL",
    disabled: Iterable[str] = (),
    threads: int | None = None,
    optimized: str | None = None,
) -> Any:
    """Return a session of ONNX Runtime, which may write its ``optimized`` graph to a file."""
    options = module.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(module.GraphOptimizationLevel, level)
    if threads is not None:
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    if optimized is not None:
        options.optimized_model_filepath = optimized
    providers = ["CPUExecutionProvider"]
    return module.InferenceSession(
        path, options, providers=providers, disabled_optimizers=list(disabled)
    )


def _answer(job: Job) -> None:
    """Load the model of a job, and run it on demand."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # runtimes print too
    feeds = _read(job["inputs"], job["names"])

    def answer(**fields: object) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    try:
        start = time.perf_counter()
        timed = _TIMED[job["runtime"]](job, feeds)
        loading = time.perf_counter() - start
        first = _seconds(timed.run, 1)
        peak = _peak()
        kernels = dataclasses.asdict(timed.kernels())
    except Exception as error:  # the runtimes' exceptions have no common base class
        answer(failure=runtime_message(error, Path(job["model"]).parent))
        return
    answer(version=timed.version, load=loading, first=first, peak=peak, kernels=kernels)
    for line in sys.stdin:
        answer(seconds=_seconds(timed.run, int(line)))


def _seconds(run: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        run()
    return time.perf_counter() - start


def _peak() -> float | None:
    """Return the largest memory of this process so far, in bytes; None if it is not available."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def _timed_onnxruntime(job: Job, feeds: Feeds) -> _Timed:
    module = importlib.import_module("onnxruntime")

    def session(optimized: str | None = None) -> Any:
        return _session(
            module, job["model"], job["options"], threads=job["threads"], optimized=optimized
        )

    def kernels() -> Kernels:
        with tempfile.TemporaryDirectory(prefix="qgraph-") as folder:
            path = Path(folder) / "optimized.onnx"
            session(str(path))
            return Kernels.of(of_onnxruntime(path))

    loaded = session()
    return _Timed(str(module.__version__), lambda: loaded.run(None, feeds), kernels)


def _timed_openvino(job: Job, feeds: Feeds) -> _Timed:
    module = importlib.import_module("openvino")
    core = module.Core()
    settings = {"INFERENCE_NUM_THREADS": job["threads"], "NUM_STREAMS": 1, **job["options"]}
    model = core.read_model(job["model"])
    model.reshape({name: module.PartialShape(list(x.shape)) for name, x in feeds.items()})
    compiled = core.compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    run = lambda: request.infer(feeds, share_inputs=True, share_outputs=True)  # noqa: E731
    version = str(module.__version__).partition("-")[0]
    return _Timed(version, run, lambda: Kernels.of(of_openvino(compiled)))


def _timed_numpy(job: Job, feeds: Feeds) -> _Timed:
    from qgraph.execution.executor import Backend
    from qgraph.model import load

    model = load(job["model"])
    kernels = Kernels.of(of_graph(model.ir.graph))
    run = lambda: model.run(feeds, backend=Backend.NUMPY)  # noqa: E731
    return _Timed(str(np.__version__), run, lambda: kernels)


_TIMED: dict[str, Callable[[Job, Feeds], _Timed]] = {
    "numpy": _timed_numpy,
    "onnxruntime": _timed_onnxruntime,
    "openvino": _timed_openvino,
}


def _write_outputs(job: Job, folder: Path) -> None:
    """Run a job in all configurations, and write the outputs or the reasons of failures."""
    module = importlib.import_module(job["runtime"])
    batches = [_read(folder / f"inputs{n}.npz", job["inputs"]) for n in range(job["batches"])]
    results: list[str | None] = []
    for number, configuration in enumerate(job["configurations"]):
        try:
            run = _RUNNERS[job["runtime"]](module, str(folder / job["model"]), configuration)
            for index, feeds in enumerate(batches):
                arrays: dict[str, Any] = {f"o{n}": np.asarray(y) for n, y in enumerate(run(feeds))}
                with (folder / f"outputs{number}.{index}.npz").open("wb") as file:
                    np.savez(file, **arrays)
            results.append(None)
        except Exception as error:  # the runtimes' exceptions have no common base class
            results.append(runtime_message(error, folder))
    answer = {"version": str(getattr(module, "__version__", "")), "failures": results}
    (folder / "answer.json").write_text(json.dumps(answer))


def _onnxruntime(module: Any, path: str, configuration: Mapping[str, Any]) -> Runner:
    level = configuration.get("level", "ORT_ENABLE_ALL")
    entries, disabled = configuration.get("entries", {}), configuration.get("disabled", ())
    session = _session(module, path, entries, level=level, disabled=disabled)
    return lambda feeds: session.run(None, dict(feeds))


def _openvino(module: Any, path: str, configuration: Mapping[str, Any]) -> Runner:
    core = module.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", dict(configuration))

    def run(feeds: Feeds) -> list[Array]:
        outputs = compiled(dict(feeds))
        return [np.array(outputs[port]) for port in compiled.outputs]

    return run


_RUNNERS: dict[str, Callable[[Any, str, Mapping[str, Any]], Runner]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]))
