"""What every test of a pass checks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.model import Model, load
from qgraph.reports import Report, SiteStatus
from qgraph.transforms.base import Transform


class PassChecker:
    """Runs a pass on a model in ONNX text and holds it to everything that passes promise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self,
        step: Transform,
        before: str | ir.Model,
        *,
        ops: list[str] | None = None,
        exactly: Exactness = Exactness.VALUES,
        inputs: dict[str, np.ndarray] | None = None,
    ) -> tuple[Model, Report]:
        """Apply ``step`` and return the model after it and the report.

        Args:
            step: the pass.
            before: ONNX text.
            ops: operators of the main graph afterwards, in order; not compared where None.
            exactly: lowest level that the changed sites must have.
            inputs: data on which both models must give equal values; random and hostile values
                where None.
        """
        source = ir.from_onnx_text(before) if isinstance(before, str) else before
        loaded = load(source)
        original, model = loaded.clone(), loaded.clone()
        report = model.apply(step)
        onnx.checker.check_model(ir.to_proto(model.ir), full_check=True)
        if ops is not None:
            assert [node.op_type for node in model.ir.graph] == ops, report
        assert report.exactness >= exactly, report
        assert [v.name for v in model.ir.graph.outputs] == [
            v.name for v in original.ir.graph.outputs
        ]
        again = model.clone().apply(step)
        assert again.count(SiteStatus.CHANGED) == 0, "a second run changes something"
        path = self.folder / "after.onnx"
        model.save(path)
        feeds = inputs if inputs is not None else hostile_inputs(original)
        with np.errstate(all="ignore"):
            expected = original.run(feeds, backend="numpy")
            for candidate in (model, load(path)):
                found = candidate.run(feeds, backend="numpy")
                for name, value in expected.items():
                    if exactly >= Exactness.VALUES:
                        np.testing.assert_array_equal(found[name], value, err_msg=name)
        return model, report


def hostile_inputs(model: Model) -> dict[str, np.ndarray]:
    """Ties, neighbours of ties, zeros, infinities and random values for each float input."""
    random = np.random.default_rng(0)
    feeds = {}
    for value in model.inputs:
        shape = [size if isinstance(size, int) else 64 for size in value.shape]
        count = int(np.prod(shape))
        steps = np.arange(-300, 300, dtype=np.float32)[:, None] * np.float32(0.5)
        grid = (steps * np.float32([1, 0.25, 0.1, 0.0625])).ravel()
        near = [grid, np.nextafter(grid, np.float32(9e9)), np.nextafter(grid, np.float32(-9e9))]
        special = np.float32([0.0, -0.0, np.inf, -np.inf, 3e38, -3e38, 1e-45, -1e-45, 1e-38])
        pool = np.concatenate([*near, random.normal(size=256).astype(np.float32) * 20])
        chosen = random.choice(pool, max(count - special.size, 0))
        feeds[value.name] = np.resize(np.concatenate([special, chosen]), count).reshape(shape)
    return feeds


@pytest.fixture
def check_pass(tmp_path: Path) -> PassChecker:
    """``check_pass(step, text, ops=[...])``: see :class:`PassChecker`."""
    return PassChecker(tmp_path)


NETWORK = """<ir_version: 8, opset_import: ["": 17]>
    net (float[N,2,6,6] x) => (float[N,3,4,4] y)
    <float s = {0.05}, uint8 z = {128}, float[3] sw = {0.01, 0.02, 0.015}, int8[3] zw = {0, 0, 0},
     float t = {0.1}, uint8 u = {0}, float[3] b = {0.1, -0.2, 0.3},
     float[3] gamma = {1.5, 0.7, 1.1}, float[3] beta = {0.2, 0.1, -0.4},
     float[3] mean = {0.3, -0.1, 0.2}, float[3] var = {1.2, 0.8, 0.5}> {
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        e = DequantizeLinear <axis = 0> (w, sw, zw)
        [conv] c = Conv (d, e, b)
        n = BatchNormalization (c, gamma, beta, mean, var)
        r = Relu (n)
        p = QuantizeLinear (r, t, u)
        y = DequantizeLinear (p, t, u)
    }"""


@pytest.fixture
def network(tmp_path: Path) -> Path:
    proto = onnx.parser.parse_model(NETWORK)
    weights = np.random.default_rng(0).integers(-127, 128, (3, 2, 3, 3)).astype(np.int8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path = tmp_path / "network.onnx"
    onnx.save(proto, path)
    return path
