"""Write docs/exporters.md from the results of a folder.

``python -m tests.exporters.table FOLDER`` reads FOLDER/EXPORTER.json and EXPORTER.results.json.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.exporters.jobs import JOBS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "exporters.md"

TITLES = {
    "onnxruntime": "ONNX Runtime",
    "brevitas": "Brevitas",
    "nncf": "NNCF",
    "torchao": "torchao and torch",
    "modelopt": "NVIDIA ModelOpt",
    "quark": "AMD Quark",
    "tf": "TensorFlow and TFLite, by tf2onnx",
    "qkeras": "QKeras, by tf2onnx",
    "aimet": "AIMET",
    "hgq": "HGQ2, by the export of Keras",
    "optimum": "Optimum Quanto",
}

NOT_INSTALLED = (
    ("Neural Compressor 3.10", "this version has no ONNX quantizer any more"),
    ("Olive 0.13.0", "it calls the quantizers of ONNX Runtime and others in this table"),
    ("da4ml", "it compiles models of Keras and HGQ2 to HLS and RTL, and writes no ONNX"),
    ("hls4ml", "it reads ONNX with operators of QONNX, and writes HLS only"),
)

WHY_NONE = {
    "torchao/int8_weights_optimized": "the exporter folded the codes to floats",
    "modelopt/int8_mlp": "ModelOpt quantizes nothing here; the file is float16",
    "modelopt/fp8_cnn": "ModelOpt quantizes nothing here; the file is float16",
    "quark/matmul_nbits": "Quark quantizes nothing here",
    "quark/mx9": "its weights have exponents of two levels, which no DequantizeLinear has",
    "qkeras/": "QKeras writes x + (q - x), which is not read as a quantizer: it gives NaN above "
    "2**124, where quantizers have their largest value; its weights are floats",
    "hgq/wrap": "codes wrap around at their limits, as without overflow_mode=SAT; no dialect has "
    "such a quantizer",
}
"""Why no quantizer is found, by how the file's name begins."""

OTHER_KERNELS = (
    "equal in NumPy; ONNX Runtime gives other results for one of both forms: without VNNI it "
    "saturates products of UINT8 and INT8, accuracy level 4 rounds data to codes, and 16-bit "
    "floats are computed in float32"
)

HEAD = """# Exporters

What qgraph does with the files of each exporter. `tests/exporters` has the scripts: each exports
small networks (an MLP, a CNN, a depthwise CNN, a residual network, a transformer block, an
embedding with a gated block) in an environment of its own. Then every command runs on every file.
{files} files, {cells} conversions and folds: {summary}.

A conversion is **proved** if every quantizer was converted, `prove` shows the result equal to the
file for every input, and `check` finds no difference on random inputs. Where a note says so, this
holds in NumPy only. **partly** is the same, but some quantizers stay. **kept** means that there is
nothing to do: the quantizers are in this dialect already, or the weights are stored as codes.
**named**: the file has operators of a vendor, which `info` names and `convert` replaces.
**undecided**: every change was compared by itself and is equal, but `prove` has no rule for both
files as a whole. Notes explain the other cells.

"""


def main(folder: Path) -> None:
    """Write the page, if the folder has all exporters."""
    missing = [name for name in TITLES if not (folder / f"{name}.json").exists()]
    if missing:
        sys.stdout.write(f"{PAGE.name} is not written: {', '.join(missing)} not run yet\n")
        return
    totals: Counter[str] = Counter()
    notes: list[str] = []
    tables, number = [], 0
    for exporter, title in TITLES.items():
        about = json.loads((folder / f"{exporter}.json").read_text())
        results_file = folder / f"{exporter}.results.json"
        results = json.loads(results_file.read_text()) if results_file.exists() else {}
        versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
        lines = [f"## {title}", "", f"{versions}.", ""]
        if results:
            lines += ["| file | info | run | to qdq | to qonnx | to openvino | to onnx | fold |"]
            lines += ["|---|---|---|---|---|---|---|---|"]
        for name, cells in sorted(results.items()):
            number += 1
            totals.update(_state(cells[job]) for job in JOBS[2:])
            place = f"{exporter}/{name}"
            why = next((text for start, text in WHY_NONE.items() if place.startswith(start)), "")
            row = " | ".join(_cell(job, cells[job], notes, why) for job in JOBS)
            lines.append(f"| {name.removesuffix('.onnx')} | {row} |")
        if about["failed"]:
            lines += ["", "Not exported:", ""]
            lines += [f"- {name}: {_short(reason)}" for name, reason in about["failed"].items()]
        tables += [*lines, ""]
    summary = ", ".join(f"{count} {state}" for state, count in totals.most_common())
    text = HEAD.format(files=number, cells=sum(totals.values()), summary=summary)
    text += "\n".join(tables)
    text += "\n## Exporters without files here\n\n"
    text += "\n".join(f"- {name}: {reason}." for name, reason in NOT_INSTALLED)
    text += "\n\n## Notes\n\n"
    text += "\n".join(f"{index}. {note}" for index, note in enumerate(notes, 1)) + "\n"
    PAGE.write_text(text)


def _state(cell: dict[str, Any]) -> str:
    return {"nothing": "no quantizer", "ran": "runs"}.get(cell["state"], cell["state"])


def _cell(job: str, cell: dict[str, Any], notes: list[str], why: str) -> str:
    state = _state(cell)
    reasons = list(cell.get("reasons") or ())
    if cell.get("check") == "different":
        reasons.append(OTHER_KERNELS)
    elif state in ("proved", "kept", "runs", "shown", "named"):
        return state
    reason = cell.get("reason") or cell.get("why") or "; ".join(reasons)
    if state in ("none", "no quantizer"):
        constant = "no quantizer has a constant input" if job == "fold" else ""
        reason = reason or why or constant or "qgraph finds no quantizer in the file"
    if not reason:
        return state
    short = _short(reason)
    if short not in notes:
        notes.append(short)
    return f"{state} [{notes.index(short) + 1}](#notes)"


def _short(reason: str) -> str:
    line = " ".join(reason.replace("[96m", "").replace("[0m", "").replace("\x1b", "").split())
    return (line if len(line) <= 480 else line[:477] + "...").replace("|", "/")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
