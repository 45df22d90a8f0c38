"""What convert and fold say of weights that they store, keep, or cannot store."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.model import Model, load
from qgraph.reporting.rewrite_view import rewrite_page
from qgraph.transforms import ConvertDialect, FoldConstants, FoldWeights

QONNX = "qonnx.custom_op.general"


def made(shape: str, constants: str, body: str, *, opset: int = 21, kind: str = "float") -> Model:
    imports = f'["": {opset}, "{QONNX}": 1, "com.microsoft": 1]'
    return load(
        ir.from_onnx_text(
            f"""<ir_version: 10, opset_import: {imports}>
            net ({kind}[{shape}] x) => ({kind}[{shape}] y) <{constants}> {{ {body} }}"""
        )
    )


QUANT = "float s = {0.5}, float z = {0}, float b = {8}"


def test_a_weight_that_its_scale_enlarges_says_so() -> None:
    body = f"q = {QONNX}.Quant <signed = 1> (w, s, z, b) y = Mul (x, q)"
    constants = "float[3] w = {-2, 0, 1}, float[2,1] s = {0.8, 0.3}, float z = {0}, float b = {8}"
    model = made("2,3", constants, body)
    (site,) = model.apply(FoldWeights())
    assert (site.outcome, site.reason_id) == ("refused", "QG013")
    assert "enlarge the weight from shape [3] to [2, 3]" in site.reason
    assert "convert --to qdq" in site.reason
    assert model.apply(ConvertDialect(to="qdq")).count("changed") == 1


@pytest.mark.runtime
def test_codes_that_an_operator_takes_are_stored() -> None:
    """-2, 0 and 1 are the codes 3, 7 and 9 of scale 0.5 and zero point 7."""
    import onnxruntime as ort

    body = "q = QuantizeLinear (w, s, z) y = com.microsoft.QLinearAdd (x, s, z, q, s, z, s, z)"
    constants = "float[3] w = {-2, 0, 1}, float s = {0.5}, uint8 z = {7}"
    model = made("2,3", constants, body, kind="uint8")
    x = np.asarray([[1, 7, 200], [255, 0, 8]], np.uint8)

    def run() -> np.ndarray:
        session = ort.InferenceSession(model.to_proto().SerializeToString())
        return session.run(None, {"x": x})[0]

    expected = run()
    report = model.apply(FoldWeights())
    assert (report.count("changed"), report.count("refused")) == (1, 0)
    (add,) = model.nodes()
    assert add.inputs[3].const_value.numpy().tolist() == [3, 7, 9]
    assert set(model.ir.graph.initializers) == {"s", "z", add.inputs[3].name}
    np.testing.assert_array_equal(run(), expected)
    onnx.checker.check_model(model.to_proto())


@pytest.mark.parametrize(("weight", "level"), [("-0.1", "values"), ("0.1", "bits")])
def test_the_sign_of_a_zero_that_a_clip_chooses_is_open(weight: str, level: str) -> None:
    """Quant makes -0 of -0.1; ONNX leaves open whether the maximum of -0 and 0 is -0."""
    body = f"q = {QONNX}.Quant <signed = 1> (w, s, z, b) c = Clip (q, lo, hi) y = Mul (x, c)"
    constants = f"float[3] w = {{{weight}, 0.6, 1}}, float lo = {{0}}, float hi = {{6}}, {QUANT}"
    (site,) = made("3", constants, body).apply(FoldWeights())
    assert str(site.verdict.exactness) == level
    (site,) = made("3", constants, body).apply(FoldWeights(exact="bits"))
    assert site.outcome == ("changed" if level == "bits" else "refused")


@pytest.mark.parametrize(("product", "number"), [("MatMul", 1), ("Mul", 0)])
def test_what_onnx_runtime_does_with_a_product_is_noted_once(product: str, number: int) -> None:
    body = f"q = {QONNX}.Quant <signed = 1> (w, s, z, b) y = {product} (x, q)"
    model = made("2,2", f"float[2,2] w = {{-2, 0, 1, 3}}, {QUANT}", body)
    notes = model.apply(FoldWeights()).notes
    assert sum("session.qdq_matmulnbits_accuracy_level=1 (1 weight)" in n for n in notes) == number
    assert not model.apply(FoldWeights()).notes


@pytest.mark.parametrize("to", ["qdq", "qonnx", "openvino"])
def test_an_operator_that_is_lowered_counts_once(to: str) -> None:
    body = "c = Cast <to = 10> (w) d = Mul (c, s) f = Cast <to = 1> (d) y = MatMul (x, f)"
    constants = "uint8[2,2] w = {1, 2, 3, 4}, float16[2] s = {11878, 13640}"
    report = made("2,2", constants, body).apply(ConvertDialect(to=to))
    assert (report.count("changed"), report.count("kept"), report.count("refused")) == (1, 0, 0)
    assert [site.is_part for site in report] == ([False] if to == "qdq" else [False, True])
    assert report.to_json()["summary"]["changed"] == 1


def test_a_cast_to_bfloat16_alone_stays() -> None:
    """ONNX Runtime has Cast from int8 to bfloat16, and no DequantizeLinear of bfloat16."""
    body = "c = Cast <to = 16> (w) f = Cast <to = 1> (c) y = MatMul (x, f)"
    model = made("2,2", "int8[2,2] w = {1, 2, -3, 4}", body)
    assert not model.apply(ConvertDialect(to="qdq")).count("changed")


def test_an_opset_below_that_of_the_model_is_told(caplog: pytest.LogCaptureFixture) -> None:
    model = made("2", "float lo = {0}", "y = Max (x, lo)")
    model.apply(ConvertDialect(to="qdq", opset=11))
    assert "does not lower the model's opset 21" in caplog.text
    assert model.ir.opset_imports[""] == 21


def test_an_lstm_of_codes_is_refused_with_the_way_out() -> None:
    """ONNX Runtime's result for several rows depends on how many threads compute it."""
    text = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        net (float[3,1,2] x) => (float[3,1,1,1] y)
        <int8[1,2,4] w = {1, 2, 3, 4, 5, 6, 7, 8}, int8[1,1,4] r = {1, 2, 3, 4},
         float[1] s = {0.1}, int8[1] z = {0}> {
            y = com.microsoft.DynamicQuantizeLSTM <hidden_size = 1> (x, w, r, , , , , , s, z, s, z)
        }"""
    (site,) = load(ir.from_onnx_text(text)).apply(ConvertDialect(to="qdq"))
    assert (site.outcome, site.reason_id) == ("refused", "QG006")
    assert "number of threads" in site.reason
    assert "quantize again without LSTM" in site.reason


def test_what_has_the_wanted_form_already_is_told() -> None:
    pair = "c = QuantizeLinear (x, s, z) d = DequantizeLinear (c, s, z) y = Mul (d, q)"
    constants = "int8[3] w = {1, 2, 3}, float s = {0.5}, int8 z = {0}"
    model = made("2,3", constants, f"q = DequantizeLinear (w, s, z) {pair}")
    report = model.apply(ConvertDialect(to="qdq"))
    sentence = rewrite_page({**report.to_json(), "command": "convert", "qgraph": ""}).sentence
    assert sentence == "No quantizer was changed: 2 are already in the dialect qdq."
    report = model.apply(FoldWeights())
    sentence = rewrite_page({**report.to_json(), "command": "fold", "qgraph": ""}).sentence
    assert sentence == "No quantizer was changed: 1 is already stored as codes."


@pytest.mark.parametrize(
    ("body", "operator"),
    [
        ("k = Clip (c, n, n) q = DequantizeLinear (k, s) y = Mul (x, q)", "Clip"),
        ("d = DequantizeLinear (c, s) q = Transpose (d) y = Mul (x, q)", "Transpose"),
    ],
)
def test_fold_names_the_pass_that_stores_what_operators_compute_from_codes(
    body: str, operator: str
) -> None:
    model = made("2,2", "int8[2,2] c = {1, 2, 3, 4}, int8 n = {2}, float s = {0.5}", body)
    note = f"{operator} of stored codes is computed in each run; -p fold-constants stores"
    assert note in " ".join(model.apply(FoldWeights()).notes)
    assert model.apply(FoldConstants()).count("changed")
    assert not model.apply(FoldWeights()).notes
