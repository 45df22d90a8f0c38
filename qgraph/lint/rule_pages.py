"""Pages of the rules: what each finds, why it matters, what to do, and a model before and after.

A page is a section of ``pages/<family>.md``. Its two models, in ONNX text without the header, are
tests too: the rule finds the node ``here`` in the first, and nothing in the second. ``@N@`` stands
for N numbers.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from importlib.resources import files

from qgraph.lint.rule import LintRule

HEADER = (
    '<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2, '
    '"org.openvinotoolkit": 1, "com.microsoft": 1]> g '
)
"""What the models of pages begin with, unless they state versions of their own."""

_REPEATED = re.compile(r"@(\d+)@")
_SECTION = re.compile(r"^## (QG\d+) (\S+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_MODEL = re.compile(r"^```onnx (before|after)([^\n]*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class RulePage:
    """The page of a rule.

    Attributes:
        id, name: of the rule.
        text: Markdown, without the models.
        before, after: models in ONNX text, with and without a finding.
        options: words beside ``before``: ``target=NAME``.
    """

    id: str
    name: str
    text: str
    before: str
    after: str
    options: tuple[str, ...] = ()

    @property
    def target(self) -> str | None:
        """The target that the models are linted for."""
        return next((o.partition("=")[2] for o in self.options if o.startswith("target=")), None)

    @property
    def paragraphs(self) -> list[str]:
        """The text in paragraphs of one line each."""
        return [" ".join(each.split()) for each in self.text.split("\n\n") if each.strip()]


def whole_model(text: str) -> str:
    """Return a model of a page with its header, and ``@N@`` replaced by N numbers from 0 to 7."""
    text = _REPEATED.sub(lambda found: ", ".join(str(i % 8) for i in range(int(found[1]))), text)
    return text if text.startswith("<ir_version") else HEADER + text


@functools.cache
def pages_of(family: str) -> dict[str, RulePage]:
    """Return the pages of a family by id."""
    text = files("qgraph.lint").joinpath(f"pages/{family}.md").read_text("utf-8")
    found = {}
    for rule_id, name, body in _SECTION.findall(text):
        models = {kind: (model, options) for kind, options, model in _MODEL.findall(body)}
        plain = _MODEL.sub("", body).strip()
        before, options = models.get("before", ("", ""))
        after, _ = models.get("after", ("", ""))
        found[rule_id] = RulePage(
            rule_id, name, plain, before.strip(), after.strip(), tuple(options.split())
        )
    return found


def page_of_rule(rule: LintRule) -> RulePage:
    """Return the page of a rule."""
    return pages_of(rule.family)[rule.id]
