"""Quantizers that several nodes spell are found as one, with the parameters that were written."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.model import load
from qgraph.numerics.rounding import Rounding
from qgraph.quantizers.dialects.dialect import DIALECTS, Refusal, Site
from qgraph.quantizers.quantizer import Affine, Bipolar, Floating, Ranged, Truncating
from qgraph.quantizers.recognition import readers, regions
from qgraph.quantizers.sites import sites
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect

DIALECT_NAMES = ("qdq", "onnx", "qonnx", "openvino")


def model_of(body: str, constants: str = "", *, opset: int = 21, data: str = "float[2, 3, 8]"):
    text = f"""<ir_version: 10, opset_import: ["": {opset}, "qonnx.custom_op.general": 1,
            "org.openvinotoolkit": 1]>
        g ({data} x) => ({data} y) <{constants}> {{ {body} }}"""
    return load(ir.from_onnx_text(text))


def found_in(model) -> list[Site | Refusal]:
    return list(sites(model.ir))


def only(model) -> Site:
    (site,) = found_in(model)
    assert isinstance(site, Site), site
    return site


def covers_all(model) -> bool:
    site = only(model)
    return set(site.nodes) == set(model.ir.graph)


NUMBERS = """float s = {0.25}, float z = {3}, float l = {0}, float h = {15}, float half = {0.5},
    float zero = {0}, float one = {1}, uint8 iz = {0}, uint8 z3 = {3}, float b = {8}"""


@pytest.mark.cases(fast=9)
@pytest.mark.parametrize(
    ("rounding", "steps"),
    [
        (Rounding.ROUND, "r = Round (c)"),
        (Rounding.FLOOR, "r = Floor (c)"),
        (Rounding.CEIL, "r = Ceil (c)"),
        (Rounding.UP, "g = Sign (c) a = Abs (c) u = Ceil (a) r = Mul (g, u)"),
        (Rounding.DOWN, "g = Sign (c) a = Abs (c) u = Floor (a) r = Mul (u, g)"),
        (Rounding.DOWN, "p = Greater (c, zero) f = Floor (c) u = Ceil (c) r = Where (p, f, u)"),
        (Rounding.DOWN, "p = Less (c, zero) f = Floor (c) u = Ceil (c) r = Where (p, u, f)"),
        (
            Rounding.HALF_UP,
            "g = Sign (c) a = Abs (c) e = Add (a, half) u = Floor (e) r = Mul (g, u)",
        ),
        (
            Rounding.HALF_DOWN,
            "g = Sign (c) a = Abs (c) e = Sub (a, half) u = Ceil (e) r = Mul (g, u)",
        ),
    ],
)
@pytest.mark.parametrize(
    "ending",
    [
        "q = Sub (r, z) y = Mul (q, s)",
        "k = QuantizeLinear (r, one, iz) y = DequantizeLinear (k, s, z3)",
        "k = QuantizeLinear (r, one, iz) w = DequantizeLinear (k, one) n = Sub (w, z) y=Mul (n, s)",
    ],
)
def test_all_roundings_of_a_chain(rounding, steps, ending):
    model = model_of(
        f"d0 = Div (x, s) o = Add (d0, z) c = Clip (o, l, h) {steps} {ending}", NUMBERS
    )
    site = only(model)
    assert covers_all(model)
    meaning = site.quantizer
    assert isinstance(meaning, Affine)
    parameters = [meaning.scale, meaning.zero_point, meaning.lo, meaning.hi]
    assert [float(p) for p in parameters] == [0.25, 3, 0, 15]
    assert meaning.rounding is rounding
    assert site.dialect == ("qdq" if "Quantize" in ending else "onnx")


def test_a_clamp_of_the_data_that_narrows_the_codes_belongs_to_the_quantizer():
    constants = "float s = {0.5}, int8 i = {0}, float l = {-2}, float h = {3.5}"
    body = "c = Clip (x, l, h) q = QuantizeLinear (c, s, i) y = DequantizeLinear (q, s, i)"
    model = model_of(body, constants)
    meaning = only(model).quantizer
    assert covers_all(model)
    assert (float(meaning.lo), float(meaning.hi)) == (-4, 7)


@pytest.mark.parametrize(
    "first", ["c = Clip (x, l, h)", "c = Relu (x)", "c = Max (x, l)"], ids=["clip", "relu", "max"]
)
def test_a_clamp_that_changes_nothing_stays_outside(first):
    constants = "float s = {0.5}, uint8 i = {0}, float l = {0}, float h = {127.5}"
    body = f"{first} q = QuantizeLinear (c, s, i) y = DequantizeLinear (q, s, i)"
    site = only(model_of(body, constants))
    assert [node.op_type for node in site.nodes] == ["QuantizeLinear", "DequantizeLinear"]


def test_a_pair_of_two_scales_has_a_decoding_of_its_own():
    constants = "float s = {0.5}, uint8 i = {7}, float t = {2}, uint8 j = {1}"
    site = only(model_of("q = QuantizeLinear (x, s, i) y = DequantizeLinear (q, t, j)", constants))
    meaning = site.quantizer
    assert (float(meaning.scale), float(meaning.zero_point)) == (0.5, 7)
    assert (float(meaning.decoding.scale), float(meaning.decoding.zero_point)) == (2, 1)


def test_codes_out_of_fake_quantize_are_decoded_as_written():
    constants = "float l = {-1}, float h = {1}, float a = {0}, float t = {15}, float s = {0.1333}"
    body = """q = org.openvinotoolkit.FakeQuantize <levels = 16> (x, l, h, a, t)
        c = Sub (q, m) y = Mul (c, s)"""
    model = model_of(body, constants + ", float m = {7.5}")
    site = only(model)
    assert covers_all(model)
    assert site.dialect == "openvino"
    assert site.quantizer.levels == 16
    assert float(site.quantizer.decoding.zero_point) == 7.5


@pytest.mark.parametrize(("levels", "expected"), [(2, [-1, -1, 1, 1]), (3, [-1, 0, 0, 1])])
def test_a_range_of_width_1_in_float_operators(levels, expected):
    """Quotients with the width, and those that the span of the results undoes, are left out."""
    body = f"y = org.openvinotoolkit.FakeQuantize <levels = {levels}> (x, l, h, a, h)"
    model = model_of(body, "float l = {0}, float h = {1}, float a = {-1}", data="float[4]")
    assert model.apply(ConvertDialect(to="onnx")).count(SiteStatus.CHANGED) == 1
    quantizer = only(model).quantizer
    assert isinstance(quantizer, Ranged)
    assert quantizer.levels == levels
    assert covers_all(model)
    assert model.apply(ConvertDialect(to="qonnx")).count(SiteStatus.CHANGED) == 1
    x = np.array([-7, 0.4, 0.6, 0.8], np.float32)
    np.testing.assert_array_equal(model.run({"x": x}, backend="numpy")["y"], expected)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("p = GreaterOrEqual (x, zero) y = Where (p, s, n)", Bipolar),
        ("p = Less (x, zero) y = Where (p, n, s)", Bipolar),
        ("d = Div (x, s) c = Cast <to = 17> (d) f = Cast <to = 1> (c) y = Mul (f, s)", Floating),
        ("c = Cast <to = 19> (x) y = Cast <to = 1> (c)", Floating),
    ],
)
def test_signs_and_casts_to_minifloats(body, kind):
    model = model_of(body, "float s = {0.25}, float n = {-0.25}, float zero = {0}")
    assert isinstance(only(model).quantizer, kind)
    assert covers_all(model)


@pytest.mark.parametrize(
    "body",
    [
        "t = Div (x, s) r = Round (t) y = Mul (r, h)",
        "r = Round (x) y = Mul (r, s)",
        "c = Clip (x, l, h) y = Round (c)",
        "d = Div (x, s) c = Clip (d, l, h) r = Round (c) y = Mul (r, h)",
        "p = Greater (x, zero) a = Mul (x, half) y = Where (p, x, a)",
        "y = Relu (x)",
        "c = Cast <to = 10> (x) y = Cast <to = 1> (c)",
    ],
)
def test_other_arithmetic_is_left_alone(body):
    assert found_in(model_of(body, NUMBERS)) == []


def test_what_somebody_else_reads_is_not_inside_a_quantizer():
    body = "d = Div (x, s) c = Clip (d, l, h) r = Round (c) e = Mul (r, s) y = Add (e, {})"
    inside, outside = (found_in(model_of(body.format(name), NUMBERS)) for name in ("r", "x"))
    assert inside == []
    assert [node.op_type for node in outside[0].nodes] == ["Div", "Clip", "Round", "Mul"]


def test_a_graph_output_is_not_inside_a_quantizer():
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[8] x) => (float[8] r, float[8] y) <float s = {0.5}, float l = {0}, float h = {7}> {
            d = Div (x, s) c = Clip (d, l, h) r = Round (c) y = Mul (r, s) }"""
    assert list(sites(ir.from_onnx_text(text))) == []


def test_two_quantizers_in_a_row_are_two():
    body = """d = Div (x, s) c = Clip (d, l, h) r = Round (c) e = Mul (r, s)
        f = Div (e, half) g = Clip (f, l, h) k = Round (g) y = Mul (k, half)"""
    found = found_in(model_of(body, NUMBERS))
    assert [float(site.quantizer.scale) for site in found] == [0.25, 0.5]
    nodes = [node for site in found for node in site.nodes]
    assert len(nodes) == len(set(nodes)) == 8


def test_a_product_behind_a_quantizer_is_not_part_of_it():
    body = "q = qonnx.custom_op.general.Quant (x, s, zero, b) y = Mul (q, half)"
    site = only(model_of(body, NUMBERS))
    assert [node.op_type for node in site.nodes] == ["Quant"]


def test_stored_codes_with_float_operators_behind_are_one_constant_quantizer():
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[2, 4] x) => (float[2, 4] y)
        <int8[4] w = {-3, 0, 1, 5}, float one = {1}, float z = {0.5}, float s = {0.25}> {
            f = DequantizeLinear (w, one) c = Sub (f, z) q = Mul (c, s) y = Add (x, q) }"""
    (site,) = sites(ir.from_onnx_text(text))
    assert [node.op_type for node in site.nodes] == ["DequantizeLinear", "Sub", "Mul"]
    np.testing.assert_array_equal(site.values, (np.float32([-3, 0, 1, 5]) - 0.5) * 0.25)


def trunc(mode: str, zero_point: float, *, version: int, signed: int = 1, scale: float = 0.25):
    inputs = "x, s, z, i, t, o" if version == 2 else "x, s, z, i, o"
    return model_of(
        f"""y = qonnx.custom_op.general.Trunc
            <rounding_mode = "{mode}", signed = {signed}> ({inputs})""",
        f"""float s = {{{scale}}}, float z = {{{zero_point}}}, float i = {{10}}, float o = {{6}},
            float t = {{{scale * 16}}}""",
        data="float[2, 3, 500]",
    )


QUANTIZERS = {
    "quant": """y = qonnx.custom_op.general.Quant <signed = 0> (x, s, z, b)""",
    "per axis": """y = qonnx.custom_op.general.Quant (x, t, zero, b)""",
    "floor": """y = qonnx.custom_op.general.Quant <rounding_mode = "FLOOR"> (x, s, half, b)""",
    "one bit": """y = qonnx.custom_op.general.Quant <signed = 1> (x, s, zero, one)""",
    "ranged": "y = org.openvinotoolkit.FakeQuantize <levels = 16> (x, n, h, n, h)",
    "unit range": "y = org.openvinotoolkit.FakeQuantize <levels = 256> (x, zero, one, zero, one)",
    "two levels": "y = org.openvinotoolkit.FakeQuantize <levels = 2> (x, n, h, zero, s)",
    "reversed": "y = org.openvinotoolkit.FakeQuantize <levels = 16> (x, h, n, n, h)",
    "bipolar": "y = qonnx.custom_op.general.BipolarQuant (x, t)",
    "pair": "q = QuantizeLinear (x, s, z3) y = DequantizeLinear (q, s, z3)",
}
MORE = NUMBERS + ", float n = {-0.7}, float[3, 1] t = {0.5, 0.3, 2}"


@pytest.mark.cases(fast=9, slow=16)
@pytest.mark.parametrize(
    ("name", "to"), list(itertools.product(QUANTIZERS, DIALECT_NAMES)), ids=str
)
def test_every_dialect_is_read_back_as_one_and_leads_home(name, to):
    model = model_of(QUANTIZERS[name], MORE)
    home = only(model).dialect
    random = np.random.default_rng(5)
    grid = random.integers(-80, 80, (2, 3, 8)).astype(np.float32) * np.float32(0.125)
    expected = model.run({"x": grid}, backend="numpy")["y"]
    assert model.apply(ConvertDialect(to=to)).exactness >= Exactness.VALUES
    assert covers_all(model)
    float_only = (to, name) == ("qdq", "reversed")
    assert only(model).dialect == ("onnx" if float_only else to)
    if not float_only:
        assert model.clone().apply(ConvertDialect(to=to)).count(SiteStatus.CHANGED) == 0
    model.apply(ConvertDialect(to=home))
    np.testing.assert_array_equal(model.run({"x": grid}, backend="numpy")["y"], expected)


@pytest.mark.cases(fast=4, slow=22)
@pytest.mark.parametrize("mode", ["FLOOR", "CEIL", "ROUND", "DOWN", "HALF_UP"])
@pytest.mark.parametrize(("zero_point", "version"), [(0, 2), (3, 2), (2.5, 2), (0, 1)])
@pytest.mark.parametrize("to", ["qdq", "onnx"])
def test_trunc_is_read_back_as_trunc(mode, zero_point, version, to):
    model = trunc(mode, zero_point, version=version)
    before = only(model).quantizer
    assert isinstance(before, Truncating)
    model.apply(ConvertDialect(to=to))
    after = only(model).quantizer
    assert covers_all(model)
    assert isinstance(after, Truncating)
    for name, value in vars(before).items():
        assert np.array_equal(getattr(after, name), value), name


@pytest.mark.parametrize("entry", list(DIALECTS), ids=lambda entry: entry.name)
def test_a_floating_quantizer_keeps_its_format(entry):
    constants = "float s = {0.5}, float e = {4}, float m = {3}, float c = {7}, float h = {448}"
    body = "y = qonnx.custom_op.general.FloatQuant <has_nan = 1> (x, s, e, m, c, h)"
    model = model_of(body, constants)
    model.apply(ConvertDialect(to=entry.name))
    meaning = only(model).quantizer
    assert isinstance(meaning, Floating)
    assert (meaning.format.mantissa_bits, meaning.format.bias) == (3, 7)
    assert meaning.format.max_value == 448


def test_the_range_of_a_chain_is_that_of_the_node():
    model = model_of(QUANTIZERS["ranged"], MORE)
    before = only(model).quantizer
    model.apply(ConvertDialect(to="onnx"))
    after = only(model).quantizer
    assert isinstance(after, Ranged)
    for name, value in vars(before).items():
        assert np.array_equal(getattr(after, name), value), name


def work_of_reading(count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Count the nodes of the regions that are looked at, and the chains that are read."""
    lines = []
    for i in range(count):
        last = "x" if i == 0 else f"y{i - 1}"
        lines.append(
            f"d{i} = Div ({last}, s) c{i} = Clip (d{i}, l, h) r{i} = Round (c{i}) "
            f"y{i} = Mul (r{i}, s)"
        )
    model = model_of(" ".join([*lines, f"y = Identity (y{count - 1})"]), NUMBERS)
    work = 0
    region, meaning = regions.UseDefGraph.region, readers.quantizer_of

    def counted_region(self, x, y):
        nonlocal work
        found = region(self, x, y)
        work += 1 if found is None else len(found)
        return found

    def counted_meaning(steps, spelling):
        nonlocal work
        work += len(steps)
        return meaning(steps, spelling)

    with monkeypatch.context() as patch:
        patch.setattr(regions.UseDefGraph, "region", counted_region)
        patch.setattr(readers, "quantizer_of", counted_meaning)
        found = found_in(model)
    assert len(found) == count
    assert all(len(site.nodes) in (4, 5) for site in found)
    return work


def test_reading_takes_time_in_proportion_to_the_graph(monkeypatch):
    few, many = (work_of_reading(count, monkeypatch) for count in (40, 160))
    assert few >= 40 * 4  # each node is looked at
    assert many <= 4.2 * few


@pytest.mark.cases(fast=32)
@pytest.mark.parametrize("way", list(itertools.product(DIALECT_NAMES, repeat=2)))
@pytest.mark.parametrize("shape", ["0", "2, 0"])
@pytest.mark.parametrize("is_node", [True, False])
def test_no_float_operator_is_put_on_codes_without_an_element(way, shape, is_node):
    codes, data = f"int8[{shape}] q = {{}}", f"float[{shape[:-1]}3]"
    body = "d = DequantizeLinear (q, s, z) y = Concat <axis = -1> (x, d)"
    constants = "float s = {0.5}, int8 z = {3}"
    if is_node:
        model = model_of(f"q = Constant <value = {codes}> () {body}", constants, data=data)
    else:
        model = model_of(body, f"{codes}, {constants}", data=data)
    for to in way:
        model.apply(ConvertDialect(to=to))
    takes_integers = {"DequantizeLinear", "Cast", "Constant", "Reshape"}
    for node in model.nodes():
        for value in node.inputs:
            constant = model.constant(value)
            if constant is not None and constant.size == 0 and constant.dtype == np.int8:
                assert node.op_type in takes_integers, node
