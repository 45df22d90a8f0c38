"""A dialect added from outside, in one file, is converted like the others."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.errors import OptionError
from qgraph.exactness import Exactness
from qgraph.model import Model, load
from qgraph.ops import operator
from qgraph.quantizers.dialects.dialect import DIALECTS, Refusal, Site
from qgraph.quantizers.sites import sites
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect

TARGETS = ("qonnx", "openvino", "qdq", "onnx")


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    """The file, imported: its operator and its dialect are registered for this module's tests."""
    path = Path(__file__).parent / "fake_quant_with_min_max_vars.py"
    spec = importlib.util.spec_from_file_location("fake_quant_with_min_max_vars", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    DIALECTS.names(), operator.OPERATORS.names()
    with pytest.MonkeyPatch.context() as patch:
        for registry in (DIALECTS, operator.OPERATORS):
            patch.setattr(registry, "_entries", dict(registry._entries))
        patch.setattr(operator, "_BY_KEY", {})
        spec.loader.exec_module(module)
        yield module
    assert "tensorflow" not in DIALECTS.names()


def fake_quant(low: str, high: str, *, bits: int = 8, narrow: int = 0, weight: bool = False) -> str:
    """A graph with one FakeQuantWithMinMaxVars, its ends per tensor or per channel."""
    ends = ", ".join(
        f"float{'[3, 1]' if ',' in end else ''} {name} = {{{end}}}"
        for name, end in (("low", low), ("high", high))
    )
    data = "w" if weight else "x"
    values = ", ".join(f"{value:.3f}" for value in np.linspace(-3, 3, 36))
    more = f", float[1, 3, 12] w = {{{values}}}" if weight else ""
    tail = "t = Identity (x) y = Add (t, q)" if weight else "y = Identity (q)"
    size = 12 if weight else 3000
    return f"""<ir_version: 10, opset_import: ["": 21, "com.example.tf": 1]>
        g (float[1, 3, {size}] x) => (float[1, 3, {size}] y) <{ends}{more}> {{
            q = com.example.tf.FakeQuantWithMinMaxVars
                <num_bits = {bits}, narrow_range = {narrow}> ({data}, low, high)
            {tail}
        }}"""


CASES = {
    "ReLU6": fake_quant("0", "6"),
    "symmetric": fake_quant("-1", "1"),
    "nudged": fake_quant("-0.73", "1.21"),
    "narrow": fake_quant("-1.3", "1.3", narrow=1),
    "4 bits": fake_quant("-0.1", "0.9", bits=4),
    "16 bits": fake_quant("-3", "2.7", bits=16),
    "all positive": fake_quant("2", "6", bits=8),
    "per channel": fake_quant("-1, -0.5, 0", "1, 3.3, 6"),
    "weight": fake_quant("-1, -0.5, 0", "1, 3.3, 6", bits=4, weight=True),
    "narrow weight": fake_quant("-3", "3", narrow=1, weight=True),
}


def feeds(model: Model) -> dict[str, np.ndarray]:
    """Multiples of half a step and their neighbours, zeros, infinities, random numbers."""
    random = np.random.default_rng(3)
    (site,) = [entry for entry in sites(model.ir) if isinstance(entry, Site)]
    halves = random.integers(-20, 530, 1400) / 2 * float(site.quantizer.scale.max())
    grid = halves.astype(np.float32)
    special = np.float32([0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, 3e38, -3e38])
    pool = np.concatenate([special, grid, np.nextafter(grid, np.float32(9)), -grid])
    (value,) = model.inputs
    return {value.name: np.resize(pool, [int(size) for size in value.shape])}


def run(model: Model, data: dict[str, np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return model.run(data, backend="numpy")["y"]


def test_it_is_unknown_without_its_file():
    assert list(sites(ir.from_onnx_text(CASES["ReLU6"]))) == []
    with pytest.raises(OptionError, match="no dialect called 'tensorflow'"):
        load(ir.from_onnx_text(CASES["ReLU6"])).apply(ConvertDialect(to="tensorflow"))


def test_its_kernel_and_its_definition_agree_with_the_formula(example):
    model = load(ir.from_onnx_text(CASES["nudged"]))
    x = feeds(model)["x"]
    # in exact arithmetic: 255 steps between -0.73 and 1.21, zero moved to the nearest of them
    scale = np.float64((np.float32(1.21) - np.float32(-0.73)) / np.float32(255))
    finite = np.isfinite(x) & (np.abs(x) < 100)
    codes = np.clip(np.floor(x[finite].astype(np.float64) / scale + 96 + 0.5), 0, 255)
    expected = (codes - 96) * scale
    off = np.abs(run(model, {"x": x})[finite] - expected)
    assert np.count_nonzero(off > 1e-6) < 0.1 * off.size  # near ties float32 decides otherwise
    assert off.max() < 1.001 * scale


@pytest.mark.cases(fast=6, slow=12)
@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_it_is_converted_and_back_with_equal_values(example, case, to):
    original = load(ir.from_onnx_text(CASES[case]))
    data = feeds(original)
    expected = run(original, data)
    there = original.clone()
    report = there.apply(ConvertDialect(to=to))
    assert [entry.outcome for entry in report] == [SiteStatus.CHANGED], report
    assert report.exactness >= Exactness.VALUES
    assert not any(node.domain == example.DOMAIN for node in there.nodes())
    onnx.checker.check_model(ir.to_proto(there.ir), full_check=True)
    np.testing.assert_array_equal(run(there, data), expected)
    back = there.clone()
    back.apply(ConvertDialect(to="tensorflow"))
    np.testing.assert_array_equal(run(back, data), expected)
    if "weight" not in case:
        # a stored weight has forgotten how it was rounded
        operators = [node.op_type for node in back.ir.graph if node.op_type != "Identity"]
        assert operators[0] == example.NAME
        assert operators[1:] == []


def test_what_it_cannot_say_is_refused_with_its_reason(example):
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[9] x) => (float[9] y) <float s = {0.1}, int8 z = {0}> {
            q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z) }"""
    model = load(ir.from_onnx_text(text))
    (entry,) = model.apply(ConvertDialect(to="tensorflow"))
    assert entry.outcome is SiteStatus.REFUSED
    assert "unsigned codes" in entry.reason


def test_what_is_wrong_with_a_node_is_said(example):
    (bits,) = sites(ir.from_onnx_text(fake_quant("0", "6", bits=17)))
    (empty,) = sites(ir.from_onnx_text(fake_quant("6", "0")))
    assert isinstance(bits, Refusal)
    assert "17 bits, expected 2 to 16" in bits.reason
    assert isinstance(empty, Refusal)
    assert "is empty" in empty.reason
