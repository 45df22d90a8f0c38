"""``qgraph plot``."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import numpy as np
import onnx_ir as ir
import pytest

import qgraph as library
from qgraph.inventory import pictures
from qgraph.reporting.drawing import plot

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

PER_CHANNEL = """
    <ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
    net (float[N,3] x) => (float[N,3] y)
    <float[1,3] s = {0.5, 0.25, 2}, float z = {0}, float b = {4}> {
        [act] y = qonnx.custom_op.general.Quant
            <signed = 1, narrow = 0, rounding_mode = "ROUND"> (x, s, z, b)
    }"""


def plot_data(model, node, *, compare=None, channel=None):
    other = None if compare is None else library.load(compare).ir
    return pictures.plot_data(library.load(model).ir, node, compare=other, channel=channel)


def texts(path):
    return [element.text for element in ET.parse(path).iter() if element.tag.endswith("text")]


@pytest.fixture
def moved(write, tmp_path):
    """A model and one whose second channel has a scale that is one float larger."""
    path = write(PER_CHANNEL)
    other = library.load(path)
    value = next(iter(other.ir.graph)).inputs[1]
    scale = value.const_value.numpy().copy()
    scale[0, 1] = np.nextafter(scale[0, 1], np.float32(1))
    value.const_value = ir.tensor(scale, name=value.name)
    other.save(tmp_path / "other.onnx")
    return path, tmp_path / "other.onnx"


@pytest.mark.slow
def test_a_quantizer_is_drawn(qgraph, model, tmp_path):
    out = tmp_path / "q.svg"
    found = qgraph("plot", model, "--node", "act", "-o", out)
    assert (found.status, found.out) == (0, f"wrote {out}\n")
    shown = texts(out)
    for text in ("act: Quant", "Output over the whole range", "Error over the whole range"):
        assert text in shown
    assert "input x (real units)" in shown
    assert "output y (real units)" in shown


@pytest.mark.exhaustive
def test_pictures_are_the_same_each_time(qgraph, model, tmp_path):
    first, second = (tmp_path / name for name in ("a.svg", "b.svg"))
    for out in (first, second):
        qgraph("plot", model, "--node", "act", "-o", out)
    assert first.read_bytes() == second.read_bytes()
    assert not re.search(rb"<dc:date>|20\d\d-\d\d-\d\d", first.read_bytes())
    images = [plot(plot_data(model, "act"), format="png") for _ in range(2)]
    assert images[0] == images[1]


@pytest.mark.slow
def test_a_picture_can_be_of_pixels(qgraph, model, tmp_path):
    out = tmp_path / "q.PNG"
    assert qgraph("plot", model, "--node", "weight", "-o", out).status == 0
    assert out.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.slow
def test_two_quantizers_are_compared_where_they_differ(qgraph, moved, tmp_path):
    out = tmp_path / "q.svg"
    found = qgraph("plot", moved[0], "--node", "act", "--compare", moved[1], "-o", out)
    assert found.status == 0
    shown = " ".join(filter(None, texts(out)))
    assert "channel 1 of 3" in shown
    assert "candidate" in shown
    assert "float32 numbers counted from" in shown


def test_differences_are_counted_exactly(moved):
    data = plot_data(moved[0], "act", compare=moved[1])
    scale, other = np.float32(0.25), np.nextafter(np.float32(0.25), np.float32(1))
    # values differ wherever a code is not zero; thresholds move by some floats besides
    last = np.array([-1e30, -7.5 * 0.25, -0.125, 0.125, 1e30], np.float32)
    codes = [np.clip(np.rint(last / s), -8, 7) * s for s in (scale, other)]
    assert list(codes[0] != codes[1]) == [True, True, False, False, True]
    nearest = max(place[1] for place in data["places"] if place[1] < 0)
    keys = np.array([nearest, -0.125], np.float32).view(np.int32)
    assert 0 <= keys[0] - keys[1] <= 2
    assert data["channel"] == 1
    assert plot_data(moved[0], "act", compare=moved[1], channel=0)["differing"] == 0


@pytest.mark.slow
def test_equal_quantizers_of_two_dialects_have_no_differences(qgraph, model, tmp_path):
    other, out = tmp_path / "qdq.onnx", tmp_path / "q.svg"
    qgraph("convert", model, "-o", other, "--to", "qdq")
    data = plot_data(model, "act", compare=other)
    assert (data["differing"], data["near"]) == (0, None)
    assert len(data["curves"][0]["y"]) == 16
    assert data["curves"][0] == data["curves"][1]
    assert qgraph("plot", model, "--node", "act", "--compare", other, "-o", out).status == 0
    assert plot_data(model, "act", compare=model)["differing"] == 0


def test_a_channel_can_be_chosen(qgraph, moved, tmp_path):
    (curve,) = plot_data(moved[0], "act", channel=2)["curves"]
    assert curve["y"] == [2.0 * code for code in range(-8, 8)]
    found = qgraph("plot", moved[0], "--node", "act", "--channel", 3, "-o", tmp_path / "q.svg")
    assert found.status == 2
    assert "it has 3 channels, expected 0 to 2" in found.error


@pytest.mark.parametrize("name", ["y", "act"])
def test_a_quantizer_is_found_by_node_and_output(moved, name):
    assert plot_data(moved[0], name)["op"] == "Quant"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--node", "akt", "-o", "q.svg"), 2, "Did you mean 'act'?"),
        (("--node", "nothing like it", "-o", "q.svg"), 2, "'qgraph info' lists"),
        (("--node", "act", "-o", "q.pdf"), 2, "neither .svg nor .png"),
        (("--node", "act", "-o", "model.onnx"), 2, "another file"),
    ],
)
def test_wrong_usage(qgraph, model, folder, monkeypatch, arguments, status, message):
    monkeypatch.chdir(model.parent)
    before = folder()
    found = qgraph("plot", model, *arguments)
    assert found.status == status
    assert message in found.error
    assert folder() == before


def test_stored_codes_have_no_steps(qgraph, model, tmp_path):
    other = tmp_path / "qdq.onnx"
    qgraph("fold", model, "-o", other)
    (node,) = [n for n in library.load(other).ir.graph if n.op_type == "DequantizeLinear"]
    found = qgraph("plot", other, "--node", node.name, "-o", tmp_path / "q.svg")
    assert found.status == 3
    assert "decodes INT4 codes" in found.error


def test_other_formats_are_refused_in_python(model):
    with pytest.raises(library.QGraphError, match="expected svg or png"):
        plot(plot_data(model, "act"), format="pdf")


def test_help(qgraph):
    found = qgraph("plot", "--help")
    assert found.status == 0
    assert "--compare" in found.out


def test_a_name_of_any_characters_can_be_drawn(qgraph, model, tmp_path):
    made = library.load(model)
    made.ir.graph[0].name = "<a&b>\n\x1b[31m$x^2$"
    made.save(tmp_path / "odd.onnx")
    out = tmp_path / "q.svg"
    found = qgraph("plot", tmp_path / "odd.onnx", "--node", made.ir.graph[0].name, "-o", out)
    assert found.status == 0
    assert any(r"<a&b>\n\x1b[31m$x^2$" in text for text in texts(out) if text)
