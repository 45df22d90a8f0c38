"""Time the comparison over all inputs of an 8-bit Quant with its Q/DQ form.

Two cases: one scale for the tensor, over several scales, and 4096 channels with a scale each.
Memory is the growth of the process while the channels are compared.

    python tests/benchmarks/bench_compare.py
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.exactness import Exactness, Verdict
from qgraph.graph.edit import Editor
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.dialect import DIALECTS, Site
from qgraph.quantizers.sites import sites

QONNX_DOMAIN = "qonnx.custom_op.general"


def make_quant(scale: npt.NDArray[np.float32], bits: int = 8) -> ir.Model:
    """Return ``y = Quant(x)``, ``x [1, channels, 4]``, signed, zero point 0."""
    float32 = ir.TensorType(ir.DataType.FLOAT)

    def initializer(name: str, array: npt.NDArray[np.float32]) -> ir.Value:
        tensor = ir.tensor(array, name=name)
        return ir.Value(name=name, shape=tensor.shape, type=float32, const_value=tensor)

    x, y = (ir.Value(name=n, shape=ir.Shape((1, scale.size, 4)), type=float32) for n in "xy")
    parameters = [
        initializer("scale", scale),
        initializer("zero", np.zeros((), np.float32)),
        initializer("bits", np.array(bits, np.float32)),
    ]
    node = ir.node(
        "Quant",
        [x, *parameters],
        {"signed": 1, "narrow": 0, "rounding_mode": "ROUND"},
        domain=QONNX_DOMAIN,
        outputs=[y],
        name="quant",
    )
    graph = ir.Graph(
        [x],
        [y],
        nodes=[node],
        initializers=parameters,
        opset_imports={"": 21, QONNX_DOMAIN: 2},
        name="quant",
    )
    return ir.Model(graph, ir_version=10)


def compare(scale: npt.NDArray[np.float32]) -> tuple[Verdict, float]:
    """Return how equal the first Q/DQ spelling is, and the seconds that took."""
    model = make_quant(scale)
    site = next(sites(model))
    if not isinstance(site, Site):
        raise SystemExit(site.reason)
    draft = next(DIALECTS.find("qdq").spellings(site, Editor(model)))
    start = time.perf_counter()
    verdict = Comparer(model).compare(site, draft)
    return verdict, time.perf_counter() - start


def peak_megabytes() -> float:
    """Return the largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print the time per tensor, then that of many channels."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--channels", type=int, default=4096)
    parser.add_argument("--tensors", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)

    compare(np.array(0.25, np.float32))  # imports and registries
    results = [
        compare(np.array(scale, np.float32)) for scale in rng.uniform(1e-3, 0.2, options.tensors)
    ]
    times = [1e3 * spent for _, spent in results]
    weakest = min(verdict.exactness or Exactness.DIFFERENT for verdict, _ in results)
    print(
        f"per tensor: median {statistics.median(times):.1f} ms, at most {max(times):.1f} ms, "
        f"{len(times)} scales, at least {weakest}"
    )

    before = peak_megabytes()
    scale = rng.uniform(1e-3, 0.2, (1, options.channels, 1)).astype(np.float32)
    verdict, spent = compare(scale)
    print(
        f"{options.channels} channels: {spent:.2f} s, {peak_megabytes() - before:.0f} MB, "
        f"{verdict.exactness}, {verdict.differing_inputs} differing inputs"
    )


if __name__ == "__main__":
    main()
