"""Time models in a runtime, alternately in separate processes, so that load affects all equally.

If the machine slows down for a while, all models slow down. So the ratio of two models is the
median of the ratios per round, in which each model runs for about the same time.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from numbers import Integral
from pathlib import Path
from statistics import median
from typing import Any, NoReturn, Self, TextIO, cast

import numpy as np

from qgraph.comparison.metrics import finite_fields
from qgraph.effort import LOADING_SECONDS, seconds_left
from qgraph.errors import (
    Choice,
    ExecutionError,
    OptionError,
    QGraphError,
    UnsupportedError,
    member,
    require,
)
from qgraph.execution.prepare import RandomBatches
from qgraph.graph.sizes import static
from qgraph.inventory.kernels import Kernels
from qgraph.model import Model, Source, load
from qgraph.numerics import Array
from qgraph.records import field, guarded
from qgraph.text import Displayed, as_json, fields_json
from qgraph.version import head

_WORKER = "qgraph.comparison.runtimes.worker"
_TURN = 0.05
"""Approximate time of a model in each round, in seconds; at least one run."""
_WARM = 0.3
"""Approximate time of the runs before the first round, in seconds."""
_THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class BenchRuntime(Choice):
    """Runtime that runs the models."""

    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"
    NUMPY = "numpy"


@guarded(frozen=True)
class Timing:
    """Options of a measurement.

    Attributes:
        runtime: the runtime.
        threads: number of threads of the runtime.
        batch: size of the first dimension of inputs, if it is open.
        rounds: number of timed rounds.
        shapes: shapes of the inputs, by name; needed if other dimensions than the batch are open.
        options: session options of ONNX Runtime, or properties of OpenVINO.
        seed: of the random inputs.
    """

    runtime: str = BenchRuntime.ONNXRUNTIME
    threads: int = 1
    batch: int = 1
    rounds: int = 21
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        member(BenchRuntime, self.runtime, "runtime")
        for name in ("threads", "batch", "rounds"):
            require(getattr(self, name), Integral, name, "a whole number")
            if getattr(self, name) < 1:
                raise OptionError(f"{name} is {getattr(self, name)}, expected at least 1.")


@guarded(frozen=True)
class ModelTime:
    """The times of a model, in milliseconds of the wall clock for one run.

    Attributes:
        path: of the model; None if it is in no file.
        median_ms, low_ms, high_ms: median, first and third quartile over all rounds.
        ratio: median over the rounds of the ratio to the first model.
        first_run_ms: the first run, which may allocate and prepare.
        load_ms: reading the file and optimizing the graph.
        peak_mb: largest memory of the process after the first run, with Python and the runtime;
            None if the system does not report it.
        kernels: the executed kernels.
        rounds_ms: the time of each round.
    """

    path: str | None
    median_ms: float
    low_ms: float
    high_ms: float
    ratio: float
    first_run_ms: float
    load_ms: float
    peak_mb: float | None
    kernels: Kernels
    rounds_ms: Sequence[float] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        counts = {"kernels": dict(self.kernels.counts)}
        return vars(self) | counts | fields_json(self.kernels, "integer_nodes", "float_nodes")


@guarded(frozen=True, repr=False)
class BenchReport(Displayed):
    """The times of some models in one runtime.

    Attributes:
        runtime: name and version.
        timing: options of the measurement.
        models: in the order given; ratios are to the first.
    """

    runtime: str
    timing: Timing
    models: Sequence[ModelTime]

    @property
    def summary(self) -> str:
        """The medians of all models."""
        times = ", ".join(f"{model.median_ms:.4g} ms" for model in self.models)
        return f"{times} in {self.runtime}"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON report."""
        return {
            **head("bench"),
            "runtime": self.runtime,
            **finite_fields(self.timing, "threads", "batch", "rounds", "options"),
            "models": as_json(self.models),
        }


def bench(
    models: Sequence[Source],
    timing: Timing | None = None,
    *,
    runtime: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> BenchReport:
    """Time models in a runtime, alternately, each in its own process.

    Args:
        models: paths or models; times are compared with those of the first.
        timing: how.
        runtime: short for ``Timing(runtime=...)``.
        progress: called after each round.

    Raises:
        ModelError: a model is not usable.
        OptionError: an option is wrong, or an input needs a shape.
        UnsupportedError: the runtime is not installed.
        ExecutionError: the runtime does not run a model.
    """
    timing = timing or Timing(runtime=runtime or BenchRuntime.ONNXRUNTIME)
    chosen = member(BenchRuntime, timing.runtime, "runtime")
    require(models, list | tuple, "models", "a list of paths and models")
    if not models:
        raise OptionError("There is no model to time, expected one or more.")
    if timing.options and chosen is BenchRuntime.NUMPY:
        raise OptionError("NumPy has no session options, expected none. Leave them out.")
    if importlib.util.find_spec(chosen) is None:
        raise UnsupportedError(f"{chosen} is not installed. Install it: pip install {chosen}.")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qgraph-")))
        timers: list[_Timer] = []
        feeds: dict[str, Array] = {}
        for number, source in enumerate(models):
            model = load(source)
            feeds = _feeds(model, timing, list(feeds.values()))
            timers.append(stack.enter_context(_Timer(folder, number, model, timing, feeds)))
        for timer in timers:
            timer.warm()
        rounds = []
        for number in range(timing.rounds):
            rounds.append([timer.turn() for timer in timers])
            progress(number + 1, timing.rounds)
        columns = list(zip(*rounds, strict=True))
        times = [t.times(own, columns[0]) for t, own in zip(timers, columns, strict=True)]
    return BenchReport(f"{chosen} {timers[0].version}", timing, times)


def _feeds(model: Model, timing: Timing, first: Sequence[Array]) -> dict[str, Array]:
    """Return random inputs, those of the first model if possible, so that all run on equal data.

    Raises OptionError if the model fixes another batch size.
    """
    shapes = {name: tuple(shape) for name, shape in timing.shapes.items()}
    for value in model.inputs:
        name, dims = str(value.name), () if value.shape is None else value.shape.dims
        if not dims or name in shapes:
            continue
        sizes = [static(dim) for dim in dims]
        if sizes[0] is None and None not in sizes[1:]:
            shapes[name] = (timing.batch, *(size for size in sizes[1:] if size is not None))
        elif timing.batch not in (1, sizes[0]) and sizes[0] is not None:
            raise OptionError(
                f"Input {name!r} has the fixed batch size {sizes[0]}, but {timing.batch} is asked "
                f"for. Leave the batch size out, or export the model with a dynamic one."
            )
    (batch,) = RandomBatches(model.inputs, 1, timing.seed, shapes)
    fits = len(first) == len(batch) and all(
        old.shape == new.shape and old.dtype == new.dtype
        for old, new in zip(first, batch.values(), strict=True)
    )
    return dict(zip(batch, first, strict=True)) if fits else batch


class _Timer:
    """A process that runs a model on demand."""

    def __init__(
        self, folder: Path, number: int, model: Model, timing: Timing, feeds: Mapping[str, Array]
    ) -> None:
        self._path = model.identity().path
        file = folder / f"model{number}.onnx"
        if self._path is None:
            model.clone().save(file)
        inputs, job = folder / f"inputs{number}.npz", folder / f"job{number}.json"
        arrays = {f"i{file}": x for file, x in enumerate(feeds.values())}
        np.savez(inputs, **arrays)  # type: ignore[arg-type]
        settings = {
            "runtime": str(timing.runtime).lower(),
            "model": os.path.abspath(self._path or file),
            "inputs": str(inputs),
            "names": list(feeds),
            "threads": timing.threads,
            "options": dict(timing.options),
        }
        job.write_text(json.dumps(settings))
        # A file in the current folder must not shadow a module.
        command = [sys.executable, "-P", "-m", _WORKER, str(job)]
        environment = os.environ | dict.fromkeys(_THREADS, str(timing.threads))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._orders = cast(TextIO, self._process.stdin)
        self._answers = cast(TextIO, self._process.stdout)
        self._name = self._path or f"model {number + 1}"
        self._start = self._loaded()
        if "failure" in self._start:
            self._close()
            reason = " ".join(str(self._start["failure"]).split())
            if refused := next((key for key in timing.options if key in reason), None):
                raise OptionError(
                    f"{timing.runtime} refuses the option {refused}={timing.options[refused]} "
                    f"({reason}). Leave it out, or give one of this runtime."
                )
            raise ExecutionError(
                f"{self._name}: {timing.runtime} does not run it ({reason}). Convert it first, as "
                f"by 'qgraph convert --to qdq', or see 'qgraph check --runtimes'."
            )
        self.version = str(self._start["version"])
        self._runs = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def warm(self) -> None:
        """Run the model until its times are stable, and choose the number of runs per round."""
        seconds, runs = self._run(1), 1
        while seconds < _WARM:
            runs = min(2 * runs, max(1, int(_WARM / max(seconds / runs, 1e-7))) + 1)
            seconds += self._run(runs)
        self._runs = max(1, round(_TURN / max(self._run(runs) / runs, 1e-7)))

    def turn(self) -> float:
        """Run one round, and return the mean seconds of a run."""
        return self._run(self._runs) / self._runs

    def times(self, own: Sequence[float], first: Sequence[float]) -> ModelTime:
        """Return the times for the report, from the seconds of its rounds and the first model's."""
        low, middle, high = (float(1e3 * time) for time in np.percentile(own, (25, 50, 75)))
        start, peak = self._start, self._start["peak"]
        return ModelTime(
            self._path,
            median_ms=middle,
            low_ms=low,
            high_ms=high,
            ratio=median(a / b for a, b in zip(own, first, strict=True)),
            first_run_ms=1e3 * start["first"],
            load_ms=1e3 * start["load"],
            peak_mb=None if peak is None else peak / 1e6,
            kernels=Kernels(**start["kernels"]),
            rounds_ms=[1e3 * time for time in own],
        )

    def _run(self, times: int) -> float:
        try:
            self._orders.write(f"{times}\n")
            self._orders.flush()
        except OSError:
            self._fail()
        return float(self._read(self._answers.readline())["seconds"])

    def _loaded(self) -> dict[str, Any]:
        """Return the first answer of the process; raise QGraphError if it is late or has ended."""
        limit = seconds_left(LOADING_SECONDS)
        late = threading.Timer(limit, self._process.kill)
        late.start()
        try:
            line = self._answers.readline()
            is_late = not line and not late.is_alive()
        except BaseException:  # an interruption: nothing else ends the process
            self._process.kill()
            self._close()
            raise
        finally:
            late.cancel()
        if is_late:
            self._close()
            raise QGraphError(
                f"{self._name}: the runtime has not loaded it and run it within {limit:.3g} s, "
                "expected times. Make it smaller, or take another runtime."
            )
        return self._read(line)

    def _read(self, line: str) -> dict[str, Any]:
        if not line:
            self._fail()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _fail(self) -> NoReturn:
        self._close()
        raise QGraphError(
            f"{self._name}: the process that ran it ended with status "
            f"{self._process.returncode}, expected times. Check the model with 'qgraph check "
            f"--runtimes', or give it more memory."
        )

    def _close(self) -> None:
        for stream in (self._orders, self._answers):
            with suppress(BrokenPipeError):
                stream.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def beside_float(
    plain: Source, result: Source, sources: Sequence[Source], timing: Timing
) -> dict[str, Any]:
    """Time a deployed model, its network in float, and its input.

    ``sources`` are the input model, and equal models in other dialects; the first that the runtime
    accepts is timed. Raises UnsupportedError if the runtime is not installed, ExecutionError if it
    does not run the first two.
    """
    is_converted = None
    for index, source in enumerate(sources):
        with suppress(ExecutionError):
            times, is_converted = bench([plain, result, source], timing), index > 0
            break
    else:
        times = bench([plain, result], timing)
    first, own, *inputs = times.models
    pairs = zip(own.rounds_ms, inputs[0].rounds_ms, strict=True) if inputs else ()
    return {
        "runtime": times.runtime,
        "threads": times.timing.threads,
        **fields_json(own.kernels, "integer_nodes", "float_nodes"),
        "milliseconds": own.median_ms,
        "float_milliseconds": first.median_ms,
        "ratio_to_float": own.ratio,
        "input_milliseconds": inputs[0].median_ms if inputs else None,
        "ratio_to_input": median(a / b for a, b in pairs) if inputs else None,
        "input_is_converted": is_converted,
    }
