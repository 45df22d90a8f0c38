"""Faults known of other converters, none of which may occur here.

Expected values are worked out by hand or in integers from the operators' documents.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.model import Model, load
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect, FoldWeights

DOMAIN = "qonnx.custom_op.general"


def graph(body: str, initializers: str, *, shape: str = "N", opset: int = 21) -> Model:
    return load(
        ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": {opset}, "{DOMAIN}": 1]>
            g (float[{shape}] x) => (float[{shape}] y) <{initializers}> {{ {body} }}""")
    )


def quant(attributes: str = "", *, op: str = "Quant", **parameters: str) -> Model:
    given = {"s": "float s = {1}", "z": "float z = {0}", "b": "float b = {8}"} | parameters
    shape = given.pop("shape", "N")
    return graph(
        f"y = {DOMAIN}.{op} {attributes} (x, s, z, b)", ", ".join(given.values()), shape=shape
    )


def converted(model: Model, to: str = "qdq") -> Model:
    (entry,) = model.apply(ConvertDialect(to=to))
    assert entry.outcome is SiteStatus.CHANGED, entry
    assert entry.verdict.differing_inputs == 0
    return model


def outputs(model: Model, x: list[float]) -> list[float]:
    data = np.array(x, np.float32)
    return model.run({"x": data}, backend="numpy")["y"].tolist()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("FLOOR", [0, -1, 2]),
        ("floor", [0, -1, 2]),
        ("CEIL", [1, 0, 3]),
        ("ROUND", [1, -1, 2]),
        ("UP", [1, -1, 3]),
        ("DOWN", [0, 0, 2]),
        ("HALF_UP", [1, -1, 3]),
    ],
)
def test_the_rounding_mode_is_kept(mode, expected):
    model = converted(quant(f'<rounding_mode = "{mode}">'))
    assert outputs(model, [0.6, -0.6, 2.5]) == expected


def test_the_narrow_range_of_unsigned_codes_is_kept():
    model = converted(quant("<signed = 0, narrow = 1>"))
    assert outputs(model, [300, 254.6, 3, -1]) == [254, 254, 3, 0]


def test_zero_points_per_channel():
    model = quant(
        "<signed = 0>",
        s="float[1, 2, 1] s = {1, 0.5}",
        z="float[1, 2, 1] z = {3, 128}",
        shape="1, 2, 3",
    )
    found = converted(model).run({"x": np.float32([[[-9, 0.5, 300]] * 2])}, backend="numpy")["y"]
    # -9 + 3 clamps to code 0; 0.5 + 3 = 3.5 rounds to 4; 300 to 255. 0.5 / 0.5 is a whole step.
    assert found.tolist() == [[[-3, 1, 252], [-9, 0.5, 63.5]]]


def test_zero_points_per_channel_that_are_all_zero():
    model = quant("<signed = 0>", z="float[2, 1] z = {0, 0}", shape="2, 2")
    found = converted(model).run({"x": np.float32([[1.5, 2.5], [-1, 999]])}, backend="numpy")["y"]
    assert found.tolist() == [[2, 2], [0, 255]]


def test_an_odd_zero_point_at_a_tie():
    # Quant rounds 0.5 + 1 to 2, QuantizeLinear would round 0.5 to 0 and add 1
    model = converted(quant("<signed = 0>", z="float z = {1}"))
    assert outputs(model, [0.5, 1.5, -0.5]) == [1, 1, -1]


@pytest.mark.parametrize(
    "model",
    [
        quant(op="IntQuant"),
        quant(b="float[1] b = {8}"),
        quant(b="float b = {1}"),
        quant(b="float b = {16}"),
        quant(b="float b = {5}", z="float z = {4}"),
        quant(z="int64 z = {0}", b="int64 b = {8}"),
    ],
    ids=["IntQuant", "width of shape [1]", "1 bit", "16 bits", "zero point", "integer parameters"],
)
def test_nothing_is_left_out_silently(model):
    converted(model)


PAIR = "q = QuantizeLinear (x, s, z) c = Clip (q, lo, hi) y = DequantizeLinear (c, s, z)"


def test_bounds_that_are_no_whole_number_of_bits():
    bounds = "float s = {1}, int8 z = {0}, int8 lo = {-3}, int8 hi = {4}"
    model = converted(graph(PAIR, bounds), to="qonnx")
    assert outputs(model, [-9, -2.5, 3.5, 9]) == [-3, -2, 4, 4]


def test_a_pair_with_an_odd_zero_point_becomes_quant_exactly():
    pair = "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)"
    model = converted(graph(pair, "float s = {1}, uint8 z = {3}"), to="qonnx")
    # codes 0..255 less 3; ties to even before the zero point is added
    assert outputs(model, [0.5, 1.5, -9, 999]) == [0, 2, -3, 252]


def test_a_pair_without_zero_point():
    pair = "q = QuantizeLinear (x, s) y = DequantizeLinear (q, s)"
    model = converted(graph(pair, "float s = {0.5}"), to="qonnx")
    assert outputs(model, [0.25, 0.75, -3, 999]) == [0, 1, 0, 127.5]


def test_int8_weights_with_a_zero_point_do_not_wrap():
    weight = "y0 = DequantizeLinear (w, s, z) y = Mul (x, y0)"
    parameters = "int8[3] w = {127, -128, 0}, float s = {1}, int8 z = {-128}"
    model = converted(graph(weight, parameters, shape="3"), to="qonnx")
    assert outputs(model, [1, 1, 1]) == [255, 0, 128]


def test_minifloat_weights_stay_quantized():
    body = f"w0 = {DOMAIN}.FloatQuant (w, s, e, m, c, h) y = Mul (x, w0)"
    parameters = """float[4] w = {0.3, 1.2, 2.4, 100}, float s = {1}, float e = {2}, float m = {1},
        float c = {1}, float h = {6}"""
    model = graph(body, parameters, shape="4")
    report = model.apply(FoldWeights())
    assert report.count(SiteStatus.CHANGED) == 1
    # the values of FP4: 0, 0.5, 1, 1.5, 2, 3, 4, 6
    assert outputs(model, [1, 1, 1, 1]) == [0.5, 1, 2, 6]


def test_text_from_a_file_is_never_run(tmp_path):
    code = f"__import__('pathlib').Path({str(tmp_path / 'run')!r}).touch()"
    model = quant(f'<rounding_mode = "{code.replace(chr(34), chr(39))}">')
    model.ir.metadata_props["finn_datatype"] = code
    model.ir.graph.inputs[0].metadata_props["layout"] = code
    model.ir.graph.inputs[0].meta["quant_parameter_tensor_names"] = {"tensor_sparsity": code}
    (entry,) = model.apply(ConvertDialect(to="qdq"))
    assert entry.outcome is SiteStatus.REFUSED
    assert "rounding" in entry.reason
    assert not (tmp_path / "run").exists()


WRITE_THEIR_TEXT = ("blocks.py", "records.py")
"""Files that compile loops for numba, of fixed forms and numbers, and functions of classes here."""

READS_BYTECODE = "tuning.py"
"""The file that reads the bytecode which Python has written of installed modules, as imports do."""


@pytest.mark.slow
def test_the_sources_call_nothing_that_runs_text():
    root = Path(qgraph.__file__).parent
    folders = [root, root.parent / "transforms", root.parent / "cli"]
    for path in (path for folder in folders if folder.is_dir() for path in folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not re.search("eval|exec|compile|pickle|marshal|shelve", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                forbidden = {"eval", "exec", "compile"}
                forbidden -= {"exec"} if path.name in WRITE_THEIR_TEXT else set()
                assert node.func.id not in forbidden, path
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                unsafe = {"pickle", "marshal", "shelve"}
                unsafe -= {"marshal"} if path.name == READS_BYTECODE else set()
                assert not names & unsafe, path
