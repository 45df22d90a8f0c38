"""Which quantizers of two models belong together: by what they are made of, names being a help."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence

import onnx_ir as ir

from qgraph.inventory.description import Described
from qgraph.matching.match import Matching, Side

Pair = tuple[Described | None, Described | None]


def pairs(
    matching: Matching | None, ours: Sequence[Described], theirs: Sequence[Described]
) -> list[Pair]:
    """Pair the quantizers of a reference with those of a candidate, in the order of the reference.

    First come those that give or take values which the two models compute alike, then those of one
    name, then those that stand in the same place between others. One without a partner is paired
    with None; of the candidate they come after what they follow there.

    Args:
        matching: of the two graphs that hold the quantizers; None where they have none.
        ours: of the reference, in topological order.
        theirs: of the candidate, in topological order.
    """
    found: dict[int, int] = {}
    for key in _keys(matching):
        _pair_by(key, ours, theirs, found)
    _pair_by_place(ours, theirs, found)
    return list(_ordered(ours, theirs, found))


Key = Callable[[Described, bool], Hashable]
"""What two quantizers share that belong together; None for no such thing."""


def _keys(matching: Matching | None) -> Iterator[Key]:
    if matching is not None:
        sides = matching.candidate, matching.reference

        def made(described: Described, is_ours: bool) -> Hashable:
            return _class(matching, sides[is_ours], described.y)

        def taken(described: Described, is_ours: bool) -> Hashable:
            return _class(matching, sides[is_ours], described.x)

        yield made
        yield taken
    yield lambda described, _: described.description.name
    yield lambda described, _: described.node or None
    yield lambda described, _: None if described.x is None else described.x.name


def _class(matching: Matching, side: Side, value: ir.Value | None) -> Hashable:
    # values in graphs that did not meet, such as bodies of different loops, have no class
    return None if value not in side.classes else matching.class_of(side, value)


def _pair_by(
    key: Key, ours: Sequence[Described], theirs: Sequence[Described], found: dict[int, int]
) -> None:
    """Pair what is left and shares a key.

    As many on both sides go together in their order. Of more there, each takes the one that is as
    far along in its model: values that could not be matched may stand for too many others.
    """
    taken = set(found.values())
    left: dict[tuple[Hashable, str | None], list[int]] = defaultdict(list)
    right: dict[tuple[Hashable, str | None], list[int]] = defaultdict(list)
    for place, described in enumerate(ours):
        if place not in found:
            left[key(described, True), described.description.of].append(place)
    for place, described in enumerate(theirs):
        if place not in taken:
            right[key(described, False), described.description.of].append(place)
    for shared, places in left.items():
        partners = right[shared]
        if shared[0] is None:
            continue
        if len(places) == len(partners):
            found.update(zip(places, partners, strict=True))
            continue
        for place in places:
            if partners:
                nearest = _nearest(partners, place * len(theirs) / len(ours))
                partners.remove(nearest)
                found[place] = nearest


def _nearest(places: Sequence[int], sought: float) -> int:
    return min(places, key=lambda place: abs(place - sought))


def _pair_by_place(
    ours: Sequence[Described], theirs: Sequence[Described], found: dict[int, int]
) -> None:
    """Pair what is left between the same two neighbours, if there are as many on both sides."""
    for of in ("data", "weight"):
        mine = [n for n, described in enumerate(ours) if described.description.of == of]
        other = [n for n, described in enumerate(theirs) if described.description.of == of]
        back = {theirs_place: ours_place for ours_place, theirs_place in found.items()}
        gaps: dict[int | None, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        before: int | None = None
        for place in mine:
            if place in found:
                before = place
            else:
                gaps[before][0].append(place)
        before = None
        for place in other:
            if place in back:
                before = back[place]
            else:
                gaps[before][1].append(place)
        for left, right in gaps.values():
            if len(left) == len(right):
                found.update(zip(left, right, strict=True))


def _ordered(
    ours: Sequence[Described], theirs: Sequence[Described], found: dict[int, int]
) -> Iterator[Pair]:
    """Yield the pairs; a single one of the candidate follows the pair that it follows there."""
    taken = set(found.values())
    after: dict[int, list[int]] = defaultdict(list)
    before = -1
    for place in range(len(theirs)):
        if place in taken:
            before = place
        else:
            after[before].append(place)
    yield from ((None, theirs[place]) for place in after[-1])
    for place, described in enumerate(ours):
        partner = found.get(place)
        yield described, None if partner is None else theirs[partner]
        if partner is not None:
            yield from ((None, theirs[other]) for other in after[partner])
