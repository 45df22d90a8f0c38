"""A hook of mkdocs: writes the reference of the API, and keeps links within the site."""

from __future__ import annotations

import re
from typing import Any

from mkdocs.structure.files import File, Files

import qgraph
from qgraph import plugin, transforms


def on_files(files: Files, config: Any) -> Files:
    """Add pages that mkdocstrings fills from docstrings."""
    shown: set[str] = set()
    classes = {name: getattr(vars(plugin)[name], "__module__", "") for name in plugin.__all__}
    for name, title, homes in (
        ("functions", "Functions and classes", vars(qgraph)["_HOMES"]),
        ("passes", "Passes", vars(transforms)["_HOMES"]),
        ("plugins", "Plugins", {n: home for n, home in classes.items() if "qgraph" in home}),
    ):
        lines = [f"# {title}"]
        for each in sorted(homes, key=str.lower):
            home = homes[each]
            package = home if home.startswith("qgraph.") else f"qgraph.transforms.{home}"
            path = f"{package}.{each}"
            lines.append(f"## [{each}][{path}]" if path in shown else f"::: {path}")
            shown.add(path)
        content = "\n\n".join(lines)
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Leave the script of another host out, so that no page needs a network."""
    return re.sub(r'<script src="https://[^"]*"></script>', "", output)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Leave links to files outside of the folder of the pages out; the site does not have them."""
    depth = page.file.src_uri.count("/") + 1
    return re.sub(r"\[([^]]+)\]\((?:\.\./){" + str(depth) + r"}[^)]+\)", r"\1", markdown)
