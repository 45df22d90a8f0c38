"""Entries of reports and certificates, found by the names of nodes."""

from __future__ import annotations

from qgraph.transforms.deployment.listing import _Named


def test_entries_are_found_in_their_order_and_once():
    named = _Named(["a b", "b", "c", "a c"], str.split)
    assert named.of({"c", "b"}) == ["a b", "b", "c", "a c"]
    assert named.of(["c", "a"]) == ["a b", "c", "a c"]
    assert named.of(["d"]) == []
