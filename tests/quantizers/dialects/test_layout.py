"""How QuantizeLinear expresses the granularity of parameters."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qgraph.quantizers.dialects.layout import layout_of


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [((), {}), ((4, 1), {"axis": 0}), ((4, 3), {"axis": 1, "block_size": 2})],
)
def test_a_layout_needs_the_opset_that_has_its_attributes(
    shape: tuple[int, ...], attributes: dict[str, int]
) -> None:
    layout = layout_of((4, 6), np.ones(shape, np.float32))
    assert layout is not None
    assert layout.attributes == attributes
    schemas = (onnx.defs.get_schema("QuantizeLinear", opset) for opset in (10, 13, 19, 21))
    since = next(s.since_version for s in schemas if set(attributes) <= set(s.attributes))
    assert layout.opset == since
