"""What every test of a writer checks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.model import Model, load
from qgraph.reports import SiteReport, SiteStatus
from qgraph.transforms.convert import ConvertDialect

SPECIAL = np.float32([0.0, -0.0, np.inf, -np.inf, 3e38, -3e38, 1e-45, -1e-45, 1.17549435e-38])


class WriterChecker:
    """Converts a model with one quantizer and compares both with the executor."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self,
        source: str | ir.Model,
        to: str,
        x: np.ndarray | None = None,
        *,
        ops: list[str] | None = None,
        exactly: Exactness = Exactness.VALUES,
    ) -> tuple[Model, SiteReport]:
        """Convert to the dialect ``to`` and return the model after it and the report of its site.

        Args:
            source: a model with the input x and the output y, or ONNX text.
            to: the dialect.
            x: data on which both must give equal values; NaN in the result counts as equal. None
                for a model without inputs.
            ops: operators afterwards, in order; not compared where None.
            exactly: lowest level that is accepted.
        """
        given = ir.from_onnx_text(source) if isinstance(source, str) else source
        original = load(given)
        model = original.clone()
        (entry,) = model.apply(ConvertDialect(to=to))
        assert entry.outcome is SiteStatus.CHANGED, entry
        assert entry.verdict.exactness >= exactly, entry
        if ops is not None:
            assert [node.op_type for node in model.ir.graph] == ops
        onnx.checker.check_model(ir.to_proto(model.ir), full_check=True)
        feeds = {} if x is None else {"x": x}
        path = self.folder / "after.onnx"
        model.save(path)
        with np.errstate(all="ignore"):
            expected = original.run(feeds, backend="numpy")["y"]
            for candidate in (model, load(path)):
                found = candidate.run(feeds, backend="numpy")["y"]
                assert found.shape == expected.shape
                wrong = ~((expected == found) | (np.isnan(expected) & np.isnan(found)))
                where = () if x is None else (x[wrong][:3],)
                assert not wrong.any(), (entry, *where, expected[wrong][:3], found[wrong][:3])
        return model, entry


@pytest.fixture
def check_writer(tmp_path: Path) -> WriterChecker:
    """``check_writer(text, "qonnx", x, ops=[...])``: see :class:`WriterChecker`."""
    return WriterChecker(tmp_path)


def _near(thresholds: np.ndarray, channels: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        values = np.asarray(thresholds, np.float64).astype(np.float32).ravel()
        around = [values]
        for direction in (np.float32(np.inf), np.float32(-np.inf)):
            step = values
            for _ in range(2):
                step = np.nextafter(step, direction)
                around.append(step)
    x = np.concatenate([SPECIAL, *around])
    return np.broadcast_to(x, (1, channels, x.size)).copy()


@pytest.fixture
def near():
    """``near(thresholds, channels)``: them, two neighbours each, and specials; ``[1, C, N]``."""
    return _near
