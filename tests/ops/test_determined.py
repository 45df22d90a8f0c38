"""Operators whose results the operands do not determine."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from qgraph.ops.known_values import is_random

SEEDED = {s.name for s in onnx.defs.get_all_schemas_with_history() if "seed" in s.attributes}
"""Standard operators that take a seed of random numbers."""


@pytest.mark.parametrize("name", sorted(SEEDED - {"Dropout"}))
def test_every_standard_operator_with_a_seed_is_random(name: str) -> None:
    assert is_random(ir.node(name, [ir.val("x")]), {"": 22})


@pytest.mark.runtime
def test_every_operator_of_onnx_runtime_with_a_seed_is_random_in_training() -> None:
    schemas = pytest.importorskip("onnxruntime").capi.onnxruntime_pybind11_state
    schemas = schemas.get_all_operator_schema()
    seeded = {s.name for s in schemas if s.domain == "com.microsoft" and "seed" in s.attributes}
    open_mode = [ir.val(f"x{index}") for index in range(6)]
    nodes = [ir.Node("com.microsoft", name, open_mode) for name in seeded - {"MurmurHash3"}]
    assert len(nodes) >= 3
    assert all(is_random(node, {"com.microsoft": 1}) for node in nodes)


def test_no_other_standard_operator_is_random() -> None:
    names = {s.name for s in onnx.defs.get_all_schemas()} - SEEDED
    assert len(names) > 150
    assert not [name for name in names if is_random(ir.node(name, [ir.val("x")] * 5), {"": 22})]


@pytest.mark.parametrize(("training", "expected"), [(None, False), (False, False), (True, True)])
def test_dropout_is_random_in_training(training: bool | None, expected: bool) -> None:
    inputs: list[ir.Value | None] = [ir.val("x"), None]
    if training is not None:
        inputs += ir.node("Constant", [], {"value": ir.tensor(training)}).outputs
    assert is_random(ir.node("Dropout", inputs), {"": 22}) is expected
