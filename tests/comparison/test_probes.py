"""Probes put the data of quantizers beside their thresholds."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.comparison.check import Inputs, check
from qgraph.comparison.probes import Probes, make_probes
from qgraph.errors import OptionError
from qgraph.execution.executor import Executor
from qgraph.model import Model

pytestmark = pytest.mark.sums

IMPORTS = '"": 21, "qonnx.custom_op.general": 1'
QUANT = 'qonnx.custom_op.general.Quant <signed = 1, narrow = 0, rounding_mode = "ROUND">'
PARAMETERS = "float s = {0.1}, float z = {0}, float b = {4}"


def model(body: str, batch: str = "N", more: str = "") -> Model:
    text = (
        f"<ir_version: 10, opset_import: [{IMPORTS}]> g (float[{batch},4] x) => (y) "
        f"<{PARAMETERS}{more}> {{ {body} }}"
    )
    return Model(ir.from_onnx_text(text))


def probed(m: Model, count: int = 8) -> Probes:
    return make_probes(m, Executor(m.ir), count)


def of(m: Model, probes: Probes, name: str) -> np.ndarray:
    runs = [m.run(batch, backend="numpy", taps=[name])[name] for batch in probes.batches]
    return np.concatenate([run.reshape(-1) for run in runs])


DENSE = ", float[4,3] w = {0.3, -0.7, 0.2, 0.9, 0.1, 1.3, -0.4, 0.8, -1.1, 0.6, 0.5, 0.7}"


def test_all_thresholds_of_an_input_are_met_on_both_sides() -> None:
    """0.1 is 0x3DCCCCCD; the thresholds are the ties of x / 0.1, 15 of them between -8 and 7."""
    m = model(f"y = {QUANT} (x, s, z, b)")
    found = probed(m, 15)
    (report,) = found.reports
    assert (report.targets, report.crossed, report.reached) == (15, 15, 15)
    values = np.unique(of(m, found, "x"))
    with np.errstate(all="ignore"):
        codes = np.clip(np.rint(values / np.float32(0.1)), -8, 7)
    last = np.flatnonzero(np.diff(codes))
    assert len(last) == 15
    beside = np.nextafter(values[last], np.float32(np.inf)) == values[last + 1]
    assert beside.all()


def test_elementwise_operators_are_looked_through() -> None:
    m = model(f"m = Mul (x, k) a = Add (m, k) y = {QUANT} (a, s, z, b)", more=", float k = {0.7}")
    found = probed(m)
    (report,) = found.reports
    assert report.targets >= 8
    assert report.crossed == report.targets
    data = of(m, found, "a")
    codes = np.clip(np.rint(data / np.float32(0.1)), -8, 7)
    order = np.argsort(data)
    jumps = np.flatnonzero(np.diff(codes[order]))
    # a number of the input may be up to some numbers of the data wide
    assert np.diff(data[order])[jumps].max() < 1e-6
    assert len(jumps) >= 8


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("batch", ["N", "1"])
def test_thresholds_behind_a_product_are_crossed(batch: str) -> None:
    m = model(f"t = MatMul (x, w) y = {QUANT} (t, s, z, b)", batch, DENSE)
    found = probed(m)
    (report,) = found.reports
    assert (report.node, report.tensor, report.reason) == ("y", "t", None)
    assert (report.targets, report.crossed) == (8, 8)
    assert report.reached >= 4
    assert report.largest_gap is not None
    assert report.largest_gap < 1e-5
    assert sum(len(feeds["x"]) for feeds in found.batches) == 16


def test_a_threshold_that_moved_by_an_ulp_is_found_by_probes_only() -> None:
    """The candidate's data is one ulp larger: codes change in a sliver of all inputs."""
    body = f"t = MatMul (x, w) u = Mul (t, k) y = {QUANT} (u, s, z, b)"
    ulp = f"{1 + 2**-23:.10f}"
    reference, candidate = (model(body, more=f"{DENSE}, float k = {{{k}}}") for k in ("1", ulp))
    assert check(reference, candidate, Inputs(random=20), backend="numpy").verdict == "equal"
    report = check(reference, candidate, Inputs(random=20, probes=8), backend="numpy")
    assert report.verdict == "different"
    assert report.outputs[0].max_abs == pytest.approx(0.1, rel=1e-5)
    assert report.batches > 20
    (probe,) = report.probes
    assert (probe.targets, probe.crossed) == (8, 8)
    told = "made for 8 thresholds of 1 quantizer: 8 lie between"
    assert told in report.to_markdown()
    assert report.first_divergence is not None
    assert report.first_divergence.reference == "u"


@pytest.mark.slow
def test_a_quantizer_behind_another_one_is_crossed_as_near_as_codes_allow() -> None:
    body = f"q = {QUANT} (x, s, z, b) t = MatMul (q, w) y = {QUANT} (t, s, z, b)"
    first, second = probed(model(body, more=DENSE)).reports
    assert first.reached == first.targets > 0
    assert (second.targets, second.crossed) == (8, 8)
    assert second.largest_gap is not None
    assert 0 < second.largest_gap < 20


def test_open_parameters_and_unused_inputs_are_told() -> None:
    m = model(f"t = ReduceMax <keepdims = 0> (x) y = {QUANT} (x, t, z, b)")
    (report,) = probed(m).reports
    assert (report.targets, report.reason) == (0, "its parameters are not constant")
    assert probed(model("y = Neg (x)")) == Probes()


@pytest.mark.slow
def test_a_batch_that_is_no_first_axis_is_run_row_by_row() -> None:
    """A Reshape with a fixed size breaks any batch but one."""
    body = f"r = Reshape (x, d) t = MatMul (r, w) y = {QUANT} (t, s, z, b)"
    m = model(body, more=f"{DENSE}, int64[2] d = {{1, 4}}")
    (report,) = probed(m).reports
    assert (report.targets, report.crossed) == (8, 8)


@pytest.mark.slow
def test_inputs_that_are_no_floats_stay_as_they_are() -> None:
    """Between two of them nothing lies; what is crossed has the same ones on both sides."""
    text = (
        f"<ir_version: 10, opset_import: [{IMPORTS}]> g (float[N,4] x, int64[N,1] k) => (y) "
        f"<{PARAMETERS}{DENSE}> {{ c = Cast <to = 1> (k) t = MatMul (x, w) u = Mul (t, c) "
        f"y = {QUANT} (u, s, z, b) }}"
    )
    m = Model(ir.from_onnx_text(text))
    found = probed(m)
    (report,) = found.reports
    assert 0 < report.crossed <= report.targets == 8
    assert {batch["k"].dtype for batch in found.batches} == {np.dtype(np.int64)}
    pairs = np.concatenate([batch["k"] for batch in found.batches]).reshape(-1, 2)
    assert (pairs[:, 0] == pairs[:, 1]).sum() >= report.crossed


def test_a_negative_number_is_refused() -> None:
    m = model("y = Neg (x)")
    with pytest.raises(OptionError, match="-1 probes are asked for"):
        check(m, m, Inputs(probes=-1))
