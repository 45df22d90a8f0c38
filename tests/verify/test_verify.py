"""A certificate holds or does not; whatever is changed in it is noticed."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph import transforms
from qgraph.cli.main import main
from qgraph.comparison.replay import read
from qgraph.effort import time_limit
from qgraph.errors import EquivalenceError, ModelError
from qgraph.text import json_text
from tests.verify.checking import certificate, checked, leaves, verify

HEADER = '<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>'

OURS = f"""{HEADER} g (float[N,2] x) => (float[N,2] y)
    <float[1,2] s = {{0.1, 0.3}}, float z = {{0}}, float b = {{4}}, float t = {{0.25}},
     float u = {{2}}, float[2,2] w = {{1, -0.26, 0.6, 0.1}}> {{
        [act] a = qonnx.custom_op.general.Quant
            <signed = 1, narrow = 0, rounding_mode = "ROUND">(x, s, z, b)
        [weight] v = qonnx.custom_op.general.Quant
            <signed = 1, narrow = 1, rounding_mode = "ROUND">(w, t, z, b)
        [product] m = MatMul(a, v)
        [relu] r = Relu(m)
        [out] y = qonnx.custom_op.general.Quant
            <signed = 0, narrow = 0, rounding_mode = "FLOOR">(r, u, z, b)
    }}"""


def converted(to: str = "qdq", text: str = OURS) -> tuple[ir.Model, ir.Model]:
    ours = ir.from_onnx_text(text)
    theirs = qgraph.load(ours).clone()
    theirs.apply(transforms.ConvertDialect(to=to))
    return ours, theirs.ir


@functools.cache
def _written(to: str) -> str:
    return json.dumps(certificate(*converted(to)))


def written(to: str = "qdq") -> dict[str, Any]:
    """The certificate of the models that ``converted`` returns."""
    return dict(json.loads(_written(to)))


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize("to", ["qdq", "openvino", "onnx"])
def test_a_certificate_holds_for_its_models(to):
    assert verify(written(to), *converted(to)) == "proved"


def test_what_the_prover_does_not_reach_in_time_is_not_refuted():
    ours = ir.from_onnx_text(
        f"""{HEADER} g (float[4,2] x) => (float[4,2] y) <float[2,2] s = {{0.1, 0.2, 0.3, 0.4}}> {{
            q = QuantizeLinear <axis = 0, block_size = 2, output_dtype = 3> (x, s)
            y = DequantizeLinear <axis = 0, block_size = 2> (q, s) }}"""
    )
    theirs = qgraph.load(ours).clone()
    theirs.apply(transforms.ConvertDialect(to="qonnx"))
    document = certificate(ours, theirs)
    assert document["verdict"] == "proved"
    assert leaves(document, ours, theirs)
    with time_limit(1e-9):
        assert verify(document, ours, theirs) == "undecided"
        late = certificate(ours, theirs)
    assert verify(document, ours, theirs) == "proved"
    assert late["verdict"] == "undecided"
    assert not set(document["conditions"]) <= set(late["conditions"])
    assert verify(late, ours, theirs) == "undecided"


@pytest.mark.parametrize(("counted", "holds"), [(1, True), (282, True), (283, False)])
def test_a_certificate_may_state_at_least_how_many_inputs_differ(counted, holds):
    """Of a Quant with zero point 3 and a plain pair, 282 inputs differ."""
    text = f"""{HEADER} g (float[N,2] x) => (float[N,2] y)
        <float s = {{0.25}}, float z = {{3}}, float b = {{8}}, uint8 o = {{3}}> {{ NODES }}"""
    quant = """y = qonnx.custom_op.general.Quant
        <signed = 0, narrow = 0, rounding_mode = "ROUND"> (x, s, z, b)"""
    pair = "q = QuantizeLinear (x, s, o) y = DequantizeLinear (q, s, o)"
    models = [ir.from_onnx_text(text.replace("NODES", nodes)) for nodes in (quant, pair)]
    document = certificate(*models)
    (region,) = document["regions"]
    assert region["differing_inputs"] == 282
    region |= {"method": "none", "counted": False, "differing_inputs": counted, "boxes": []}
    region |= {"differing_codes": None, "largest_steps": None}
    region["differing_channels"] = [[0, counted]]
    if holds:
        assert verify(document, *models) == "different"
    else:
        with pytest.raises(EquivalenceError, match="another result"):
            verify(document, *models)


@pytest.mark.slow
def test_a_certificate_of_equal_bits_is_proved_again_as_that():
    """Proved equal in values by one region, and bounded where equal bits are asked for."""
    text = f"""{HEADER} g (int8[N,2] i) => (float[N,2] y)
        <float s = {{0.05}}, int8 o = {{0}}, int64[2] k = {{1, 0}}, float t = {{SCALE}},
         int8 z = {{-128}}> {{
            a = DequantizeLinear (i, s, o)
            b = Gather <axis = 1> (a, k)
            q = QuantizeLinear (b, t, z)
            d = DequantizeLinear (q, t, z)
            r = Relu (d)
            e = Gather <axis = 1> (r, k)
            f = QuantizeLinear (e, s, o)
            y = DequantizeLinear (f, s, o)
        }}"""
    models = [ir.from_onnx_text(text.replace("SCALE", each)) for each in ("0.25", "0.25000003")]
    for exact in ("values", "bits"):
        proof = qgraph.prove(*models, exact=exact, evidence=True)
        assert verify(json.loads(json_text(proof.to_json())), *models) == proof.verdict


def test_a_certificate_of_overflow_to_nan_holds():
    ours = ir.from_onnx_text(
        f"""{HEADER} g (float[N] x) => (float[N] y) <float s = {{0.1}}> {{
            [quantize] q = QuantizeLinear <saturate = 0, output_dtype = 17> (x, s)
            [dequantize] y = DequantizeLinear (q, s) }}"""
    )
    theirs = qgraph.load(ours).clone()
    theirs.apply(transforms.ConvertDialect(to="qonnx"))
    assert [node.op_type for node in theirs.ir.graph] == ["FloatQuant"]
    document = certificate(ours, theirs.ir)
    (region,) = document["regions"]
    (boxes,) = region["boxes"]
    assert len(boxes["starts"].split()) < 1000  # NaN is one part on either side
    assert verify(document, ours, theirs.ir) == "proved"


def test_boxes_tile_all_inputs_of_every_channel():
    act = written()["regions"][0]
    assert [boxes["channel"] for boxes in act["boxes"]] == [0, 1]
    for boxes in act["boxes"]:
        starts = np.cumsum([int(step) for step in boxes["starts"].split()])
        # the keys of the smallest and the largest finite number
        assert starts[0] == -2139095040
        assert (np.diff(starts) > 0).all()
        assert starts[-1] < 2139095039
        # 16 codes of 4 bits, of which the one of zero has two signs
        assert len(starts) in (16, 17)


@pytest.mark.slow
def test_a_certificate_of_different_models_states_exact_counts():
    # with the step of 2, the last quantizer would give 0 for all inputs
    ours, theirs = converted(text=OURS.replace("float u = {2}", "float u = {0.1}"))
    for node in theirs.graph:
        if node.op_type == "Clip":
            high = node.inputs[2]
            high.const_value = ir.tensor(high.const_value.numpy() - 1, name=high.name)
            break
    document = certificate(ours, theirs)
    assert document["verdict"] == "different"
    assert verify(document, ours, theirs) == "different"
    region = next(r for r in document["regions"] if r["verdict"] == "different")
    region["differing_inputs"] += 1
    with pytest.raises(EquivalenceError, match="prover finds another result"):
        verify(document, ours, theirs)


def tampered(document: dict, what: str) -> None:
    """Change one thing in a certificate."""
    act = document["regions"][0]
    match what:
        case "no region":
            del document["regions"][0]
        case "other nodes":
            act["candidate_nodes"] = act["candidate_nodes"][1:]
        case "another entry":
            act["entries"] = [["m", "m"]]
        case "bits":
            act["exactness"] = "bits"
        case "a sign of zero less":
            act["zero_sign_inputs"] -= 1
        case "a better verdict":
            document["verdict"] = "undecided"


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize(
    "what",
    [
        "no region",
        "other nodes",
        "another entry",
        "bits",
        "a sign of zero less",
        "a better verdict",
    ],
)
def test_a_changed_certificate_does_not_hold(what):
    ours, theirs = converted()
    changed = written()
    tampered(changed, what)
    assert changed != written()
    with pytest.raises((EquivalenceError, ModelError), match=r"does not hold|cannot be read"):
        verify(changed, ours, theirs)


def test_a_region_that_names_a_value_of_no_model_does_not_hold():
    ours, theirs = converted()
    changed = written()
    changed["regions"][0]["candidate_value"] = "nowhere"
    with pytest.raises(EquivalenceError, match=r"has no value of the names .*nowhere"):
        verify(changed, ours, theirs)


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize("where", ["scale", "weight", "rounding", "relu"])
def test_a_certificate_does_not_hold_for_other_models(where):
    ours, theirs = converted("onnx")
    document = written("onnx")
    for node in theirs.graph:
        if where == "rounding" and node.op_type == "Floor":
            node.op_type = "Ceil"
        if where == "relu" and node.op_type == "Relu":
            node.op_type = "Abs"
    for value in theirs.graph.initializers.values():
        array = value.const_value.numpy()
        if where == "scale" and array.shape == (1, 2):
            value.const_value = ir.tensor(np.nextafter(array, np.float32(9)), name=value.name)
        if where == "weight" and array.shape == (2, 2):
            value.const_value = ir.tensor(array + array.dtype.type(1), name=value.name)
    with pytest.raises(EquivalenceError, match="does not hold"):
        verify(document, ours, theirs)


def test_a_file_belongs_to_its_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    ours, theirs = converted()
    paths = tmp_path / "a.onnx", tmp_path / "b.onnx"
    for made, path in zip((ours, theirs), paths, strict=True):
        ir.save(made, path)
    file = tmp_path / "c.json"
    file.write_text(json_text(qgraph.prove(*paths, evidence=True).to_json()))
    assert read(file, *paths).verdict == "proved"
    with pytest.raises(EquivalenceError, match="another file"):
        read(file, paths[1], paths[1])
    assert main(["prove", "--verify", str(file), str(paths[1]), str(paths[1])]) == 1
    assert main(["prove", "--verify", str(file), *map(str, paths)]) == 0
    capsys.readouterr()
    assert main(["prove", "--verify", str(file), *map(str, paths), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    regions = json.loads(file.read_text())["regions"]
    # one quantizer has several channels
    assert found["summary"] == {"checked": len(regions) - 1, "unchecked": 1, "refuted": 0}
    assert (found["verdict"], found["prover"]) == ("proved", True)
    for text, match in (("{}", "not a certificate"), ("nothing", "cannot be read")):
        file.write_text(text)
        with pytest.raises(ModelError, match=match):
            read(file, *paths)
        assert main(["prove", "--verify", str(file), *map(str, paths)]) == 3


@pytest.mark.slow
def test_a_certificate_without_evidence_is_decided():
    one_scale = OURS.replace("float[1,2] s = {0.1, 0.3}", "float s = {0.1}")
    ours, theirs = converted(text=one_scale)
    document = json.loads(json_text(qgraph.prove(ours, theirs).to_json()))
    assert not any(region["boxes"] for region in document["regions"])
    found = checked(document, ours, theirs)
    assert found.verdict == "proved"
    assert found.counts["checked"] == len(document["regions"]) > 0


def test_an_undecided_certificate_is_not_refuted():
    """An If captures an outer value, and its branches differ."""
    branches = (
        "then_branch = a () => (float[2] t) { t = Add(r, r) }, "
        "else_branch = b () => (float[2] e) { e = LAST }"
    )
    text = (
        '<ir_version: 10, opset_import: ["": 21]> g (float[2] x, bool c) => (float[2] y) '
        "{{ r = Relu(x) y = If (c) <{}> }}"
    )
    pair = [
        ir.from_onnx_text(text.format(branches.replace("LAST", last)))
        for last in ("Exp(r)", "Tanh(r)")
    ]
    document = certificate(*pair)
    assert document["verdict"] == "undecided"
    assert verify(document, *pair) == "undecided"


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("to", ["qdq", "onnx"])
@pytest.mark.parametrize("name", ["brev_cnn_fp8e4m3", "nncf_cnn_w4a4", "brev_cnn_w4a4_trunc"])
def test_certificates_of_real_models_hold(real_models, name, to):
    model = qgraph.load(real_models[name])
    changed = model.clone()
    changed.apply(transforms.ConvertDialect(to=to))
    document = certificate(model.ir, changed.ir)
    assert verify(document, model, changed) == "proved"


def test_values_that_are_handed_on_are_one():
    ours = ir.from_onnx_text(OURS)
    theirs = ir.from_onnx_text(
        OURS.replace('"FLOOR">(r, u, z, b)', '"CEIL">(r, u, z, b)')
        .replace("[out] y =", "[out] last =")
        .replace("    }", "    [end] y = Identity(last) }")
    )
    assert verify(certificate(ours, theirs), ours, theirs) == "different"
