"""Codes that one model rounds before a Concat, and the other one behind it."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import qgraph
from qgraph import Tolerances

pytestmark = pytest.mark.runtime

TEXT = """<ir_version: 10, opset_import: ["": 21]>
    net (int8[1,2,3,3] x) => (float y, q)
    <int8[3,2,1,1] w = {1, 2, 3, -4, 5, 7}, int8[4,2,1,1] v = {3, -2, 1, 5, 9, -8, 7, 6},
     float s = {0.3}, float s_w = {S_W}, int8 z = {0}, float f = {F}, float off = {OFF},
     float t = {1.7}, float t_b = {T_B}, int8 z_t = {-5},
     int8[2,7,1,1] k = {1, -2, 3, 4, -5, 6, 7, -3, 2, 4, 5, -6, 1, 2}, float[2] bias = {0.1, -0.2},
     float s_k = {S_K}, float s_y = {3.1}> {
        a = DequantizeLinear (x, s, z)
        w_real = DequantizeLinear (w, s_w, z)
        v_real = DequantizeLinear (v, s_w, z)
        m_sum = Conv (a, w_real) m = Mul (m_sum, f)
        n_sum = Conv (a, v_real) n_all = Mul (n_sum, f) n = Add (n_all, off)
        BODY
        k_real = DequantizeLinear (k, s_k, z)
        o = Conv (d, k_real, bias)
        p = QuantizeLinear (o, s_y, z_t)
        y = DequantizeLinear (p, s_y, z_t)
    }"""
PARTS = "q_a = QuantizeLinear (ONE, t, z_t) q_b = QuantizeLinear (OTHER, t_b, z_t)"
BODIES = {
    "before": f"""{PARTS} q = Concat <axis = 1> (q_a, q_b)
        d_a = DequantizeLinear (q_a, t, z_t) d_b = DequantizeLinear (q_b, t_b, z_t)
        d = Concat <axis = 1> (d_a, d_b)""",
    "before, as codes": f"""{PARTS} q = Concat <axis = 1> (q_a, q_b)
        d = DequantizeLinear (q, t, z_t)""",
    "behind": """c = Concat <axis = 1> (m, n)
        q = QuantizeLinear (WHOLE, t, z_t)
        d = DequantizeLinear (q, t, z_t)""",
}
RELUS = {
    "before": "r_a = Relu (m) r_b = Relu (n) ",
    "before, as codes": "r_a = Relu (m) r_b = Relu (n) ",
    "behind": "",
}


def model(
    name: str, *, folded: bool, relu: bool = False, off: float = 0.0, t_b: float = 1.7
) -> ir.Model:
    """Return a model; the same numbers are meant if it is folded, up to a constant ``off``."""
    body = (RELUS[name] if relu else "") + BODIES[name]
    if relu and name == "behind":
        body = body.replace("q = ", "r = Relu (c) q = ")
    numbers = {
        "BODY": body,
        "ONE": "r_a" if relu else "m",
        "OTHER": "r_b" if relu else "n",
        "WHOLE": "r" if relu else "c",
        "S_W": "0.065" if folded else "0.05",
        "{F": "{1" if folded else "{1.3",
        "OFF": str(off),
        "T_B": str(t_b),
        "S_K": "0.050001" if folded else "0.05",
    }
    text = TEXT
    for old, new in numbers.items():
        text = text.replace(old, new)
    return ir.from_onnx_text(text)


def codes(each: ir.Model) -> np.ndarray:
    """Return what ONNX Runtime computes before the second convolution."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = ir.to_proto(each)
    kinds = onnx.TensorProto.FLOAT, onnx.TensorProto.INT8
    for output, kind in zip(proto.graph.output, kinds, strict=True):
        output.ClearField("type")
        output.type.tensor_type.elem_type = kind
    session = ort.InferenceSession(proto.SerializeToString(), options)
    random = np.random.default_rng(3)
    batches = [random.integers(-128, 128, (1, 2, 3, 3)).astype(np.int8) for _ in range(60)]
    return np.stack([session.run(["q"], {"x": x})[0].astype(int) for x in batches])


def bounds(*pair: ir.Model) -> dict[tuple[str, str], int]:
    proof = qgraph.prove(*pair, within="1step")
    assert proof.verdict in ("bounded", "different"), [str(r.reason) for r in proof.regions]
    return {
        (r.reference_value, r.candidate_value): r.bound.max_steps
        for r in proof.regions
        if r.verdict == "bounded"
    }


def ends(*names: str) -> list[tuple[str, ...]]:
    """Return the pairs of quantizers that give the parts of codes."""
    values = [("q", "q") if name == "behind" else ("q_a", "q_b") for name in names]
    return list(zip(*values, strict=True))


PAIRS = [pair for pair in itertools.permutations(BODIES, 2) if "behind" in pair]
PAIRS.append(("before", "before, as codes"))


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("pair", PAIRS)
def test_codes_before_and_behind_a_concat_are_bounded_part_by_part(pair, relu):
    one, other = model(pair[0], folded=False, relu=relu), model(pair[1], folded=True, relu=relu)
    assert bounds(one, other) == dict.fromkeys([*ends(*pair), ("p", "p")], 1)
    assert np.abs(codes(one) - codes(other)).max() <= 1


@pytest.mark.cases(fast=0, slow=2)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("off", "t_b", "least"), [(2.6 * 1.7, 1.7, 3), (0.0, 1.9, 3)])
def test_a_part_with_another_bias_or_scale_has_a_bound_of_its_own(turned, off, t_b, least):
    # sums up to 17 * 128 * 0.3 * 0.065 are 25 steps of 1.7, and 22.3 steps of 1.9
    names = ("before", "behind")[:: -1 if turned else 1]
    one, other = (
        model(name, folded=name == "behind", off=off * (name == "behind"), t_b=t_b)
        for name in names
    )
    result = bounds(one, other)
    first, second = (result[each] for each in ends(*names))
    apart = np.abs(codes(one) - codes(other))
    assert apart[:, :, :3].max() <= first == 1
    assert least == apart[:, :, 3:].max() <= second <= least + 1


@pytest.mark.slow
def test_tensors_of_one_form_with_other_numbers_of_channels_are_no_pair():
    one, other = (model("before", folded=folded) for folded in (False, True))
    assert bounds(one, other) == {("q_a", "q_a"): 1, ("q_b", "q_b"): 1, ("p", "p"): 1}


def test_one_part_that_is_there_twice_is_one_region():
    def twice(body: str, scale: str) -> ir.Model:
        return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
            net (int8[1,4] x) => (float y)
            <float s = {{{scale}}}, float[4,2] w = {{1, 3, 2, 4, -1, 2, 5, 7}}, float t = {{0.7}},
             int8 z = {{0}}> {{
                a = DequantizeLinear (x, s, z) m = MatMul (a, w) {body}
            }}""")

    before = twice(
        "q = QuantizeLinear (m, t, z) d = DequantizeLinear (q, t, z) y = Concat <axis = 1> (d, d)",
        "0.3",
    )
    behind = twice(
        "c = Concat <axis = 1> (m, m) q = QuantizeLinear (c, t, z) y = DequantizeLinear (q, t, z)",
        "0.30001",
    )
    proof = qgraph.prove(before, behind, within="1step")
    assert [(r.reference_value, r.candidate_value) for r in proof.regions] == [
        ("q", "q"),
        ("y",) * 2,
    ]


def test_data_are_not_compared_where_codes_are_a_part_of_others():
    pair = model("before", folded=False), model("behind", folded=True)
    x = np.random.default_rng(0).integers(-128, 128, (1, 2, 3, 3)).astype(np.int8)
    report = qgraph.check(*pair, {"x": x}, tolerances=Tolerances(within="5step"))
    measured = {segment.value: segment for segment in report.bounds.segments}
    assert "part of others" in measured["q_a"].reason
    assert all(segment.violated is None for segment in report.bounds.segments)
