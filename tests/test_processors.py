"""Reports, certificates and models are the same bytes on every processor."""

from __future__ import annotations

import json
import math
import operator
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]

CORES = {"PRESCOTT": "", "HASWELL": "avx2", "SKYLAKEX": "avx512f"}
"""Kernels of OpenBLAS, and what a processor needs to run them."""

NARROW = "X86_V3 X86_V4 AVX512_ICL"
"""Groups of instructions for which NumPy has code of its own."""

FUNCTIONS = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
    g (float[N,4] x) => (float[N,4] y)
    <float[4] e = {-3.7, -0.3, 1.1, 5.3}, float[4] p = {0.7, 1.3, 2.9, 3.1}, float s = {0.0371},
     uint8 z = {101}, float t = {0.0117}, uint8 o = {17}> {
        a = Exp (e)  b = Log (p)  c = Pow (p, e)  d = Sigmoid (e)
        f = Add (a, b)  h = Mul (c, d)  k = Tanh (h)  m = Sin (f)
        n = Mul (x, k)  r = Add (n, m)
        q = QuantizeLinear (r, s, z)
        v = com.microsoft.QLinearSigmoid (q, s, z, t, o)
        y = DequantizeLinear (v, t, o) }"""

NUMBERS = [k / 61 - 4 for k in range(512)]
LISTED = ", ".join(map(repr, NUMBERS))
HEAD = f"""<ir_version: 10, opset_import: ["": 21]> g (float[16,32] x) => (float[16,32] y)
    <float[16,32] n = {{{LISTED}}}, float[32,16] m = {{{LISTED}}}"""
COMPUTED = {
    "exp": "k = Exp (n) y = Mul (x, k)",
    "tanh": "k = Tanh (n) y = Mul (x, k)",
    "power": "p = Abs (n) k = Pow (p, n) y = Mul (x, k)",
    "sum": "p = MatMul (n, m) k = MatMul (p, n) y = Mul (x, k)",
}
"""Constants that nodes compute, and that the other model stores."""


def stored(name: str) -> str:
    numbers = [float(np.float32(number)) for number in NUMBERS]
    match name:
        case "exp":
            found = [math.exp(number) for number in numbers]
        case "tanh":
            found = [math.tanh(number) for number in numbers]
        case "power":
            found = [abs(number) ** number for number in numbers]
        case _:
            n, m = (np.float64(numbers).reshape(shape).tolist() for shape in ((16, 32), (32, 16)))
            found = [number for row in _product(_product(n, m), n) for number in row]
    listed = ", ".join(f"{np.float32(number):.9g}" for number in found)
    return f"{HEAD}, float[16,32] k = {{{listed}}}> {{ y = Mul (x, k) }}"


def _product(a: list[list[float]], b: list[list[float]]) -> list[list[float]]:
    columns = list(zip(*b, strict=True))
    return [[math.fsum(map(operator.mul, row, column)) for column in columns] for row in a]


def pairs() -> list[str]:
    return [text for name in COMPUTED for text in (f"{HEAD}> {{ {COMPUTED[name]} }}", stored(name))]


SCRIPT = """
import hashlib, json, sys
from pathlib import Path
import onnx.parser
import onnx_ir as ir
import qgraph
from qgraph import transforms
from qgraph.text import json_text

def show(what, data):
    print(what, hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest())

def treat(name, source, *steps):
    reference, candidate = qgraph.load(source), qgraph.load(source)
    report = candidate.apply(*steps)
    show(name + " report", json.dumps([repr(site) for site in report]))
    show(name + " model", ir.to_proto(candidate.ir).SerializeToString(deterministic=True))
    certificate = qgraph.prove(reference, candidate, evidence=True)
    show(name + " " + certificate.verdict, json_text(certificate.to_json()))

functions, *texts = json.load(sys.stdin)
for form in ("exact", "qdq"):
    lower = transforms.LowerIntegerOperators(form=form, exact="near")
    treat("functions " + form, onnx.parser.parse_model(functions), lower)
for computed, stored in zip(texts[::2], texts[1::2], strict=True):
    sides = [qgraph.load(onnx.parser.parse_model(text)) for text in (computed, stored)]
    certificate = qgraph.prove(*sides, evidence=True)
    show("constants " + certificate.verdict, json_text(certificate.to_json()))
for path, to in zip(map(Path, sys.argv[1:]), ("qdq", "openvino"), strict=True):
    treat(path.stem + " " + to, path, transforms.ConvertDialect(to=to), transforms.FoldWeights())
"""


def features() -> str:
    path = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not path.is_file():
        pytest.skip("it is about processors of one family, under Linux")
    return path.read_text()


def run(folder: Path, **settings: str) -> str:
    paths = sorted((ROOT / "examples").glob("digits_*.onnx"))
    assert paths
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, paths)],
        input=json.dumps([FUNCTIONS, *pairs()]),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | settings,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.exhaustive
def test_nothing_depends_on_the_processor(tmp_path: Path) -> None:
    present = features()
    cores = [name for name, needed in CORES.items() if needed in present]
    found = {run(tmp_path, OPENBLAS_CORETYPE=core) for core in cores}
    narrow = run(tmp_path, OPENBLAS_CORETYPE="PRESCOTT", NPY_DISABLE_CPU_FEATURES=NARROW)
    assert "functions exact proved" in narrow
    # rounded once, three functions have the stored results; sums that round are not known
    assert narrow.count("constants proved") == 3
    assert narrow.count("constants undecided") == 1
    assert found == {narrow}
