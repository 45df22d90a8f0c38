"""A hook of mkdocs: writes the reference of the API, and lets no page need a network."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import qgraph
from qgraph import plugin, transforms

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

_OUTSIDE = re.compile(r"\s*(https?:)?//", re.IGNORECASE)
_IN_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?\s*((?:https?:)?//[^\s"')]+)""", re.IGNORECASE)
_HOST = "https://unpkg.com/"
_LOADED = frozenset({"src", "srcset", "poster", "data"})
_LINKS_TO_PAGES = frozenset({"canonical", "next", "prev", "alternate"})


def on_files(files: Files, config: Any) -> Files:
    """Add pages that mkdocstrings fills from docstrings."""
    from mkdocs.structure.files import File

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


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """Leave the script out of pages that have no text of their own, such as 404.html, too."""
    return on_post_page(output_content, None, config)


def on_post_build(config: Any) -> None:
    """Fail if a page loads something from another host."""
    from mkdocs.exceptions import PluginError

    site = Path(config["site_dir"])
    leave_out_host(site)
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        for address in loaded_from_outside(path.read_text("utf-8"), path.suffix):
            raise PluginError(
                f"{path.relative_to(site)} loads {address}, expected files of the site only. "
                "Leave it out in docs/dev/site.py."
            )


def leave_out_host(site: Path) -> None:
    """Take another host out of the script of the theme.

    In browsers without ResizeObserver, and on pages with Mermaid diagrams, of which there are none,
    the script would load files from it.
    """
    for path in site.rglob("*.js"):
        text = path.read_text("utf-8")
        if _HOST in text:
            path.write_text(text.replace(_HOST, ""), "utf-8")


def loaded_from_outside(text: str, suffix: str) -> list[str]:
    """Return the addresses of other hosts that a browser loads for a page or a style sheet."""
    if suffix == ".css":
        return _IN_STYLES.findall(text)
    page = _Page()
    page.feed(text)
    return page.outside


class _Page(HTMLParser):
    """What a browser loads for a page from other hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        self.outside += _IN_STYLES.findall(named.get("style", ""))
        loaded = [named[name] for name in sorted(_LOADED & named.keys())]
        relations = named.get("rel", "").lower().split()
        if tag == "link" and _LINKS_TO_PAGES.isdisjoint(relations):
            loaded.append(named.get("href", ""))
        self.outside += [address for address in loaded if _OUTSIDE.match(address)]

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.outside += _IN_STYLES.findall(data)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Leave links to files outside of the folder of the pages out; the site does not have them."""
    depth = page.file.src_uri.count("/") + 1
    return re.sub(r"\[([^]]+)\]\((?:\.\./){" + str(depth) + r"}[^)]+\)", r"\1", markdown)
