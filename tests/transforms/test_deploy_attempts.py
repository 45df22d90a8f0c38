"""Which attempts of a deployment are within the limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import qgraph
from qgraph.bound import Bounding
from qgraph.certificate import ProofVerdict, RegionVerdict
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.targets.reader import profile_of
from qgraph.transforms.deployment.attempts import Attempt
from qgraph.transforms.deployment.listing import TargetRuntime, listed


def test_what_is_neither_proved_nor_bounded_is_not_within_the_limits(network: Path) -> None:
    regions = tuple(
        RegionVerdict(
            reference_nodes=(),
            candidate_nodes=(),
            reference_value=each,
            candidate_value=each,
            verdict=each,
        )
        for each in ProofVerdict
    )
    certificate = replace(qgraph.prove(network, network), regions=regions)
    model = qgraph.load(network)
    attempt = Attempt(model, Report(), model, Bounding())
    vars(attempt)["certificate"] = certificate
    failing = attempt.failing
    assert {each.verdict for each in failing} == {ProofVerdict.DIFFERENT, ProofVerdict.UNDECIDED}


NETWORK = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2, 3] x) => (float[2, 2] y)
    <float s = {0.5}, int8 z = {0}, int8[3, 2] k = {1, 2, 3, 4, 5, 6}, float t = {0.25},
     int8 u = {0}> {
        q = QuantizeLinear (x, s, z)
        a = DequantizeLinear (q, s, z)
        w = DequantizeLinear (k, t, u)
        [m] p = MatMul (a, w)
        r = QuantizeLinear (p, s, z)
        y = DequantizeLinear (r, s, z)
    }"""


@pytest.mark.slow
@pytest.mark.parametrize(("operand", "what"), [("a", "data, 'b',"), ("w", "weights, 'b',")])
def test_a_layer_whose_operand_is_no_code_any_more_names_it(operand: str, what: str) -> None:
    operands = "a, w".replace(operand, "b")
    result = NETWORK.replace(f"{operand} = Dequantize", "c = Dequantize")
    result = result.replace("[m] p = MatMul (a, w)", f"b = Sin (c) [m] p = MatMul ({operands})")
    before, after = (qgraph.load(onnx.parser.parse_model(text)) for text in (NETWORK, result))
    report = Report(sites=[SiteReport("m", "MatMul", "", SiteStatus.CHANGED)])
    found = listed(
        before, Attempt(after, report, before, Bounding()), TargetRuntime(profile_of("tensorrt"))
    )
    (layer,) = found.layers
    assert layer.reason_id == "QG226"
    assert f"no plain quantizer of its {what} could be written" in layer.reason
