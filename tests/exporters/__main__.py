"""Install each exporter, export with it, run every job, and write docs/exporters.md.

``python -m tests.exporters FOLDER [EXPORTER ...]`` makes an environment for each exporter in the
folder, one at a time, and removes it afterwards. All see the packages of the environment
``common``, which are installed once. An exporter that cannot be installed is noted on the page, and
the others go on. ``--keep`` keeps the environments, and a second run uses them; ``--jobs`` exports
nothing and runs the jobs on the files of the folder anew. Needs network and 10 GB. Continuous
integration does not run it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from tests.exporters.table import main as write_table

ROOT = Path(__file__).resolve().parents[2]

COMMON = "common"

EXPORTERS = {
    COMMON: ("torch==2.13.0", "onnx", "onnxscript", "onnxruntime", "numpy"),
    "onnxruntime": (),
    "brevitas": ("brevitas>=0.13", "onnxoptimizer"),
    "nncf": ("nncf",),
    "torchao": ("torchao",),
    "modelopt": ("nvidia-modelopt[onnx]", "requests", "huggingface_hub", "safetensors", "regex"),
    "quark": ("amd-quark",),
    "tf": ("tf2onnx", "tensorflow-cpu"),
    # QKeras imports pyparsing, which it does not ask for.
    "qkeras": ("qkeras", "pyparsing", "tf2onnx", "tensorflow-cpu"),
    "aimet": ("aimet-onnx",),
    "hgq": ("HGQ2",),
    "optimum": ("optimum-quanto",),
}
"""Packages by exporter; ``with_EXPORTER.py`` has its exports. All have those of ``common``."""

SETTINGS = {
    "KERAS_BACKEND": "torch",
    "NNCF_EXTENSION_LOAD_TIMEOUT": "4000",
    "TF_USE_LEGACY_KERAS": "1",
}


def _environment(folder: Path, exporter: str) -> str:
    """Install an exporter in an environment of its own, and return the Python of it."""
    place = folder / "environments" / exporter
    python = str(place / "bin" / "python")
    if not Path(python).exists():
        venv.create(place, with_pip=True)
        if exporter != COMMON:
            (library,) = place.glob("lib/python*/site-packages")
            shared = folder / "environments" / COMMON / library.relative_to(place)
            (library / "common.pth").write_text(f"{shared}\n")
    packages = [*EXPORTERS[COMMON], *EXPORTERS[exporter]]
    # Builds of packages have environments of their own, which take the same torch.
    constraints = folder / "constraints.txt"
    constraints.write_text(f"{EXPORTERS[COMMON][0]}\n")
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--no-compile", *packages],
        check=True,
        env=os.environ | {"PIP_CONSTRAINT": str(constraints)},
    )
    return python


def _export(folder: Path, exporter: str, *, keep: bool) -> None:
    place = folder / "environments" / exporter
    notes = folder / f"{exporter}.json"
    try:
        python = _environment(folder, exporter)
        extensions = str(folder / "environments" / "extensions")
        paths = {"PYTHONPATH": str(ROOT), "TORCH_EXTENSIONS_DIR": extensions}
        environment = os.environ | SETTINGS | paths
        module = f"tests.exporters.with_{exporter}"
        command = [python, "-m", module, str(folder), exporter]
        subprocess.run(command, check=True, env=environment, cwd=ROOT)
    except subprocess.CalledProcessError as error:
        what = "is not installed" if "pip" in error.cmd else "ended early"
        failed = {"all": f"the exporter {what}: {' '.join(error.cmd[1:])}"}
        notes.write_text(json.dumps({"versions": {}, "failed": failed}, indent=1))
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.exporters", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("exporters", nargs="*", metavar="EXPORTER")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--jobs", action="store_true", help="export nothing; run the jobs anew")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if not options.jobs:
        _environment(folder, COMMON)
    for exporter in options.exporters or [each for each in EXPORTERS if each != COMMON]:
        if not options.jobs:
            _export(folder, exporter, keep=options.keep)
        results = folder / f"{exporter}.results.json"
        results.unlink(missing_ok=True)
        jobs = [sys.executable, "-m", "tests.exporters.jobs"]
        subprocess.run([*jobs, str(folder / exporter), str(results)], check=True, cwd=ROOT)
    if not (options.keep or options.jobs):
        shutil.rmtree(folder / "environments", ignore_errors=True)
    write_table(folder)


if __name__ == "__main__":
    _main()
