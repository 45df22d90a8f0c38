"""The picture of layers coloured by kernel."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from qgraph.reporting.charts import kernel_chart


def test_each_layer_has_the_colour_of_its_kernel():
    names = ["first<&", "second", "last"]
    rows = {"before": ["float"] * 3, "now": ["QLinearConv", "QLinearConv", "QGemm"]}
    picture = ET.fromstring(kernel_chart(names, rows).draw())
    fields = [each for each in picture.iter("rect") if each.find("title") is not None]
    shown = [(str(each.findtext("title")), each.get("fill")) for each in fields]
    assert [title for title, _ in shown] == [
        f"{name}: {kernel}"
        for kernels in rows.values()
        for name, kernel in zip(names, kernels, strict=True)
    ]
    colours = [colour for _, colour in shown]
    assert len(set(colours)) == 3
    assert colours[:3] == [colours[0]] * 3
    assert colours[3] == colours[4] != colours[5]
    assert [each.text for each in picture.iter("text")][2:] == ["float", "QLinearConv", "QGemm"]
