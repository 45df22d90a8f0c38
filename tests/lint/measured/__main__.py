"""Measure the figures of the rule pages: python -m tests.lint.measured [ID]... [--write].

Times are processor times of one thread, as medians of fifteen turns against the other model.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
import sys
import textwrap
from pathlib import Path

import tests.lint.measured as package
from qgraph.lint import engine
from qgraph.lint.rule import RULES
from tests.lint.measured.harness import MEASURED

PAGES = Path(engine.__file__).parent / "pages"


def registered() -> dict[str, object]:
    """Import all measurements; return them."""
    for each in pkgutil.iter_modules(package.__path__):
        if not each.name.startswith("_"):
            importlib.import_module(f"tests.lint.measured.{each.name}")
    return dict(sorted(MEASURED.items()))


def written(rule: str, sentence: str) -> None:
    """Put a sentence into the page of a rule: behind why it matters."""
    path = PAGES / f"{RULES.find(rule).family}.md"
    head, section, tail = re.split(rf"(?ms)(^## {rule} .*?(?=^## |\Z))", path.read_text("utf-8"))
    section = re.sub(r"(?ms)^\*\*Measured\.\*\*.*?\n\n", "", section)
    told = textwrap.fill(
        f"**Measured.** {sentence}", 118, break_long_words=False, break_on_hyphens=False
    )
    section = section.replace("**What to do.**", f"{told}\n\n**What to do.**", 1)
    path.write_text(head + section + tail, "utf-8")


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ids", nargs="*", help="ids, or beginnings of ids; all by default")
    parser.add_argument("--write", action="store_true", help="change the pages")
    options = parser.parse_args()
    for rule, function in registered().items():
        if options.ids and not rule.startswith(tuple(options.ids)):
            continue
        sentence = " ".join(function().split())
        sys.stdout.write(f"{rule}: {sentence}\n")
        sys.stdout.flush()
        if options.write:
            written(rule, sentence)


if __name__ == "__main__":
    main()
