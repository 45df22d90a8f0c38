"""Run every job of qgraph on a file: info, run, convert to each dialect, fold, prove, check.

``python -m tests.exporters.jobs FOLDER RESULTS.json`` does so for all ONNX files below a folder,
each in a process of its own. A conversion counts as proved if it changed or kept all quantizers
that it met, ``prove`` shows the result equal to the file for every input, and ``check`` finds no
difference on random inputs in the NumPy executor; ``check`` in the cell is that of ONNX Runtime.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

JOBS = ("info", "run", "qdq", "qonnx", "openvino", "onnx", "fold")
DIALECTS = ("qdq", "qonnx", "openvino", "onnx")
LIMIT = 120
"""Seconds for each job."""

Cell = dict[str, Any]


def say(*words: object) -> None:
    """Print a line at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def run_jobs(path: Path) -> dict[str, Cell]:
    """Return the result of each job on a model file."""
    jobs: dict[str, Callable[[], Cell]] = {"info": lambda: _info(path), "run": lambda: _run(path)}
    jobs |= {name: lambda name=name: _rewrite(path, name) for name in JOBS[2:]}  # type: ignore[misc]
    return {name: _guarded(job) for name, job in jobs.items()}


def _guarded(job: Callable[[], Cell]) -> Cell:
    from qgraph import QGraphError

    def too_long(*_: object) -> None:
        raise TimeoutError(f"not done within {LIMIT} s")

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LIMIT)
    start = time.perf_counter()
    try:
        cell = job()
    except TimeoutError as error:
        cell = {"state": "timeout", "reason": str(error)}
    except QGraphError as error:
        cell = {"state": "refused", "reason": str(error)}
    except Exception as error:  # a traceback is a result too
        cell = {"state": "traceback", "reason": f"{type(error).__name__}: {error}"}
    finally:
        signal.alarm(0)
    return cell | {"seconds": round(time.perf_counter() - start, 2)}


def _info(path: Path) -> Cell:
    from qgraph.inventory.overview import overview
    from qgraph.model import load

    found = overview(load(path).ir)
    readable = [each for each in found.quantizers if each.reason is None]
    reasons = Counter(_plain(each.reason) for each in found.quantizers if each.reason)
    state = "shown" if any(each.format for each in found.quantizers) else "none"
    if found.instead and "operators of vendors" in found.instead:
        state = "named"
    return {"state": state, "quantizers": len(readable), "unread": dict(reasons.most_common(5))}


def _run(path: Path) -> Cell:
    import qgraph

    model = qgraph.load(path)
    model.run(_feeds(model))
    return {"state": "ran"}


def _feeds(model: Any) -> dict[str, Any]:
    """Return random inputs; whole numbers are 0 or 1, which are valid indices and masks."""
    import numpy as np

    from qgraph.execution.inputs import make_inputs

    shapes = {
        value.name: [d if isinstance(d, int) else 8 if axis else 2 for axis, d in enumerate(shape)]
        for value in model.inputs
        if (shape := value.shape) is not None
    }
    feeds = make_inputs(model.inputs, seed=0, number=0, shapes=shapes)
    return {name: x % 2 if np.issubdtype(x.dtype, np.integer) else x for name, x in feeds.items()}


def _rewrite(path: Path, name: str) -> Cell:
    import qgraph
    from qgraph import transforms

    step = transforms.FoldWeights() if name == "fold" else transforms.ConvertDialect(to=name)
    model = qgraph.load(path)
    report = model.apply(step)
    counts = {key: report.count(key) for key in ("changed", "kept", "refused")}
    reasons = Counter(_plain(s.reason) for s in report.sites if s.outcome == "refused")
    cell: Cell = counts | {"reasons": dict(reasons.most_common(5))}
    if not counts["changed"]:
        state = "refused" if counts["refused"] else "kept" if counts["kept"] else "nothing"
        return cell | {"state": state}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.onnx")
        model.save(out)
        proof = qgraph.prove(path, out)
        cell["verdict"] = str(proof.verdict)
        cell["why"] = next(
            (_plain(r.reason) for r in proof.regions if r.verdict != "proved" and r.reason), ""
        )
        feeds = _feeds(qgraph.load(path))
        cell["check"] = str(qgraph.check(path, out, feeds).verdict)
        cell["numpy"] = str(qgraph.check(path, out, feeds, backend="numpy").verdict)
    if cell["verdict"] != "proved":
        return cell | {"state": cell["verdict"]}
    if cell["numpy"] != "equal":
        return cell | {"state": "check differs"}
    return cell | {"state": "partly" if counts["refused"] else "proved"}


def _plain(reason: str | None) -> str:
    """Return a reason without the names that make each one different."""
    import re

    return re.sub(r"'[^']*'", "...", reason or "")


def _cells(path: Path) -> dict[str, Cell]:
    """Return the results of a file, from a process that holds the library already."""
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)

    def work() -> None:
        sender.send(run_jobs(path))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    sender.close()
    try:
        return dict(receiver.recv())
    except EOFError:
        return {job: {"state": "crash", "reason": "the process ended"} for job in JOBS}
    finally:
        process.join()


def _main(folder: Path, out: Path) -> None:
    import qgraph.comparison.prove
    import qgraph.inventory.overview
    import qgraph.transforms.convert  # noqa: F401 - loaded once, before processes are made

    results = json.loads(out.read_text()) if out.exists() else {}
    for path in sorted(folder.rglob("*.onnx")):
        name = str(path.relative_to(folder))
        if name in results:
            continue
        results[name] = cells = _cells(path)
        say(name, *(f"{job}:{cells[job]['state']}" for job in JOBS))
        out.write_text(json.dumps(results, indent=1))
    for job in JOBS:
        states = Counter(cells[job]["state"] for cells in results.values())
        say(job, *(f"{state} {n}" for state, n in states.most_common()))


if __name__ == "__main__":
    if len(sys.argv) == 2:
        say(json.dumps(run_jobs(Path(sys.argv[1]))))
    else:
        _main(Path(sys.argv[1]), Path(sys.argv[2]))
