"""Tiers of tests, processor time by test, and fixtures that several test modules need."""

from __future__ import annotations

import os

# One thread for each worker: BLAS reads this when it is imported; see also _use_one_thread. The C
# library keeps the memory of freed arrays, whose pages would be cleared anew for the next ones; it
# reads this when a process starts, so in the workers of xdist and in commands that tests run.
os.environ |= {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
} | os.environ

import functools
import gc
import resource
import shutil
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

if sys.dont_write_bytecode:
    # Nothing is written beside the sources then. But workers, commands that tests run, and the next
    # run would each compile everything anew.
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

# Files of tests need not survive a crash, and a disk makes each of them wait until they would.
_MEMORY = Path("/dev/shm")
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session", autouse=True)
def _published() -> None:
    """Let onnx's checker and shape inference know the operators of the dialects."""
    from tests.onnx_schemas import publish

    publish()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of golden vectors and real models, which is not part of the repository."""
    if not SHARED.is_dir():
        pytest.skip("the folder of golden vectors and models beside the repository is absent")
    return SHARED


@pytest.fixture(scope="session")
def golden(shared: Path) -> Path:
    return shared / "golden"


@pytest.fixture(scope="session")
def models(shared: Path) -> Path:
    return shared / "models"


REAL_MODELS = [
    "TFC_1W2A",
    "brev_cnn_asym8",
    "brev_cnn_fp8e4m3",
    "brev_cnn_w4a4",
    "brev_cnn_w4a4_dynamo",
    "brev_cnn_w4a4_qcdq",
    "brev_cnn_w4a4_trunc",
    "brev_mlp_fp4",
    "brev_mlp_w1a2_bipolar",
    "brevmx_mlp_mxfp4w",
    "kwsmlp_w3a3",
    "nncf_cnn_int8_sym",
    "nncf_cnn_w4a4",
    "nncf_mlp_int8_mixed",
    "nncfonnx_cnn_qdq_sym",
    "qkeras_jettagging",
]


@pytest.fixture(scope="session")
def real_models(models: Path) -> dict[str, Path]:
    """The files of all real models, by name."""
    return {name: models / f"{name}.onnx" for name in REAL_MODELS}


_FLIPPED_ROWS = 0.05
_FLIPPED_CHANGE = 0.1


def _assert_same_rows(found: npt.NDArray[Any], expected: npt.NDArray[Any], *, atol: float) -> None:
    """Compare what a quantized network makes of each sample, whatever order its sums are added in.

    An order of additions may carry a sum over a tie of the next quantizer. That changes a code, so
    the outputs of that sample differ by more than roundings: in one row of twenty at most, and by a
    tenth of the largest output at most.
    """
    assert found.shape == expected.shape
    apart = np.abs(found - expected).reshape(len(expected), -1).max(axis=1)
    flipped = int(np.count_nonzero(~(apart <= atol)))
    assert flipped <= _FLIPPED_ROWS * len(expected), f"{flipped} rows differ by up to {apart.max()}"
    assert apart.max() <= max(atol, _FLIPPED_CHANGE * float(np.abs(expected).max()))


@pytest.fixture(scope="session")
def assert_same_rows() -> Callable[..., None]:
    """``assert_same_rows(found, expected, atol=...)``: see :func:`_assert_same_rows`."""
    return _assert_same_rows


@pytest.fixture(scope="session")
def each() -> Callable[..., None]:
    """``each(cases, check)`` calls ``check(case)`` for every case, and reports all that fail."""

    def run(cases: Iterable[Any], check: Callable[[Any], None]) -> None:
        failures = []
        for case in cases:
            try:
                check(case)
            except AssertionError as error:
                failures.append(f"{case}: {error}")
        assert not failures, "\n".join(failures)

    return run


FAST_MODELS = {
    "TFC_1W2A",
    "brev_cnn_w4a4_trunc",
    "brev_mlp_fp4",
    "brev_mlp_w1a2_bipolar",
    "nncf_mlp_int8_mixed",
}
"""Models of every dialect, and small; tests of the others are slow."""


def model_cases() -> list[Any]:
    """Return the names of all real models as cases of a test, most of them slow."""
    return [
        pytest.param(name, marks=[] if name in FAST_MODELS else pytest.mark.slow)
        for name in REAL_MODELS
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the argument ``model_name`` runs for every real model."""
    if "model_name" in metafunc.fixturenames:
        metafunc.parametrize("model_name", model_cases())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Distribute the cases of tests marked ``cases`` over the tiers.

    The choice depends on the names of the cases only, and is spread over all parameters.
    """
    tests = defaultdict(list)
    for item in items:
        if item.get_closest_marker("cases"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        marker = cases[0].get_closest_marker("cases")
        assert marker is not None
        fast, slow = marker.kwargs["fast"], marker.kwargs.get("slow", len(cases))
        cases.sort(key=lambda item: zlib.crc32(item.name.encode()))
        cases.sort(key=lambda item: item.get_closest_marker("slow") is not None)
        for item in cases[fast:slow]:
            item.add_marker("slow")
        for item in cases[slow:]:
            item.add_marker("exhaustive")


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Search for no garbage among modules and tests, which stay until the end."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Search for garbage from now on, in what the tests make, and rarely: most frees itself."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


LONG = 2.0
"""Seconds of processor time; a fast test that takes more is reported."""

_START = pytest.StashKey[float]()
_CPU = "processor seconds"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cpu-limit",
        type=float,
        metavar="SECONDS",
        help="fail if a test of the fast tier takes more seconds of processor time",
    )


def pytest_configure(config: pytest.Config) -> None:
    _use_one_thread()
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_LongTests(config.getoption("--cpu-limit")))


def _use_one_thread() -> None:
    """Let every session of ONNX Runtime compute in the thread that runs it."""
    if find_spec("onnxruntime") is None:
        return
    import onnxruntime

    class SessionOptions(onnxruntime.SessionOptions):
        def __init__(self) -> None:
            super().__init__()
            self.intra_op_num_threads = 1

    class InferenceSession(onnxruntime.InferenceSession):
        def __init__(self, model: Any, sess_options: Any = None, **others: Any) -> None:
            super().__init__(model, sess_options or SessionOptions(), **others)

    onnxruntime.SessionOptions = SessionOptions
    onnxruntime.InferenceSession = InferenceSession


@functools.cache
def openvino_core() -> Any:
    """Return OpenVINO on one thread; without it the test is skipped."""
    core = pytest.importorskip("openvino").Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": 1})
    return core


def _cpu_seconds() -> float:
    """Return the processor time of this process and of those that it started and that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    item.stash[_START] = _cpu_seconds()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "teardown":
        item.user_properties.append((_CPU, _cpu_seconds() - item.stash[_START]))


class _LongTests:
    """Reports the tests of the fast tier that take long, and those beyond a limit as errors.

    Args:
        limit: in seconds of processor time; None for no limit.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._total = 0.0
        self._long: dict[str, float] = {}

    def _beyond(self) -> Iterator[str]:
        if self._limit is not None:
            yield from (name for name, cpu in self._long.items() if cpu > self._limit)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            cpu = dict(report.user_properties)[_CPU]
            self._total += cpu
            if cpu > LONG and not {"slow", "exhaustive"} & set(report.keywords):
                self._long[report.nodeid] = cpu

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and any(self._beyond()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._total:
            return
        terminalreporter.section("processor time")
        terminalreporter.line(f"{self._total:.0f} s in tests")
        for name, cpu in sorted(self._long.items(), key=lambda entry: -entry[1]):
            terminalreporter.line(f"{cpu:5.1f} s  {name}")
        for name in self._beyond():
            terminalreporter.line(f"ERROR {name} takes more than {self._limit:g} s", red=True)
