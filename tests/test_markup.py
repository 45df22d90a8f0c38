"""Names of models in Markdown."""

from __future__ import annotations

import pytest

from qgraph.text import markdown, markdown_code, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("conv_1/out_0", "conv_1/out_0"),
        ("_x_", r"\_x\_"),
        ("a|b", r"a\|b"),
        ("a\\|b", r"a\\\|b"),
        ("<img src=x>", r"\<img src=x>"),
        ("two\nlines", "two lines"),
        ("*a* `b` [c](d) ~e~ $f$ &lt;", r"\*a\* \`b\` \[c\](d) \~e\~ \$f\$ \&lt;"),
        ("R&D, 1 - 2 > 0", "R&D, 1 - 2 > 0".replace("&D", r"\&D")),
        ("1. no list", r"1\. no list"),
        ("0.5 of 1", "0.5 of 1"),
        ("# not a heading", r"\# not a heading"),
        ("- not a list", r"\- not a list"),
        ("bell \a, null \0", r"bell \\x07, null \\x00"),
    ],
)
def test_markdown_shows_the_text_itself(text, shown):
    assert markdown(text) == shown


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("/a/b.0/Relu_0", "`/a/b.0/Relu_0`"),
        ("<b>", "`<b>`"),
        ("a`b", r"a\`b"),
        ("a|b", r"a\|b"),
        (" a", " a"),
        ("a\nb", r"a\\nb"),
        ("", ""),
    ],
)
def test_names_are_code_where_code_can_hold_them(name, shown):
    assert markdown_code(name) == shown


def test_characters_that_xml_forbids_are_shown_as_codes():
    assert printable("a\x00b\ud800c\ufffed") == r"a\x00b\ud800c\ufffed"
    assert printable("größer ä") == "größer ä"
