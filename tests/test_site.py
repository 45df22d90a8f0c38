"""The pages of the documentation load nothing from other hosts; see ``docs/dev/site.py``."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).resolve().parents[1] / "docs" / "dev" / "site.py"


@pytest.fixture(scope="module")
def hook() -> dict[str, Any]:
    return runpy.run_path(str(SITE))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('<script src="https://example.com/a.js"></script>', ["https://example.com/a.js"]),
        ('<script async SRC = "//example.com/a.js">', ["//example.com/a.js"]),
        ('<link rel="stylesheet" href="http://example.com/a.css">', ["http://example.com/a.css"]),
        ('<img srcset="https://example.com/a.png 2x">', ["https://example.com/a.png 2x"]),
        ("<style>@import 'https://example.com/a.css';</style>", ["https://example.com/a.css"]),
        ('<p style="background: url(//example.com/a.png)">', ["//example.com/a.png"]),
        ('<script src="assets/a.js"></script><img src="../img/a.svg">', []),
        (
            '<link rel="canonical" href="https://example.com/a"><a href="https://example.com">',
            [],
        ),
        ("<pre>&lt;script src=&quot;https://example.com/a.js&quot;&gt;</pre>", []),
    ],
)
def test_what_a_page_loads_from_other_hosts_is_found(hook, text, found):
    assert hook["loaded_from_outside"](text, ".html") == found


def test_what_a_style_sheet_loads_from_other_hosts_is_found(hook):
    text = "/* https://example.com */ a { src: url('https://example.com/a.woff2') url(b.woff) }"
    assert hook["loaded_from_outside"](text, ".css") == ["https://example.com/a.woff2"]


@pytest.mark.parametrize("event", ["on_post_page", "on_post_template"])
def test_the_script_of_another_host_is_left_out(hook, event):
    text = '<a></a><script src="https://example.com/a.js"></script><script src="own.js"></script>'
    assert hook[event](text, None, None) == '<a></a><script src="own.js"></script>'


def test_the_script_of_the_theme_asks_no_other_host(hook, tmp_path):
    script = tmp_path / "assets" / "bundle.js"
    script.parent.mkdir()
    script.write_text('load("https://unpkg.com/polyfill"); a = "https://example.com"', "utf-8")
    hook["leave_out_host"](tmp_path)
    assert script.read_text("utf-8") == 'load("polyfill"); a = "https://example.com"'
