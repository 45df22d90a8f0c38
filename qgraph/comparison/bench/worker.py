"""A separate process that loads one model in one runtime, and times runs of it on demand.

Called with the path of a job: a JSON file, see :class:`qgraph.comparison.bench.measure.Timing`.
First it loads the model, runs it once, and prints a line of JSON. Then each line of its standard
input is a number of runs, which it answers with a line of JSON: the seconds that they took.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qgraph.errors import runtime_message
from qgraph.inventory.kernels import Kernels, of_graph, of_onnxruntime, of_openvino
from qgraph.numerics import Array

Job = Mapping[str, Any]
Feeds = dict[str, Array]


class _Loaded(NamedTuple):
    version: str
    run: Callable[[], object]
    kernels: Callable[[], Kernels]


def main(path: Path) -> None:
    """Load the model of a job, and run it on demand."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # runtimes print too
    job = json.loads(path.read_text())
    with np.load(job["inputs"], allow_pickle=False) as content:
        feeds = {name: content[f"i{number}"] for number, name in enumerate(job["names"])}

    def answer(**fields: object) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    try:
        start = time.perf_counter()
        loaded = _RUNTIMES[job["runtime"]](job, feeds)
        loading = time.perf_counter() - start
        first = _seconds(loaded.run, 1)
        peak = _peak()
        kernels = dataclasses.asdict(loaded.kernels())
    except Exception as error:  # the runtimes' exceptions have no common base class
        answer(failure=runtime_message(error, Path(job["model"]).parent))
        return
    answer(version=loaded.version, load=loading, first=first, peak=peak, kernels=kernels)
    for line in sys.stdin:
        answer(seconds=_seconds(loaded.run, int(line)))


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


def _onnxruntime(job: Job, feeds: Feeds) -> _Loaded:
    runtime = importlib.import_module("onnxruntime")

    def session(optimized: str | None = None) -> Any:
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads, options.inter_op_num_threads = job["threads"], 1
        for key, value in job["options"].items():
            options.add_session_config_entry(key, value)
        if optimized is not None:
            options.optimized_model_filepath = optimized
        return runtime.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])

    def kernels() -> Kernels:
        with tempfile.TemporaryDirectory(prefix="qgraph-") as folder:
            path = Path(folder) / "optimized.onnx"
            session(str(path))
            return Kernels.of(of_onnxruntime(path))

    loaded = session()
    return _Loaded(str(runtime.__version__), lambda: loaded.run(None, feeds), kernels)


def _openvino(job: Job, feeds: Feeds) -> _Loaded:
    runtime = importlib.import_module("openvino")
    core = runtime.Core()
    settings = {"INFERENCE_NUM_THREADS": job["threads"], "NUM_STREAMS": 1, **job["options"]}
    model = core.read_model(job["model"])
    model.reshape({name: runtime.PartialShape(list(x.shape)) for name, x in feeds.items()})
    compiled = core.compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    run = lambda: request.infer(feeds, share_inputs=True, share_outputs=True)  # noqa: E731
    version = str(runtime.__version__).partition("-")[0]
    return _Loaded(version, run, lambda: Kernels.of(of_openvino(compiled)))


def _numpy(job: Job, feeds: Feeds) -> _Loaded:
    from qgraph.execution.executor import Backend
    from qgraph.model import load

    model = load(job["model"])
    kernels = Kernels.of(of_graph(model.ir.graph))
    run = lambda: model.run(feeds, backend=Backend.NUMPY)  # noqa: E731
    return _Loaded(str(np.__version__), run, lambda: kernels)


_RUNTIMES: dict[str, Callable[[Job, Feeds], _Loaded]] = {
    "numpy": _numpy,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]))
