"""Draws components on their floors, with arrows for imports, as SVG.

A component stands one floor above the highest component that it imports. Arrows that follow from
others are left out (transitive reduction). An arrow that passes a floor takes a place among its
boxes. Boxes are sorted by the mean of their neighbours, floor by floor, several times; the order
with the fewest crossings is drawn (Sugiyama, Tagawa, Toda, 1981).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from statistics import fmean

import networkx as nx

BOX_HEIGHT, FLOOR_HEIGHT, MARGIN, GAP = 44, 92, 70, 22
LETTER, SMALL_LETTER = 8.2, 6.2
ROUNDS = 40

STYLE = """
text { font-family: ui-sans-serif, system-ui, sans-serif; text-anchor: middle; fill: #1f2937 }
.name { font-size: 14px; font-weight: 600 }
.inside { font-size: 11px; fill: #4b5563 }
.floor { font-size: 11px; fill: #9ca3af }
.band { fill: #f3f4f6 }
.box { fill: #ffffff; stroke: #4b5563; stroke-width: 1.2 }
.arrow { fill: none; stroke: #64748b; stroke-width: 1.2; marker-end: url(#head) }
"""

HEAD = """<defs>
<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" orient="auto">
<path d="M0,0 L8,4 L0,8 z" fill="#64748b"/>
</marker>
</defs>"""

Row = list[str]
Point = tuple[float, float]


def draw(imports: nx.DiGraph[str], modules: Iterable[str]) -> str:
    """Return a picture of the components as SVG text, the same for the same imports.

    Args:
        imports: component to imported component; components in a circle share a box.
        modules: names of all modules; packages get a slash, and the names of their sub-packages.
    """
    inside: dict[str, set[str]] = {}
    for _, name, *rest in (module.split(".") for module in modules if "." in module):
        if rest:
            inside.setdefault(name, set()).update(rest[:-1][:1])  # without the module itself
    graph, titles = _without_circles(imports)
    floor = _floors(graph)
    graph = nx.transitive_reduction(graph)
    lines = {
        node: ", ".join(sorted({each for name in members for each in inside.get(name, ())}))
        for node, members in titles.items()
    }
    names = {
        node: " + ".join(f"{name}/" if name in inside else name for name in members)
        for node, members in titles.items()
    }
    width = {
        node: 24 + max(LETTER * len(names[node]), SMALL_LETTER * len(lines[node])) for node in graph
    }
    routes = _routes(graph, floor, width)
    rows = _ordered(_rows(floor), [pair for route in routes for pair in pairwise(route)])
    x = _positions(rows, [pair for route in routes for pair in pairwise(route)], width)
    shift = 2 * MARGIN - min(x[node] - width[node] / 2 for node in x)
    x = {node: place + shift for node, place in x.items()}
    right = max(x[node] + width[node] / 2 for node in x) + MARGIN / 2
    bottom = FLOOR_HEIGHT * len(rows)
    y = {node: bottom - FLOOR_HEIGHT * (floor[node] - 0.5) for node in floor}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right:.0f} {bottom}" role="img">',
        "<title>Imports between the packages and modules of qgraph</title>",
        f"<style>{STYLE}</style>",
        HEAD,
        f'<rect width="{right:.0f}" height="{bottom}" fill="#ffffff"/>',
    ]
    for number in range(1, len(rows) + 1):
        top = bottom - FLOOR_HEIGHT * number
        if number % 2:
            parts.append(
                f'<rect class="band" y="{top}" width="{right:.0f}" height="{FLOOR_HEIGHT}"/>'
            )
        parts.append(f'<text class="floor" x="28" y="{top + FLOOR_HEIGHT / 2 + 4}">{number}</text>')
    starts = _ports(routes, x, width)
    ends = _ports([route[::-1] for route in routes], x, width)
    sides = (-BOX_HEIGHT / 2, BOX_HEIGHT / 2)
    for route in routes:
        points = [
            (starts[route[0], route[1]], y[route[0]] + BOX_HEIGHT / 2),
            *((x[node], y[node] + side) for node in route[1:-1] for side in sides),
            (ends[route[-1], route[-2]], y[route[-1]] - BOX_HEIGHT / 2),
        ]
        parts.append(f'<path class="arrow" d="{_curve(points)}"/>')
    for node in sorted(graph):
        left, top = x[node] - width[node] / 2, y[node] - BOX_HEIGHT / 2
        parts.append(
            f'<rect class="box" x="{left:.1f}" y="{top:.1f}" width="{width[node]:.1f}" '
            f'height="{BOX_HEIGHT}" rx="6"/>'
        )
        for kind, text, offset in [
            ("name", names[node], -2 if lines[node] else 5),
            ("inside", lines[node], 14),
        ]:
            if text:
                parts.append(
                    f'<text class="{kind}" x="{x[node]:.1f}" y="{y[node] + offset:.1f}">'
                    f"{escape(text)}</text>"
                )
    return "\n".join([*parts, "</svg>", ""])


def _without_circles(imports: nx.DiGraph[str]) -> tuple[nx.DiGraph[str], dict[str, list[str]]]:
    """Return the graph with each circle as one node, and what each node consists of."""
    parts = nx.condensation(imports)
    titles = {part: sorted(parts.nodes[part]["members"]) for part in parts}
    graph = nx.DiGraph()
    graph.add_nodes_from(sorted(names[0] for names in titles.values()))
    graph.add_edges_from(sorted((titles[one][0], titles[other][0]) for one, other in parts.edges))
    return graph, {names[0]: names for names in titles.values()}


def _floors(graph: nx.DiGraph[str]) -> dict[str, int]:
    floor: dict[str, int] = {}
    for node in reversed(list(nx.lexicographical_topological_sort(graph))):
        floor[node] = 1 + max((floor[target] for target in graph[node]), default=0)
    return floor


def _routes(graph: nx.DiGraph[str], floor: dict[str, int], width: dict[str, float]) -> list[Row]:
    """Return the nodes along each arrow, and enter those on the floors that it passes."""
    routes = []
    for source, target in sorted(graph.edges):
        between = {
            f"{source}>{target}@{number}": number
            for number in range(floor[source] - 1, floor[target], -1)
        }
        floor.update(between)
        width.update(dict.fromkeys(between, 6.0))
        routes.append([source, *between, target])
    return routes


def _rows(floor: dict[str, int]) -> list[Row]:
    return [
        sorted(node for node in floor if floor[node] == number)
        for number in range(1, max(floor.values()) + 1)
    ]


def _crossings(rows: Sequence[Row], edges: Sequence[tuple[str, str]]) -> int:
    index = {node: place for row in rows for place, node in enumerate(row)}
    floor = {node: number for number, row in enumerate(rows) for node in row}
    return sum(
        (index[a] - index[c]) * (index[b] - index[d]) < 0
        for number, (a, b) in enumerate(edges)
        for c, d in edges[:number]
        if floor[a] == floor[c]
    )


def _ordered(rows: list[Row], edges: Sequence[tuple[str, str]]) -> list[Row]:
    """Return the rows in the order of the fewest crossings that was seen."""
    neighbours = nx.Graph(edges)
    floor = {node: number for number, row in enumerate(rows) for node in row}
    best, fewest = rows, _crossings(rows, edges)
    for attempt in range(ROUNDS):
        upward = attempt % 2 == 0
        order = range(1, len(rows)) if upward else range(len(rows) - 2, -1, -1)
        rows = list(rows)
        for number in order:
            fixed = number - 1 if upward else number + 1
            index = {node: place for place, node in enumerate(rows[fixed])}
            means = {}
            for place, node in enumerate(rows[number]):
                seen = [
                    index[each] for each in neighbours.adj.get(node, ()) if floor[each] == fixed
                ]
                means[node] = fmean(seen) if seen else place * len(index) / len(rows[number])
            rows[number] = sorted(rows[number], key=lambda node: (means[node], node))
        crossings = _crossings(rows, edges)
        if crossings < fewest:
            best, fewest = rows, crossings
    return best


def _positions(
    rows: Sequence[Row], edges: Sequence[tuple[str, str]], width: dict[str, float]
) -> dict[str, float]:
    """Return centres of nodes: near the mean of their neighbours, in order, without overlap."""
    neighbours = nx.Graph(edges)
    x = {}
    for row in rows:
        place = -sum(width[node] + GAP for node in row) / 2
        for node in row:
            x[node] = place + width[node] / 2
            place += width[node] + GAP
    for _ in range(ROUNDS):
        for row in [*rows, *reversed(rows)]:
            wanted = []
            for node in row:
                near = [x[each] for each in neighbours.adj.get(node, ())]
                wanted.append(fmean(near) if near else x[node])
            x.update(zip(row, _apart(wanted, [width[node] for node in row]), strict=True))
    return x


def _apart(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Return the places nearest to those wanted (least squares) that keep order and distance."""
    offsets = [0.0]
    for left, right in pairwise(widths):
        offsets.append(offsets[-1] + (left + right) / 2 + GAP)
    blocks: list[list[float]] = []
    for place, offset in zip(wanted, offsets, strict=True):
        blocks.append([place - offset])
        while len(blocks) > 1 and fmean(blocks[-2]) > fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    means = [fmean(block) for block in blocks for _ in block]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _ports(
    routes: Sequence[Row], x: dict[str, float], width: dict[str, float]
) -> dict[tuple[str, str], float]:
    """Return where each route leaves its first node: spread over the box, in order."""
    following: dict[str, list[str]] = {}
    for first, second, *_ in routes:
        following.setdefault(first, []).append(second)
    ports = {}
    for node, others in following.items():
        for number, other in enumerate(sorted(others, key=lambda each: (x[each], each)), start=1):
            ports[node, other] = x[node] + width[node] * (number / (len(others) + 1) - 0.5)
    return ports


def _curve(points: Sequence[Point]) -> str:
    """Return a path from above that is vertical at each point."""
    path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    for (left, top), (right, bottom) in pairwise(points):
        middle = (top + bottom) / 2
        path += f" C{left:.1f},{middle:.1f} {right:.1f},{middle:.1f} {right:.1f},{bottom:.1f}"
    return path
