"""Time one conversion of a small model from the shell, against importing onnx and numpy.

Both are whole processes in turn, on one core: wall time, processor time, and the median of the
ratios. Each run writes a new file. Use an environment with an ordinary install (``pip install .``);
an editable one finds modules more slowly.

    python tests/benchmarks/bench_start.py [MODEL.onnx] [--rounds 31]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

DIGITS = Path(__file__).parents[2] / "examples" / "digits_brevitas.onnx"
REFERENCE = "import onnx, numpy"


def measured(command: list[str]) -> tuple[float, float]:
    """Return seconds of wall time and of processor time of a process."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or each start would compile all modules
    quiet = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    start = time.perf_counter()
    process = os.posix_spawn(command[0], command, environment, file_actions=quiet)
    _, status, usage = os.wait4(process, 0)
    if status:
        raise SystemExit(
            f"{' '.join(command)} ended with status {os.waitstatus_to_exitcode(status)}"
        )
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def main() -> None:
    """Print the times of both processes and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path, default=DIGITS)
    parser.add_argument("--rounds", type=int, default=31)
    given = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    qgraph = Path(sysconfig.get_path("scripts")) / "qgraph"
    times: list[list[tuple[float, float]]] = [[], []]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.onnx"
        convert = [str(qgraph), "convert", str(given.model), "-o", str(out), "--to", "qdq"]
        for index in range(given.rounds + 1):
            out.unlink(missing_ok=True)
            pair = measured([sys.executable, "-c", REFERENCE]), measured(convert)
            for kept, one in zip(times, pair, strict=True):
                kept += [one] if index else []  # the first run compiles modules
    for kind, place in (("wall", 0), ("processor", 1)):
        reference, own = ([each[place] for each in side] for side in times)
        ratio = statistics.median(b / a for a, b in zip(reference, own, strict=True))
        medians = [1e3 * statistics.median(side) for side in (reference, own)]
        print(f"{kind:9} {medians[0]:6.1f} ms  {medians[1]:6.1f} ms  {ratio:.3f} times")


if __name__ == "__main__":
    main()
