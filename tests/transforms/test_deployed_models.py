"""Every real model, deployed to ONNX Runtime: quantized layers, and those executed in integers."""

from __future__ import annotations

import pytest

import qgraph
from qgraph.model import load

pytest.importorskip("onnxruntime")

TARGET = "onnxruntime-cpu@x86-64"

LAYERS = {
    "TFC_1W2A": 4,
    "brev_cnn_asym8": 4,
    "brev_cnn_fp8e4m3": 0,
    "brev_cnn_w4a4": 4,
    "brev_cnn_w4a4_dynamo": 4,
    "brev_cnn_w4a4_qcdq": 4,
    "brev_cnn_w4a4_trunc": 5,
    "brev_mlp_fp4": 0,
    "brev_mlp_w1a2_bipolar": 3,
    "brevmx_mlp_mxfp4w": 0,
    "kwsmlp_w3a3": 4,
    "nncf_cnn_int8_sym": 6,
    "nncf_cnn_w4a4": 6,
    "nncf_mlp_int8_mixed": 3,
    "nncfonnx_cnn_qdq_sym": 6,
    "qkeras_jettagging": 3,
    "field/brev_lstm_w8a8": 0,
    "field/brev_mha_block_qcdq": 7,
    "field/brev_ptq_mobilenet_v2_qcdq": 53,
    "field/llm_tiny_l2": 0,
    "field/mo_mbv3_int8": 52,
    "field/nncf_vitblock_cw_INT8_ASYM_dynamo": 0,
    "field/nncfonnx_bert_cw_INT4_ASYM": 0,
    "field/ort_bert_bnb4_nf4": 0,
    "field/ort_bert_nb4_asym_b32": 0,
    "field/ort_bert_qdq_u8": 16,
    "field/ort_bert_qop": 16,
    "field/ort_lstm_dynamic": 1,
    "field/ort_mbv3_qdq_u8s8pc": 54,
    "field/ort_mbv3_qop_u8u8": 54,
    "field/quark_sqz_xint8": 26,
    "field/tf2onnx_fq8": 0,
    "field/torchao_int8wo": 0,
}
"""Number of quantized layers of each model."""

LEFT = {
    "brev_cnn_asym8": {"/c3/Conv": "measured to take 9 times as long as float"},
}
"""Layers that stay in float, and a part of the reason."""

SLOW = ("TFC_1W2A", "qkeras_jettagging", "field/brev_mha_block_qcdq", "field/ort_bert_qop")


def cases() -> list[object]:
    marks = {name: pytest.mark.slow if name in SLOW else pytest.mark.exhaustive for name in LAYERS}
    return [pytest.param(name, marks=mark) for name, mark in marks.items()]


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.runtime
@pytest.mark.parametrize("name", cases())
def test_layers_run_in_integers(models, name):
    path = models / f"{name}.onnx"
    model = load(path)
    found = qgraph.deploy(model, TARGET)
    assert len(found.layers) == LAYERS[name]
    assert not any(layer.before and not layer.kernel for layer in found.layers)
    left = {layer.node: str(layer.reason) for layer in found.left}
    expected = LEFT.get(name, {})
    assert left.keys() == expected.keys()
    assert all(part in left[node] for node, part in expected.items())
    assert found.certificate.verdict in ("proved", "bounded")
    assert all(layer.bound.max_steps <= 1 for layer in found.layers if layer.bound is not None)
    before = load(path)
    for old, new in ((before.inputs, model.inputs), (before.outputs, model.outputs)):
        assert [value.name for value in old] == [value.name for value in new]

    once = model.to_proto()
    again = qgraph.deploy(model, TARGET)
    assert model.to_proto() == once
    # Layers that are left by choice have weights of 16 bits now, and are not listed again. Those
    # whose weights were floats of few bits have codes now, and are listed.
    in_integers = [sum(layer.kernel is not None for layer in r.layers) for r in (found, again)]
    assert in_integers[0] == in_integers[1]
