"""Time load, convert and save on chains of 1,000, 10,000 and 100,000 nodes.

Every second node is a Quant, the others are Relu, Neg and Abs; scales and widths come from a small
set, as they do where quantizers share their parameters. The time per node should not grow.

    python tests/benchmarks/bench_chain.py [--nodes 1000 10000 100000]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx_ir as ir

import qgraph
from qgraph import transforms

QONNX_DOMAIN = "qonnx.custom_op.general"
SCALES = (0.5, 0.25, 0.1, 0.0625, 0.03, 0.02, 0.0078125, 0.005)
BITS = (2, 3, 4, 8)
STANDARD = ("Relu", "Neg", "Abs")
WIDTH = 16


def make_chain(nodes: int, seed: int = 0) -> ir.Model:
    """Return ``x [1, 16]`` to ``y [1, 16]`` through a chain of ``nodes`` nodes."""
    rng = np.random.default_rng(seed)
    float32 = ir.TensorType(ir.DataType.FLOAT)
    shape = ir.Shape((1, WIDTH))

    def initializer(name: str, number: float) -> ir.Value:
        tensor = ir.tensor(np.array(number, np.float32), name=name)
        return ir.Value(name=name, shape=ir.Shape(()), type=float32, const_value=tensor)

    scales = [initializer(f"scale_{i}", scale) for i, scale in enumerate(SCALES)]
    widths = [initializer(f"bits_{bits}", bits) for bits in BITS]
    zero = initializer("zero", 0.0)
    x = ir.Value(name="x", shape=shape, type=float32)
    body: list[ir.Node] = []
    last = x
    for i in range(nodes):
        output = ir.Value(name=f"v{i}", shape=shape, type=float32)
        if i % 2:
            body.append(ir.node(STANDARD[rng.integers(3)], [last], outputs=[output], name=f"n{i}"))
        else:
            parameters = [scales[rng.integers(len(scales))], zero, widths[rng.integers(len(BITS))]]
            attributes = {"signed": 1, "narrow": int(rng.integers(2)), "rounding_mode": "ROUND"}
            body.append(
                ir.node(
                    "Quant",
                    [last, *parameters],
                    attributes,
                    domain=QONNX_DOMAIN,
                    outputs=[output],
                    name=f"n{i}",
                )
            )
        last = output
    graph = ir.Graph(
        [x],
        [last],
        nodes=body,
        initializers=[*scales, *widths, zero],
        opset_imports={"": 20, QONNX_DOMAIN: 2},
        name="chain",
    )
    return ir.Model(graph, ir_version=9, producer_name="bench_chain")


@contextmanager
def timed(times: dict[str, float], name: str) -> Iterator[None]:
    """Enter the wall time of the block under ``name``."""
    start = time.perf_counter()
    yield
    times[name] = time.perf_counter() - start


def measure(nodes: int, folder: Path) -> dict[str, float]:
    """Return the seconds of each step."""
    path = folder / f"chain_{nodes}.onnx"
    ir.save(make_chain(nodes), path)
    times: dict[str, float] = {}
    with timed(times, "load"):
        model = qgraph.load(path)
    with timed(times, "convert"):
        report = model.apply(transforms.ConvertDialect(to="qdq"))
    with timed(times, "save"):
        model.save(folder / "out.onnx")
    summary = report.to_json()["summary"]
    if summary["changed"] != (nodes + 1) // 2:
        raise SystemExit(f"only {summary['changed']} of {(nodes + 1) // 2} sites were converted")
    return times


def main() -> None:
    """Print seconds, microseconds per node and their growth over the smallest chain."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    options = parser.parse_args()
    print(
        f"{'nodes':>8} {'load s':>8} {'convert s':>10} {'save s':>8} {'us/node':>8} {'growth':>7}"
    )
    base: float | None = None
    with tempfile.TemporaryDirectory() as folder:
        measure(100, Path(folder))  # imports and registries
        for nodes in sorted(options.nodes):
            times = measure(nodes, Path(folder))
            each = times["convert"] / nodes * 1e6
            base = base or each
            print(
                f"{nodes:8} {times['load']:8.3f} {times['convert']:10.3f} {times['save']:8.3f} "
                f"{each:8.1f} {each / base:7.2f}"
            )


if __name__ == "__main__":
    main()
