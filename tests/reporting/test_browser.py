"""Pages as a browser shows them: wide and narrow, light and dark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph import transforms
from qgraph.inventory.pictures import illustrated
from qgraph.reporting.pages import html_page

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

NAME = "/a/very/long/name/as/exporters/like/them/act_quant/export_handler/Quant_0"

NET = """
    <ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
    net (float[N,64] x) => (float[N,32] y)
    <float w = {0}, float s = {0.3}, float z = {127}, float b = {8}, float sw = {0.05},
     float zw = {0}, float bw = {4}> {
        [act] a = qonnx.custom_op.general.Quant
            <signed = 0, narrow = 0, rounding_mode = "ROUND"> (x, s, z, b)
        [weight] q = qonnx.custom_op.general.Quant
            <signed = 1, narrow = 1, rounding_mode = "ROUND"> (w, sw, zw, bw)
        t = Transpose <perm = [1, 0]> (q)
        y = MatMul (a, t)
    }"""

SCREENS = [(1400, 900), (390, 844)]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    model = ir.from_onnx_text(NET)
    for node, name in zip(model.graph, (NAME, f"{NAME}_w"), strict=False):
        node.name = name
    weight = np.random.default_rng(0).normal(0, 0.15, (32, 64)).astype(np.float32)
    value = model.graph.initializers["w"]
    value.const_value = ir.tensor(weight, name="w")
    value.shape = ir.Shape(weight.shape)
    before, after = folder / "a.onnx", folder / "b.onnx"
    ir.save(model, before)
    step = transforms.ConvertDialect(to="qdq", exact=qgraph.Exactness("near"))
    report = folder / "r.json"
    transforms.rewrite(before, after, step, report=report, command="convert")
    proof = qgraph.prove(before, after).to_json()
    (witness,) = [r["witness"]["input"] for r in proof["regions"] if r["verdict"] == "different"]
    x = np.full((2, 64), witness, np.float32)
    documents: dict[str, Any] = {
        "prove": proof,
        "convert": json.loads(report.read_text()),
        "check": qgraph.check(before, after, {"x": x}).to_json(),
    }
    models = qgraph.load(before).ir, qgraph.load(after).ir
    for command, document in documents.items():
        whole = illustrated(document, *models, [{"x": x}])
        (folder / f"{command}.html").write_text(html_page(whole), "utf-8")
    return {command: folder / f"{command}.html" for command in documents}


CONTRAST = """
(() => {
  const light = (c) => {
    const [r, g, b] = c.match(/[0-9.]+/g).map(Number).map(
      v => v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  let worst = 99;
  for (const e of document.querySelectorAll("p, h1, h2, dt, dd, th, td, li, summary, svg text")) {
    if (!e.textContent.trim()) continue;
    const style = getComputedStyle(e);
    const own = light(e instanceof SVGElement ? style.fill : style.color);
    const ratio = (Math.max(own, ground) + 0.05) / (Math.min(own, ground) + 0.05);
    worst = Math.min(worst, ratio);
  }
  return worst;
})()
"""

WITHIN = """
[...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll") && !e.closest("svg")
  && e.getClientRects().length && e.getBoundingClientRect().right > innerWidth + 0.5
).map(e => e.tagName + "." + e.className)
"""

CUT_TEXTS = """
[...document.querySelectorAll("svg")].flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter(t => {
    const box = t.getBoundingClientRect();
    return box.left < frame.left - 1 || box.right > frame.right + 1
      || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
  }).map(t => t.textContent);
})
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS, ids=["wide", "narrow"])
@pytest.mark.parametrize("command", ["prove", "convert", "check"])
def test_a_page_fits_the_screen_and_can_be_read(
    browser: Any, pages: dict[str, Path], command: str, screen: tuple[int, int], scheme: str
) -> None:
    width, height = screen
    browser.open(pages[command], width=width, height=height, scheme=scheme)
    assert browser.evaluate("innerWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(WITHIN) == []
    assert browser.evaluate(CUT_TEXTS) == []
    # the Web Content Accessibility Guidelines ask for 4.5
    assert browser.evaluate(CONTRAST) >= 4.5
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    assert [url for url in browser.requests if not url.startswith("file:")] == []
    text = browser.evaluate("document.body.innerText")
    wanted = {
        "prove": ["qgraph prove", "Different", "The steps around a difference", "Codes", NAME],
        "convert": ["qgraph convert", "Near", "Size summary", "weights after", "Sites"],
        "check": ["qgraph check", "Different", "Outputs", "Error by layer"],
    }[command]
    for each in wanted:
        assert each.lower() in text.lower()
    heights = browser.evaluate(
        "[...document.querySelectorAll('svg')].map(e => e.getBoundingClientRect().height)"
    )
    assert heights
    assert min(heights) > 80
    sizes = browser.evaluate(
        "[...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height)"
    )
    assert min(sizes) > 7


def test_tables_scroll_in_their_box_and_by_keyboard(browser: Any, pages: dict[str, Path]) -> None:
    browser.open(pages["prove"], width=390, height=844)
    scrolled = browser.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)"
        ".map(e => [getComputedStyle(e).overflowX, e.tabIndex, e.getAttribute('aria-label')])"
    )
    assert scrolled
    assert all(how == "auto" and stop == 0 and label for how, stop, label in scrolled)


def test_wide_screens_have_charts_side_by_side(browser: Any, pages: dict[str, Path]) -> None:
    script = "new Set([...document.querySelectorAll('.charts figure')].map(e => e.offsetLeft)).size"
    browser.open(pages["prove"], width=1400, height=900)
    assert browser.evaluate(script) >= 2
    browser.open(pages["prove"], width=390, height=844)
    assert browser.evaluate(script) == 1


def test_pictures_can_be_taken(browser: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    browser.open(pages["convert"], width=390, height=844, scheme="dark")
    browser.screenshot(tmp_path / "page.png")
    data = (tmp_path / "page.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (390, 844)
