"""Errors in real models, each kind checked by hand: without a target, and with three."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

import qgraph
from qgraph.lint.engine import lint
from tests.lint.test_faults import real_models

UNDECLARED = {"TFC_1W2A", "kwsmlp_w3a3", "qkeras_jettagging"}
"""They do not import the domain of their quantizers: QG604."""

QONNX = {"BipolarQuant", "FloatQuant", "Quant", "Trunc"}
LACKS = {
    # Sessions of ONNX Runtime 1.32.0 and OpenVINO 2026.4.1 refuse each model with one of these.
    "onnxruntime-cpu": QONNX | {"FakeQuantize"},
    "openvino-cpu": QONNX | {"MatMulBnb4"},
    # Its list of operators (onnx-tensorrt, docs/operators.md) says N, or its importers, which are
    # all that is asked before plugins, have no such name.
    "tensorrt": QONNX
    | {"DynamicQuantizeLinear", "FakeQuantize", "MatMulBnb4", "MatMulInteger", "MatMulNBits"}
    | {"QLinearConv", "QLinearMatMul"},
}
"""Operators that a target does not load."""

OF_TENSORRT = {
    # Its importer asserts that the zero points of a constant are zeros.
    "zero points other than 0": {
        *("min_layernorm_decomposed", "min_qlinearmul_prove", "nncfonnx_bert_cw_INT4_ASYM"),
        *("ort_bert_qdq_u8", "ort_bert_qop", "ort_lstm_dynamic", "ort_mbv3_qdq_u8s8pc"),
        *("ort_mbv3_qop_u8u8", "quark_sqz_xint8", "tf2onnx_fq8"),
    },
    # It warns and takes INT8 instead, whose largest code is 127; a flag for DLA takes UINT8.
    "codes of type UINT8: it refuses them, or reads them as INT8": {
        *("brev_cnn_w4a4_qcdq", "brev_mha_block_qcdq", "brev_ptq_mobilenet_v2_qcdq"),
        *("min_scalar_const_fold", "nncfonnx_cnn_qdq_sym", "ort_bert_qdq_u8"),
        *("ort_mbv3_qdq_u8s8pc", "ort_mbv3_qop_u8u8", "tf2onnx_fq8"),
    },
    # Constants of UINT8 become INT32.
    "codes of type UINT8: of integers": {"min_scalar_const_fold", "ort_bert_qdq_u8"},
    # IDequantizeLayer takes types of activations only: a bias has to be float.
    "codes of type INT32: of integers": {
        *("brev_mha_block_qcdq", "brev_ptq_mobilenet_v2_qcdq", "ort_bert_qdq_u8"),
        "ort_mbv3_qdq_u8s8pc",
    },
}
"""What TensorRT does not load for another reason, by the beginning of the message."""


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("target", [None, *LACKS])
def test_real_models_have_no_other_errors(models: Path, target: str | None) -> None:
    found: dict[str, set[str]] = defaultdict(set)
    expected: dict[str, set[str]] = defaultdict(set)
    for path in real_models(models):
        for finding in lint(path, target):
            if finding.severity == "error":
                text = finding.message.removeprefix(f"{target}: ").partition(";")[0]
                is_load = finding.rule.id == "QG601"
                found[path.stem].add(text if is_load else finding.rule.id)
        if path.stem in UNDECLARED:
            expected[path.stem].add("QG604")
        if target is not None:
            operators = {node.op_type for node in qgraph.load(path).nodes()} & LACKS[target]
            expected[path.stem] |= {f"it has no {name}" for name in operators}
        if target == "tensorrt":
            begins = [text for text, stems in OF_TENSORRT.items() if path.stem in stems]
            rest = found[path.stem] - expected[path.stem]
            assert len(rest) == len(begins)
            expected[path.stem] |= {t for t in rest if t.startswith(tuple(begins))}
    found = {stem: errors for stem, errors in found.items() if errors}
    assert found == {stem: errors for stem, errors in expected.items() if errors}
