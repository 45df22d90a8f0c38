"""Compares the kernel of StepQuant with its definition, which the dialect onnx writes."""

import numpy as np
import onnx_ir as ir
import qgraph_mychip.dialect  # noqa: F401 - not needed where the package is installed

import qgraph

TEXT = """<ir_version: 10, opset_import: ["": 21, "com.example.mychip": 1]>
g (float[n] x) => (float[n] y) <float step = {0.3}> {
    y = com.example.mychip.StepQuant <low = -8, high = 7> (x, step)
}"""


def test_the_kernel_computes_what_the_definition_says() -> None:
    """Both give equal numbers for many bit patterns, and for the neighbours of all thresholds."""
    model = qgraph.load(ir.from_onnx_text(TEXT))
    plain = model.clone()
    qgraph.convert(plain, to="onnx")
    anything = np.random.default_rng(0).integers(0, 2**32, 2**16, np.uint32)
    thresholds = (np.arange(-20, 20, dtype=np.float32) + np.float32(0.5)) * np.float32(0.3)
    neighbours = thresholds.view(np.uint32)[:, None] + np.arange(-9, 10).astype(np.uint32)
    x = np.concatenate([anything, neighbours.ravel()]).view(np.float32)
    qgraph.check(model, plain, inputs={"x": x}, backend="numpy").raise_if_different()
