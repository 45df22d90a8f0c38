"""Forms of operators."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from qgraph.errors import OperatorError
from qgraph.graph.schema import Attribute, OpKey, OpSchema

SCHEMA = OpSchema(
    name="Snap",
    also=("Snapped",),
    domains=("a", "b"),
    inputs=("x", "scale", "offset"),
    optional=1,
    attributes=(
        Attribute("mode", "near", also=("kind",), parse=str.upper, kind=ir.AttributeType.STRING),
        Attribute("width"),
    ),
)


def node(*inputs, name="Snap", domain="a", **attributes):
    values = [None if i is None else ir.Value(name=i) for i in inputs]
    return ir.node(name, values, attributes, domain=domain, name="n1")


def test_keys_are_all_spellings():
    assert set(SCHEMA.keys) == {OpKey(d, n) for d in "ab" for n in ("Snap", "Snapped")}


@pytest.mark.parametrize("count", range(5))
def test_accepts_goes_by_name_and_number_of_inputs(count):
    assert SCHEMA.accepts(node(*"xsoq"[:count])) is (count in (2, 3))
    assert not SCHEMA.accepts(node("x", "s", name="Other"))
    assert not SCHEMA.accepts(node("x", "s", domain="c"))


def test_absent_optional_inputs_are_none():
    assert [v and v.name for v in SCHEMA.values(node("x", "s"))] == ["x", "s", None]
    with pytest.raises(OperatorError, match=r"Snap 'n1': input 'scale' is missing"):
        SCHEMA.values(node("x", None, "o"))


def test_attributes_are_parsed_and_filled_in():
    assert SCHEMA.attributes_of(node("x", "s", width=3)) == {"mode": "NEAR", "width": 3}
    assert SCHEMA.attributes_of(node("x", "s", width=3, kind="far"))["mode"] == "FAR"
    both = node("x", "s", width=3, kind="far", mode="up", unknown=1)
    assert SCHEMA.attributes_of(both) == {"mode": "UP", "width": 3}


def test_bad_attributes_are_named():
    with pytest.raises(OperatorError, match=r"Snap 'n1': attribute 'width' is absent"):
        SCHEMA.attributes_of(node("x", "s"))
    with pytest.raises(OperatorError, match=r"'width' is of type STRING, expected INT"):
        SCHEMA.attributes_of(node("x", "s", width="3"))
