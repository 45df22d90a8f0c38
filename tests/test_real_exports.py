"""Two exports of one network by Brevitas that disagree in one operator, and what finds it.

``examples/export_truncation.py`` wrote the files. Numbers to compare with come from PyTorch
(``images.npz``) and from the exporter's formulas, written out here in NumPy.
"""

from __future__ import annotations

import doctest
import re
import shlex
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import qgraph
from qgraph import transforms
from qgraph.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "truncation"
PAGE = ROOT / "docs" / "truncation.md"

POOL = "/pool/trunc_quant/export_handler"
ROUNDINGS = {"floor": np.floor, "round": np.rint}
FORMS = ("qonnx", "qcdq")
PAIRS = pytest.mark.parametrize("dropping", ROUNDINGS)

Floats = npt.NDArray[np.float32]


class Scales(NamedTuple):
    """What the pool's Trunc has for inputs."""

    before: np.float32
    after: np.float32
    bits: int


def file(dropping: str, form: str) -> Path:
    return FOLDER / f"{dropping}_{form}.onnx"


def scales(dropping: str) -> Scales:
    graph = onnx.load(file(dropping, "qonnx")).graph
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    (trunc,) = (node for node in graph.node if node.op_type == "Trunc")
    before, after, bits = (constants[trunc.input[i]].item() for i in (1, 4, 5))
    return Scales(np.float32(before), np.float32(after), int(bits))


def truncated(x: Floats, with_scales: Scales, dropping: str) -> Floats:
    """Compute what the pool does: codes of the sum, without their low bits."""
    before, after, bits = with_scales
    dropped = np.float32(2) ** np.round(np.log2(after / before))
    codes = ROUNDINGS[dropping](np.rint(x / before) / dropped)
    return np.clip(codes, 0, 2**bits - 1) * after


def requantized(x: Floats, with_scales: Scales) -> Floats:
    """Compute what the QCDQ file does: the average on the coarse grid."""
    return np.clip(np.rint(x / with_scales.after), 0, 2**with_scales.bits - 1) * with_scales.after


def floats_from(first: np.float32, last: np.float32, step: int = 1 << 20) -> Any:
    """Yield all float32 numbers between two positive ones, in pieces."""
    start, stop = (int(end.view(np.uint32)) for end in (first, last))
    for low in range(start, stop + 1, step):
        yield np.arange(low, min(low + step, stop + 1), dtype=np.uint32).view(np.float32)


def scores(dropping: str, form: str, backend: Any) -> Floats:
    with np.load(FOLDER / "images.npz") as images:
        found = qgraph.load(file(dropping, form)).run({"x": images["x"]}, backend=backend)
    return found["scores"]


@pytest.mark.parametrize("backend", ["numpy", pytest.param("ort", marks=pytest.mark.runtime)])
@pytest.mark.sums
@PAIRS
def test_the_qonnx_file_is_the_network_and_the_qcdq_file_is_not(
    assert_same_rows, dropping, backend
):
    if backend == "ort":
        pytest.importorskip("onnxruntime")
    with np.load(FOLDER / "images.npz") as images:
        expected = images[dropping]
    found = scores(dropping, "qonnx", backend)
    assert_same_rows(found, expected, atol=5e-6 * np.abs(expected).max())
    apart = np.abs(scores(dropping, "qcdq", backend) - expected).max(axis=1) > 0.05
    # an order of additions may change a code of an image or two
    assert np.count_nonzero(apart) == pytest.approx({"floor": 56, "round": 3}[dropping], abs=2)


def test_different_networks_have_one_qcdq_file():
    assert file("floor", "qcdq").read_bytes() == file("round", "qcdq").read_bytes()
    assert file("floor", "qonnx").read_bytes() != file("round", "qonnx").read_bytes()


@pytest.mark.cases(fast=1)
@PAIRS
def test_exactly_the_truncation_differs(dropping):
    found = qgraph.prove(file(dropping, "qonnx"), file(dropping, "qcdq"))
    assert found.verdict == "different"
    assert sorted(region.verdict for region in found.regions) == ["different"] + ["proved"] * 4
    (region,) = (region for region in found.regions if region.verdict == "different")
    assert list(region.reference_nodes) == [f"{POOL}/Trunc"]
    assert list(region.candidate_nodes) == [
        f"{POOL}/QuantizeLinear",
        f"{POOL}/Clip",
        f"{POOL}/DequantizeLinear",
    ]
    x, at = np.array([region.witness.input], np.float32), scales(dropping)
    assert truncated(x, at, dropping) == np.float32(region.witness.reference)
    assert requantized(x, at) == np.float32(region.witness.candidate)
    assert region.witness.reference != region.witness.candidate


@pytest.mark.cases(fast=0, slow=1)
@PAIRS
def test_the_differing_inputs_are_counted_exactly(dropping):
    """Below a quarter of a step of the result both give 0, above the last code both the last."""
    at = scales(dropping)
    last = np.float32(2**at.bits - 1)
    low, high = at.after / 4, at.after * (last + 1)
    ends = np.array([-np.inf, -high, -low, -0.0, 0, low, high, np.inf], np.float32)
    assert truncated(ends, at, dropping).tolist() == [0] * 6 + [last * at.after] * 2
    assert requantized(ends, at).tolist() == [0] * 6 + [last * at.after] * 2
    count = sum(
        np.count_nonzero(truncated(x, at, dropping) != requantized(x, at))
        for x in floats_from(low, high)
    )
    found = qgraph.prove(file(dropping, "qonnx"), file(dropping, "qcdq"))
    assert [r.differing_inputs for r in found.regions if r.verdict == "different"] == [count]


@pytest.mark.cases(fast=0, slow=1)
@PAIRS
def test_an_input_of_the_whole_model_shows_it(dropping):
    found = qgraph.prove(file(dropping, "qonnx"), file(dropping, "qcdq"), runs=20)
    assert found.counterexample is not None
    a, b = (
        qgraph.load(file(dropping, form)).run(found.counterexample, backend="numpy")["scores"]
        for form in FORMS
    )
    assert np.abs(a - b).max() > 0.05


@pytest.mark.cases(fast=0, slow=1)
@PAIRS
def test_the_certificate_holds(dropping, tmp_path, capsys):
    pair = [str(file(dropping, form)) for form in FORMS]
    certificate = str(tmp_path / "proof.json")
    assert main(["prove", *pair, "--certificate", certificate]) == 1
    assert main(["prove", *pair, "--verify", certificate]) == 1
    assert "VERIFIED" in capsys.readouterr().out


@PAIRS
def test_reduce_leaves_the_truncation(dropping):
    with np.load(FOLDER / "images.npz") as images:
        inputs = {"x": images["x"]}
    found = qgraph.reduce(file(dropping, "qonnx"), file(dropping, "qcdq"), inputs, backend="numpy")
    assert found.node == f"{POOL}/Trunc"
    assert [node.op_type for node in found.reference.graph] == ["Trunc"]
    assert [node.op_type for node in found.candidate.graph] == [
        "QuantizeLinear",
        "Clip",
        "DequantizeLinear",
    ]


@PAIRS
def test_diff_shows_it(dropping, capsys):
    assert main(["diff", *(str(file(dropping, form)) for form in FORMS)]) == 1
    text = capsys.readouterr().out
    assert f"! {POOL}/Trunc_output_0:" in text
    assert ("rounding: FLOOR -> ROUND" in text) == (dropping == "floor")
    assert text.endswith("4 same, 1 changed\n")


@pytest.mark.cases(fast=1, slow=7)
@pytest.mark.parametrize("to", ["qdq", "qonnx", "openvino", "onnx"])
@pytest.mark.parametrize("form", FORMS)
@PAIRS
def test_no_conversion_of_ours_differs(dropping, form, to):
    model = qgraph.load(file(dropping, form))
    converted = model.clone()
    converted.apply(transforms.ConvertDialect(to=to))
    found = qgraph.prove(model, converted)
    assert found.verdict == "proved", found.regions


BLOCK = re.compile(r"^```text\n\$ (qgraph .*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize(("command", "output"), BLOCK.findall(PAGE.read_text()))
def test_the_page_shows_what_is_printed(command, output, tmp_path, monkeypatch, capsys):
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) in {0, 1}
    printed = capsys.readouterr().out
    assert doctest.OutputChecker().check_output(output, printed, doctest.ELLIPSIS), printed
