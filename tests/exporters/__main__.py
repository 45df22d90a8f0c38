"""Install each exporter, export with it, run every job, and write docs/exporters.md.

``python -m tests.exporters FOLDER [EXPORTER ...]`` makes an environment for each exporter in the
folder, one at a time, and removes it afterwards. Needs network and about 10 GB. Continuous
integration does not run it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from tests.exporters.table import main as write_table

COMMON = ("torch==2.13.0", "onnx", "onnxscript", "onnxruntime", "numpy")
"""What every environment has: the networks are those of torch."""

EXPORTERS = {
    "onnxruntime": (),
    "brevitas": ("brevitas>=0.13", "onnxoptimizer"),
    "nncf": ("nncf",),
    "torchao": ("torchao",),
    "modelopt": ("nvidia-modelopt[onnx]", "requests", "huggingface_hub", "safetensors", "regex"),
    "quark": ("amd-quark",),
    "tf": ("tf2onnx", "tensorflow-cpu"),
    "aimet": ("aimet-onnx",),
    "hgq": ("HGQ2",),
    "optimum": ("optimum-quanto",),
}
"""Packages by exporter; ``with_EXPORTER.py`` has its exports."""

SETTINGS = {"KERAS_BACKEND": "torch", "NNCF_EXTENSION_LOAD_TIMEOUT": "400"}


def _export(folder: Path, exporter: str) -> None:
    place = folder / "environments" / exporter
    venv.create(place, with_pip=True)
    python = str(place / "bin" / "python")
    subprocess.run(
        [python, "-m", "pip", "install", "-q", *COMMON, *EXPORTERS[exporter]], check=True
    )
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | SETTINGS | {"PYTHONPATH": str(root)}
    module = f"tests.exporters.with_{exporter}"
    subprocess.run(
        [python, "-m", module, str(folder), exporter], check=False, env=environment, cwd=root
    )
    shutil.rmtree(place)
    jobs = [sys.executable, "-m", "tests.exporters.jobs"]
    results = folder / f"{exporter}.results.json"
    subprocess.run([*jobs, str(folder / exporter), str(results)], check=True, cwd=root)


if __name__ == "__main__":
    wanted = sys.argv[2:] or list(EXPORTERS)
    for each in wanted:
        _export(Path(sys.argv[1]).resolve(), each)
    write_table(Path(sys.argv[1]))
