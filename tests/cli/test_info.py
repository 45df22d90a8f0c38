"""``qgraph info`` and ``qgraph passes``: what there is."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from qgraph.inventory.overview import overview
from qgraph.model import load
from qgraph.transforms import TRANSFORMS, describe


def test_info_shows_head_and_quantizers(qgraph, model):
    found = qgraph("info", model)
    assert (found.status, found.talk) == (0, "")
    facts = dict(line.strip().split(None, 1) for line in found.out.splitlines()[1:7])
    assert facts == {
        "dialects": "qonnx (2)",
        "opsets": "ai.onnx 20, qonnx.custom_op.general 2; IR version 10",
        "inputs": "x float[N,4]",
        "outputs": "y float[N,3]",
        "nodes": "4",
        # twelve codes of 4 bits and a scale are left of twelve floats; the parameters of the other
        # quantizer stay
        "weights": "60 B as stored, 22 B with packed codes",
    }
    rows = [" ".join(line.split()) for line in found.out.splitlines()[8:]]
    assert "act Quant data int4 - 0.5 0 per tensor ROUND" in rows
    assert "weight Quant weight int4 narrow 10 B 0.5 0 per tensor ROUND" in rows
    (row,) = [row for row in rows if row.startswith("onnxruntime-cpu")]
    assert row.startswith("onnxruntime-cpu no it has no Quant; convert to qdq")
    assert row.endswith("(2 nodes) ONNX Runtime 1.32, run")


def test_remarks_on_a_runtime_that_refuses_are_shown_on_demand(qgraph, write):
    body = """g (float[2] x) => (float[2] y) <float s = {1}, float z = {1}, float b = {4}> {
        q = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (x, s, z, b)
        y = qonnx.custom_op.general.BipolarQuant (q, s)
    }"""
    head = '<ir_version: 9, opset_import: ["": 20, "qonnx.custom_op.general": 1]>'
    model = write(head + body)
    assert "with scale 1 only" not in qgraph("info", model).out
    found = qgraph("info", model, "-v").out
    assert "zero points other than 0 (1 node)" in found
    assert "with scale 1 only (1 node)" in found


def test_many_reasons_of_a_runtime_are_listed_on_demand(qgraph, write):
    """Nobody recorded which of these operators STM32 takes, so there is a reason for each."""
    operators = ["Abs", "Ceil", "Cos", "Exp", "Floor", "Neg"]
    nodes = "  ".join(f"v{n + 1} = {name} (v{n})" for n, name in enumerate(operators))
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[2] v0) => (float[2] v6) {{ {nodes} }}"""
    model = write(text)
    short = qgraph("info", model).out
    assert "and 3 more reasons, among the remarks (-v)" in short
    assert "takes Neg" not in short
    whole = qgraph("info", model, "-v").out
    assert all(f"not say whether it takes {name}" in whole for name in operators)


def test_info_json_is_the_overview(qgraph, model, read_json, tmp_path):
    found = qgraph("info", "--json", model)
    (tmp_path / "o.json").write_text(found.out)
    assert read_json(tmp_path / "o.json") == {
        "path": str(model),
        **_as_json(overview(load(model).ir).to_json()),
    }


def test_info_of_a_model_without_quantizers(qgraph, write):
    model = write(
        '<ir_version: 10, opset_import: ["": 21]> g (float x) => (float y) { y = Relu(x) }'
    )
    found = qgraph("info", model)
    assert found.status == 0
    assert "no quantizers" in found.out
    assert "x float[]" in found.out


def test_passes_lists_each_pass_with_its_sentence(qgraph):
    found = qgraph("passes")
    assert found.status == 0
    for cls in TRANSFORMS:
        info = describe(cls)
        (line,) = [line for line in found.out.splitlines() if line.startswith(f"{info.name} ")]
        assert info.summary in line


@pytest.mark.parametrize("name", TRANSFORMS.names())
def test_passes_shows_type_default_and_help_of_each_option(qgraph, name):
    found = qgraph("passes", name)
    assert found.status == 0
    for option in describe(TRANSFORMS.find(name)).options:
        (line,) = [line for line in found.out.splitlines() if line.startswith(f"{option.name} ")]
        assert option.kind in line
        assert option.help in line
        shown = "required" if option.default is None else option.default or "empty"
        assert shown in line


def test_an_unknown_pass_is_usage_and_the_nearest_is_named(qgraph):
    found = qgraph("passes", "fold-weight")
    assert found.status == 2
    assert "There is no pass called 'fold-weight'; did you mean 'fold-weights'?" in found.error


def _as_json(node):
    if isinstance(node, dict):
        return {key: _as_json(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_as_json(value) for value in node]
    return node


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("tune-ranges", "Changes what a model computes; the report has the extent or the reason."),
        ("fold-weights", "Keeps models equal in values, unless an option says otherwise."),
    ],
)
def test_passes_says_whether_values_stay(qgraph, name, sentence):
    second = qgraph("passes", name).out.splitlines()[1]
    assert second.startswith(sentence)


def test_zero_points_have_all_their_digits(qgraph, write):
    path = write("""<ir_version: 10, opset_import: ["": 21]>
        net (float[N,4] x) => (float[N,4] y) <float s = {0.0001}, uint16 z = {32769}> {
            q = QuantizeLinear (x, s, z)
            y = DequantizeLinear (q, s, z)
        }""")
    (row,) = [line for line in qgraph("info", path).out.splitlines() if "uint16" in line]
    assert " 32769 " in row


def test_codes_that_leave_the_graph_are_listed_and_not_called_no_quantizer(tmp_path, qgraph):
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[2] x) => (int8[2] q) <float s = {0.5}> {
            q = QuantizeLinear <output_dtype = 3> (x, s)
        }"""
    ir.save(ir.from_onnx_text(text), tmp_path / "a.onnx")
    found = qgraph("info", tmp_path / "a.onnx")
    assert "not converted: q: its codes go to an output" in found.out
    assert "no quantizer" not in found.out
