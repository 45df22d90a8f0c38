"""Which quantizer costs what: exchanged one at a time, and alone."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.cli.main import main
from qgraph.comparison.why.report import QuantizerCost, WhyReport
from qgraph.comparison.why.why import why
from qgraph.errors import OptionError, UnsupportedError
from qgraph.model import Model
from tests.fuzz import networks

IMPORTS = '"": 13, "qonnx.custom_op.general": 1'
QUANT = "qonnx.custom_op.general.Quant <signed = 1, narrow = 0>"
FLOAT = """g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {0.6, -0.4, 0.3, 0.9}> {
    a = MatMul (x, w)
    r = Relu (a)
    y = MatMul (r, w)
}"""
QUANTIZED = f"""g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {{0.6, -0.4, 0.3, 0.9}},
    float s = {{0.125}}, float t = {{0.25}}, float z = {{0}}, float b = {{4}}> {{
    [first] q = {QUANT} (x, s, z, b)
    a = MatMul (q, w)
    r = Relu (a)
    [second] p = {QUANT} (r, t, z, b)
    [weights] v = {QUANT} (w, s, z, b)
    y = MatMul (p, v)
}}"""
W = np.array([[0.6, -0.4], [0.3, 0.9]], np.float32)
X = np.random.default_rng(3).uniform(-1.2, 1.2, (64, 2)).astype(np.float32)


def model(body: str) -> Model:
    return Model(ir.from_onnx_text(f"<ir_version: 8, opset_import: [{IMPORTS}]> {body}"))


def quant(x: np.ndarray, scale: float) -> np.ndarray:
    return np.clip(np.rint(x / np.float32(scale)), -8, 7) * np.float32(scale)


def network(first: bool, second: bool, weights: bool) -> np.ndarray:
    """Return the outputs with some of the quantizers, by their definition."""
    q = quant(X, 0.125) if first else X
    r = np.maximum(q @ W, 0)
    p = quant(r, 0.25) if second else r
    return p @ (quant(W, 0.125) if weights else W)


def decibels(reference: np.ndarray, candidate: np.ndarray) -> float:
    a, b = reference.astype(np.float64), candidate.astype(np.float64)
    return float(10 * np.log10(np.sum(a * a) / np.sum((a - b) ** 2)))


def by_name(report: WhyReport) -> dict[str, QuantizerCost]:
    return {cost.node: cost for cost in report.quantizers}


def test_each_quantizer_alone_against_a_float_network() -> None:
    report = why(model(FLOAT), model(QUANTIZED), {"x": X}, backend="numpy")
    found, plain = by_name(report), network(first=False, second=False, weights=False)
    whole = network(first=True, second=True, weights=True)
    assert report.sqnr_db == pytest.approx(decibels(plain, whole), abs=1e-3)
    chosen = {"first": (True, False, False), "second": (False, True, False)}
    chosen["weights"] = (False, False, True)
    for name, (first, second, weights) in chosen.items():
        alone = network(first=first, second=second, weights=weights)
        restored = network(first=not first, second=not second, weights=not weights)
        assert found[name].alone_sqnr_db == pytest.approx(decibels(plain, alone), abs=1e-3)
        assert found[name].restored_sqnr_db == pytest.approx(decibels(plain, restored), abs=1e-3)


def test_the_most_harmful_quantizer_comes_first() -> None:
    """It is the one without which most rows, then values, are those of the reference."""
    report = why(model(FLOAT), model(QUANTIZED), {"x": X}, backend="numpy")
    plain = network(first=False, second=False, weights=False)
    keys = {}
    for n, name in enumerate(("first", "second", "weights")):
        restored, alone = network(*(k != n for k in range(3))), network(*(k == n for k in range(3)))
        right = [np.mean(y.argmax(1) == plain.argmax(1)) for y in (restored, alone)]
        keys[name] = (-right[0], right[1], -decibels(plain, restored))
    assert [cost.node for cost in report.quantizers] == sorted(keys, key=lambda n: keys[n])


def test_a_local_error_leaves_out_what_comes_with_the_data() -> None:
    found = by_name(why(model(FLOAT), model(QUANTIZED), {"x": X}, backend="numpy"))
    there = np.maximum(X @ W, 0)
    own = quant(np.maximum(quant(X, 0.125) @ W, 0), 0.25)
    second = found["second"]
    assert second.local_sqnr_db == pytest.approx(decibels(there, quant(there, 0.25)), abs=1e-3)
    assert second.accumulated_sqnr_db == pytest.approx(decibels(there, own), abs=1e-3)
    assert found["first"].local_sqnr_db == found["first"].accumulated_sqnr_db
    assert found["weights"].local_sqnr_db == pytest.approx(decibels(W, quant(W, 0.125)), abs=1e-3)


def test_codes_are_compared_with_those_nearest_to_the_reference() -> None:
    found = by_name(why(model(FLOAT), model(QUANTIZED), {"x": X}, backend="numpy"))
    there = np.clip(np.rint(np.maximum(X @ W, 0) / 0.25), -8, 7)
    before = np.maximum(quant(X, 0.125) @ W, 0)
    own = np.clip(np.rint(before / 0.25), -8, 7)
    codes = found["second"].codes
    assert codes["codes_that_differ"] == np.mean(there != own) > 0
    assert codes["unused_codes"] == 16 - len(np.unique(own))
    # each input beyond the range is clipped
    first = np.rint(X / 0.125)
    assert found["first"].codes["clipped"] == np.mean((first < -8) | (first > 7)) > 0
    pairs = {t for a, b in zip(there.flat, own.flat, strict=True) for t in _between(a, b)}
    assert codes["thresholds_crossed"] == len(pairs)
    fewest = [16 - len(np.unique(column)) for column in own.T]
    assert codes["channels"]["fewest_codes"]["unused"] == max(fewest)
    assert codes["channels"]["unused_codes"] == fewest
    clipped = ((first < -8) | (first > 7)).mean(axis=0)
    assert found["first"].codes["channels"]["clipped"] == clipped.tolist()


def test_stored_codes_are_not_clipped() -> None:
    codes = """g (float[N,2] x) => (float[N,2] y)
    <float[2,2] w = {0.6, -0.4, 0.3, 0.9}, int8[2,2] c = {5, -3, 2, 7}, float s = {0.125}> {
        a = MatMul (x, w)
        r = Relu (a)
        [weights] v = DequantizeLinear (c, s)
        y = MatMul (r, v)
    }"""
    report = why(model(FLOAT), model(codes), {"x": X}, backend="numpy")
    found = by_name(report)["weights"].codes
    assert found["clipped"] is None
    assert found["channels"]["most_clipped"] is None
    assert found["channels"]["clipped"] is None
    # each column has two codes
    assert found["channels"]["fewest_codes"] == {"channel": 0, "unused": 254}


def test_weights_that_a_cast_decodes_are_quantizers() -> None:
    codes = """g (float[N,2] x) => (float[N,2] y)
    <float[2,2] w = {0.6, -0.4, 0.3, 0.9}, int8[2,2] c = {5, -3, 2, 7},
     int32[1] k = {8}, float[1] s = {0.125}> {
        a = MatMul (x, w)
        r = Relu (a)
        d = Cast <to = 1> (c)
        h = Cast <to = 1> (k)
        z = Sub (d, h)
        [weights] v = Mul (z, s)
        y = MatMul (r, v)
    }"""
    (cost,) = why(model(FLOAT), model(codes), {"x": X}, backend="numpy").quantizers
    there = np.array([[5, -3], [2, 7]], np.float32) * np.float32(0.125) - 1
    assert cost.is_weight
    assert cost.local_sqnr_db == pytest.approx(decibels(W, there), abs=1e-3)


def _between(a: float, b: float) -> range:
    return range(int(min(a, b)), int(max(a, b)))


def _spoiled(name: str) -> str:
    """Return the quantized network with another scale of one quantizer."""
    lines = QUANTIZED.replace("float z", "float u = {0.75}, float z").splitlines()
    return "\n".join(
        line.replace(", s, z", ", u, z").replace(", t, z", ", u, z")
        if f"[{name}]" in line
        else line
        for line in lines
    )


@pytest.mark.parametrize("name", ["first", "second", "weights"])
def test_the_one_quantizer_with_another_scale_is_guilty(name: str) -> None:
    spoiled = _spoiled(name)
    report = why(model(QUANTIZED), model(spoiled), {"x": X}, backend="numpy")
    guilty = report.guilty
    assert guilty is not None
    assert (guilty.node, guilty.restored_sqnr_db) == (name, None)  # equal without it
    others = [cost for cost in report.quantizers if cost.node != name]
    assert all(cost.restored_sqnr_db == report.sqnr_db for cost in others)
    assert all(cost.alone_sqnr_db is None for cost in others)
    assert all(cost.local_sqnr_db is None for cost in others)


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("name", ["first", "second", "weights"])
def test_a_quantizer_that_happens_to_answer_better_is_guilty_of_its_error(name: str) -> None:
    """The labels are what the spoiled model answers, so that no exchange gains an answer."""
    spoiled = model(_spoiled(name))
    (y,) = spoiled.run({"x": X}).values()
    report = why(model(QUANTIZED), spoiled, {"x": X}, labels=y.argmax(1), backend="numpy")
    assert report.candidate == 1.0 > (report.reference or 0.0)
    assert report.guilty is not None
    assert report.guilty.node == name
    others = [cost for cost in report.quantizers if cost.node != name]
    assert all(cost.gain_if_restored == 0 for cost in others)
    sentence = qgraph.report(report.to_json(), "markdown").splitlines()[2]
    assert sentence.startswith(f"{name} costs most: outputs at")
    assert "without it equal" in sentence


def test_nothing_is_guilty_where_outputs_are_equal() -> None:
    report = why(model(QUANTIZED), model(QUANTIZED), {"x": X}, backend="numpy")
    assert (report.sqnr_db, report.guilty) == (None, None)
    assert repr(report) == "<WhyReport: equal outputs, 3 quantizers>"


def test_a_relu_that_only_one_model_has_belongs_to_the_quantizer() -> None:
    unsigned = QUANTIZED.replace("r = Relu (a)\n", "").replace(
        f"[second] p = {QUANT} (r,", f"[second] p = {QUANT.replace('signed = 1', 'signed = 0')} (a,"
    )
    report = why(model(FLOAT), model(unsigned), {"x": X}, backend="numpy")
    q = quant(X, 0.125)
    restored = np.maximum(q @ W, 0) @ quant(W, 0.125)
    plain = network(first=False, second=False, weights=False)
    second = by_name(report)["second"]
    assert second.restored_sqnr_db == pytest.approx(decibels(plain, restored), abs=1e-3)


def test_accuracy_gained_and_lost() -> None:
    plain = network(first=False, second=False, weights=False)
    labels = plain.argmax(axis=1)
    report = why(model(FLOAT), model(QUANTIZED), {"x": X}, labels=labels, backend="numpy")
    whole = network(first=True, second=True, weights=True)
    assert report.metric == "top1"
    assert report.reference == 1
    assert report.candidate == np.mean(whole.argmax(axis=1) == labels) < 1
    restored = network(first=False, second=True, weights=True)
    gain = np.mean(restored.argmax(axis=1) == labels) - report.candidate
    assert by_name(report)["first"].gain_if_restored == pytest.approx(gain)
    # without labels, the rows of the reference are the right ones
    unlabelled = why(model(FLOAT), model(QUANTIZED), {"x": X}, backend="numpy")
    assert unlabelled.metric == "agreement"
    assert unlabelled.candidate == report.candidate


def test_batches_give_what_one_batch_gives() -> None:
    inputs = qgraph.Inputs({"x": X}, batch=16)
    many = why(model(FLOAT), model(QUANTIZED), inputs, backend="numpy")
    whole = why(model(FLOAT), model(QUANTIZED), {"x": X}, backend="numpy")
    assert many.batches == 4
    for cost in whole.quantizers:
        other = by_name(many)[cost.node]
        assert other.local_sqnr_db == pytest.approx(cost.local_sqnr_db)
        assert other.codes == cost.codes


def test_models_of_two_opsets_are_compared_in_the_higher_one() -> None:
    older = model(FLOAT)
    older.ir.opset_imports[""] = 11
    assert by_name(why(older, model(QUANTIZED), {"x": X}, backend="numpy"))["second"].reason is None
    assert older.ir.opset_imports[""] == 11


def test_a_quantizer_without_a_counterpart_tells_so() -> None:
    other = model("g (float[N,2] x) => (float[N,2] y) { y = Tanh (x) }")
    report = why(other, model(QUANTIZED), {"x": X}, backend="numpy")
    reason = "no node behind it has a counterpart in the reference"
    assert {cost.reason for cost in report.quantizers} == {reason}
    assert report.guilty is None


def test_what_cannot_be_asked() -> None:
    with pytest.raises(UnsupportedError, match="no quantizer of constant scale in its main graph"):
        why(model(FLOAT), model(FLOAT), {"x": X})
    with pytest.raises(OptionError, match="Labels are given without inputs"):
        why(model(FLOAT), model(QUANTIZED), labels=np.zeros(1))


def test_no_quantizer_is_guilty_if_outputs_are_no_better_without_it() -> None:
    """As where BatchNormalization is folded in one model only, so that exchanges do harm."""
    document = why(model(FLOAT), model(QUANTIZED), {"x": X}, backend="numpy").to_json()
    for cost in document["quantizers"]:
        cost |= {"gain_if_restored": 0.0, "restored_sqnr_db": document["sqnr_db"] - 10}
    sentence = qgraph.report(document, "markdown").splitlines()[2]
    assert sentence.startswith("No quantizer costs anything alone: ")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / name) for name in ("float.onnx", "quantized.onnx")]
    model(FLOAT).save(paths[0])
    model(QUANTIZED).save(paths[1])
    np.savez(tmp_path / "d.npz", x=X, label=np.zeros(len(X), np.int64))
    report, page = tmp_path / "why.json", tmp_path / "why.md"
    arguments = ["--inputs", str(tmp_path / "d.npz"), "--labels", "label", "--backend", "numpy"]
    arguments += ["--report", str(report), "--markdown", str(page), "--within", "1step"]
    assert main(["why", *paths, *arguments, "--range", "x=-2:2"]) == 0
    document = json.loads(report.read_text())
    assert (document["command"], document["metric"]) == ("why", "top1")
    fields = {"node", "local_sqnr_db", "accumulated_sqnr_db", "codes_that_differ", "drop_alone"}
    fields |= {"gain_if_restored", "clipped", "unused_codes", "bound"}
    assert all(fields <= set(cost) for cost in document["quantizers"])
    shown = capsys.readouterr().out
    assert "costs most" in shown
    assert "| `second` | data |" in page.read_text()


@pytest.mark.cases(fast=0, slow=2)
@pytest.mark.parametrize("seed", [9002, 9019, 9025, 9036, 9050])
def test_no_quantizer_of_a_network_costs_anything_in_another_dialect(seed: int) -> None:
    """Where places do not correspond, quantizers are left out with a reason."""
    own = qgraph.load(networks.network(np.random.default_rng(seed), blocks=2))
    other = own.clone()
    qgraph.convert(other, to=["qdq", "qonnx", "openvino"][seed % 3])
    for pair in ((own, other), (other, own)):
        report = why(*pair, backend="numpy")
        costs = [cost for cost in report.quantizers if cost.reason is None]
        assert report.sqnr_db is None
        assert all(cost.restored_sqnr_db is None and cost.alone_sqnr_db is None for cost in costs)


@pytest.mark.slow
def test_values_of_few_quantizers_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, size = 16, 1 << 19
    body = "\n".join(
        f"[q{n}] c{n} = QuantizeLinear (x{n}, s, z) x{n + 1} = DequantizeLinear (c{n}, s, z)"
        for n in range(layers)
    )
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
    net (float[N,{size // 4}] x0) => (float[N,1] y) <float s = {{0.5}}, uint8 z = {{128}}> {{
        {body}
        y = ReduceMean <keepdims = 1, noop_with_empty_axes = 0> (x{layers})
    }}""")
    monkeypatch.setattr("qgraph.comparison.why.why._BYTES_AT_ONCE", 3 * size, raising=False)
    inputs = {"x0": np.zeros((1, size // 4), np.float32)}
    tracemalloc.start()
    try:
        report = qgraph.why(model, model.clone(), inputs=inputs, backend="numpy")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(report.quantizers) == layers
    assert all(each.codes["levels"] == 256 for each in report.quantizers)
    assert peak < layers * size, "each quantizer has two values of this size"


def test_progress_ends_at_the_number_of_all_runs() -> None:
    reported: list[tuple[int, int]] = []
    why(
        model(FLOAT),
        model(QUANTIZED),
        {"x": X},
        progress=lambda done, total: reported.append((done, total)),
    )
    assert {total for _, total in reported} == {2 * 3 + 2 + 3}
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)
    assert reported[-1][0] == reported[-1][1]
    several: list[tuple[int, int]] = []
    inputs = qgraph.Inputs({"x": X}, batch=16)
    why(model(FLOAT), model(QUANTIZED), inputs, progress=lambda *each: several.append(each))
    # weights are compared in the first of four batches only
    assert several[-1] == (4 * 8 + 3 + 3 * 2,) * 2
