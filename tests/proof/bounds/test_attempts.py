"""How often models are compared to find what has no bound."""

from unittest.mock import patch

import onnx_ir as ir
import pytest

import qgraph
from qgraph.certificate import ProofVerdict
from qgraph.proof.bounds import regions

PAIR = """<ir_version: 10, opset_import: ["": 21]>
net (float16[N,4] x) => (float16[N,4] y, uint8[N,4] q)
<float16 s = {{{scale}}}, uint8 z = {{128}}, float16 t = {{14336}}, float16 f = {{16384}}> {{
    c = QuantizeLinear (x, s, z)
    d = DequantizeLinear (c, s, z)
    a = Add (x, d)
    y = Mul (a, f)
    {last}
}}"""
SCALES = 13312, 13353
"""0.25 and 0.26, as bits of float16."""

PLAIN = "q = QuantizeLinear (d, t, z)"
DIVIDES = "e = Reciprocal (d) q = QuantizeLinear (e, t, z)"


@pytest.mark.parametrize(("last", "attempts"), [(PLAIN, 1), (DIVIDES, 2)])
def test_inputs_are_counted_only_if_that_may_change_the_result(last: str, attempts: int) -> None:
    """The output y has no bound, as x has no range. The values differ wherever codes are not 0."""
    models = [ir.from_onnx_text(PAIR.format(scale=s, last=last)) for s in SCALES]
    with patch.object(regions, "certify", side_effect=regions.certify) as certify:
        certificate = qgraph.prove(*models, within="1step")
    assert certify.call_count == attempts
    verdicts = {r.reference_value: r.verdict for r in certificate.regions}
    assert verdicts["c"] is ProofVerdict.BOUNDED
    assert verdicts["y"] is ProofVerdict.UNDECIDED
