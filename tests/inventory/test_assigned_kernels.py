"""Executed products are assigned to layers by the numbers in their names."""

from __future__ import annotations

from qgraph.inventory.executed import _assigned
from qgraph.inventory.kernels import RunKernel


def product(names: str, *, on_codes: bool = True) -> RunKernel:
    return RunKernel(f"Conv {names}", names, is_product=True, on_codes=on_codes)


def test_numbers_are_read_whole():
    products = [product(f"a,qgraph{number}layer_conv") for number in (11, 1, 0)]
    kernels = _assigned(12, products)
    assert [kernels[0], kernels[1], kernels[11]] == products[::-1]
    assert kernels.count(None) == 9


def test_a_product_may_have_the_name_of_what_follows_its_layer():
    behind = product("qgraph1behind_relu")
    both = product("qgraph0layer_conv,qgraph0behind_relu")
    other = product("qgraph2behind_relu,qgraphother_conv")
    assert _assigned(3, [behind, both, other]) == [both, behind, None]


def test_products_on_codes_come_first():
    plain, coded = product("qgraph0layer_a", on_codes=False), product("qgraph0layer_b")
    assert _assigned(1, [plain, coded]) == [coded]
    assert _assigned(1, [plain]) == [plain]


def test_the_rest_goes_to_layers_without_a_product_if_all_are_alike():
    named, rest = product("qgraph1layer_conv"), [product("x"), product("y")]
    assert _assigned(3, [rest[0], named, rest[1]]) == [rest[0], named, rest[1]]
    assert _assigned(3, [named, rest[0]]) == [None, named, None]
    unlike = [product("x"), product("y", on_codes=False)]
    assert _assigned(3, [named, *unlike]) == [None, named, None]
