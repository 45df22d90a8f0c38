"""Time whole processes on large graphs with few weights: processor time a node.

Chains, residual nets and wide graphs in which every second or third node is a Quant. The scales are
a few that repeat, or all differ. Each job is a process of its own, start-up, imports and garbage
collection included. Times are divided by the nodes of all models that the job reads. Beside them
stands what ``onnx_ir`` needs to load and save the same files. The job ``near`` bounds the distance
of two models whose scales are one float apart, so that no region is equal.

    python tests/benchmarks/bench_graphs.py [--nodes 10000 100000] [--forms chain residual wide]
        [--scales few all] [--jobs convert fold info lock diff prove bound near]
"""

from __future__ import annotations

import argparse
import compileall
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import onnx_ir as ir

import qgraph.cli
import qgraph.transforms

QONNX_DOMAIN = "qonnx.custom_op.general"
FEW = (0.5, 0.25, 0.1, 0.0625, 0.03, 0.02, 0.0078125, 0.005)
BITS = (2, 3, 4, 8)
STANDARD = ("Relu", "Neg", "Abs")
KEEPING = ("Neg", "Abs")
"""Operators whose chains are not constant: a Relu behind a Neg behind a Relu is 0."""
SHAPE = (1, 16)
BRANCHES = 100

JOBS: dict[str, list[str]] = {
    "convert": ["convert", "{model}", "-o", "{out}", "--to", "qdq"],
    "to onnx": ["convert", "{model}", "-o", "{out}", "--to", "onnx"],
    "to qonnx": ["convert", "{converted}", "-o", "{out}", "--to", "qonnx"],
    "fold": ["fold", "{converted}", "-o", "{out}"],
    "info": ["info", "{model}"],
    "lock": ["lock", "{model}", "-o", "{out}.lock"],
    "diff": ["diff", "{model}", "{converted}"],
    "prove": ["prove", "{model}", "{converted}"],
    "bound": ["prove", "{model}", "{converted}", "--within", "1step"],
    "near": ["prove", "{kept}", "{moved}", "--within", "1step"],
}
REFERENCE = "import sys, onnx_ir; onnx_ir.save(onnx_ir.load(sys.argv[1]), sys.argv[2])"


class Maker:
    """Builds a graph node by node, with its scales as initializers."""

    def __init__(self, *, repeats: bool, seed: int = 0, standard: Sequence[str] = STANDARD) -> None:
        self._rng = np.random.default_rng(seed)
        self._standard = standard
        self._repeats = repeats
        self._constants: dict[float, ir.Value] = {}
        self._numbers = count(1)
        self.nodes: list[ir.Node] = []

    def value(self, name: str) -> ir.Value:
        """Return a value for data."""
        return ir.Value(name=name, shape=ir.Shape(SHAPE), type=ir.TensorType(ir.DataType.FLOAT))

    def node(self, op_type: str, inputs: list[ir.Value], **attributes: int | str) -> ir.Value:
        """Append a node and return its output."""
        i = len(self.nodes)
        output, domain = self.value(f"v{i}"), QONNX_DOMAIN if op_type == "Quant" else ""
        self.nodes.append(
            ir.node(op_type, inputs, attributes, domain=domain, outputs=[output], name=f"n{i}")
        )
        return output

    def constant(self, number: float) -> ir.Value:
        """Return the initializer of a number."""
        if number not in self._constants:
            name = f"c{len(self._constants)}"
            tensor = ir.tensor(np.array(number, np.float32), name=name)
            kind = ir.TensorType(ir.DataType.FLOAT)
            value = ir.Value(name=name, shape=ir.Shape(()), type=kind, const_value=tensor)
            self._constants[number] = value
        return self._constants[number]

    def quant(self, x: ir.Value) -> ir.Value:
        """Append a quantizer."""
        few = FEW[self._rng.integers(len(FEW))]
        scale = few if self._repeats else float(np.float32(0.01 + next(self._numbers) * 1e-6))
        bits = BITS[self._rng.integers(len(BITS))]
        inputs = [x, *map(self.constant, (scale, 0.0, bits))]
        narrow = int(self._rng.integers(2))
        return self.node("Quant", inputs, signed=1, narrow=narrow, rounding_mode="ROUND")

    def standard(self, x: ir.Value) -> ir.Value:
        """Append an elementwise standard operator."""
        return self.node(self._standard[self._rng.integers(len(self._standard))], [x])

    def model(self, x: ir.Value, outputs: list[ir.Value]) -> ir.Model:
        """Return the model of what was appended."""
        graph = ir.Graph(
            [x],
            outputs,
            nodes=self.nodes,
            initializers=list(self._constants.values()),
            opset_imports={"": 21, QONNX_DOMAIN: 2},
            name="graph",
        )
        return ir.Model(graph, ir_version=10, producer_name="bench_graphs")


def chain(maker: Maker, nodes: int) -> ir.Model:
    """Return quantizers and standard operators in turn."""
    x = last = maker.value("x")
    for i in range(nodes):
        last = maker.standard(last) if i % 2 else maker.quant(last)
    return maker.model(x, [last])


def residual(maker: Maker, nodes: int) -> ir.Model:
    """Return blocks of four nodes: ``y = x + quant(standard(quant(x)))``."""
    x = last = maker.value("x")
    for _ in range(nodes // 4):
        last = maker.node("Add", [last, maker.quant(maker.standard(maker.quant(last)))])
    return maker.model(x, [last])


def wide(maker: Maker, nodes: int) -> ir.Model:
    """Return branches of 100 nodes side by side from one input, each with an output."""
    x = maker.value("x")
    outputs = []
    for _ in range(nodes // BRANCHES):
        last = x
        for i in range(BRANCHES):
            last = maker.standard(last) if i % 2 else maker.quant(last)
        outputs.append(last)
    return maker.model(x, outputs)


FORMS: dict[str, Callable[[Maker, int], ir.Model]] = {
    "chain": chain,
    "residual": residual,
    "wide": wide,
}


def move_scales(model: ir.Model) -> None:
    """Replace each scale by the next larger float."""
    for scale in {node.inputs[1] for node in model.graph if node.op_type == "Quant"}:
        if scale is not None and scale.const_value is not None:
            larger = np.nextafter(scale.const_value.numpy(), np.float32(np.inf))
            scale.const_value = ir.tensor(larger, name=scale.name)


@dataclass(frozen=True)
class Used:
    """What a process used: processor seconds and MB of memory at most."""

    seconds: float
    status: int
    memory: float


def run(command: list[str]) -> Used:
    """Run a process to its end."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = usage.ru_utime + usage.ru_stime
    return Used(seconds, process.returncode, usage.ru_maxrss / 1024)


def rows(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    """Yield a line for each job on each model."""
    qgraph = [sys.executable, "-m", "qgraph"]
    for nodes in options.nodes:
        for form in options.forms:
            for scales in options.scales:
                named = f"{form:9} {scales:4} {nodes:7}"
                paths = {
                    name: str(folder / f"{name}.onnx")
                    for name in ("model", "converted", "kept", "moved", "out")
                }
                is_few = scales == "few"
                ir.save(FORMS[form](Maker(repeats=is_few), nodes), paths["model"])
                near = FORMS[form](Maker(repeats=is_few, standard=KEEPING), nodes)
                ir.save(near, paths["kept"])
                move_scales(near)
                ir.save(near, paths["moved"])
                converting = [each.format(**paths) for each in JOBS["convert"]]
                converting[converting.index("-o") + 1] = paths["converted"]
                run([*qgraph, *converting])
                counts, floors = {}, {}
                words = [word for job in options.jobs for word in JOBS[job]]
                for name in ("model", "converted", "kept", "moved"):
                    if f"{{{name}}}" not in words:
                        continue
                    counts[name] = len(ir.load(paths[name]).graph)
                    copied = [sys.executable, "-c", REFERENCE, paths[name], paths["out"]]
                    floors[name] = min(run(copied).seconds for _ in range(options.repeat))
                    each = floors[name] / counts[name] * 1000
                    yield f"{named} {'onnx_ir':9} {each:8.3f} {'':25} {counts[name]} nodes"
                for job in options.jobs:
                    read = [name for name in counts if f"{{{name}}}" in JOBS[job]]
                    words = [each.format(**paths) for each in JOBS[job]]
                    used = min(
                        (run([*qgraph, *words]) for _ in range(options.repeat)),
                        key=lambda each: each.seconds,
                    )
                    each = used.seconds / sum(counts[name] for name in read) * 1000
                    ratio = used.seconds / sum(floors[name] for name in read)
                    figures = f"{each:8.3f} {ratio:7.1f} {used.memory:8.0f} {used.status:6}"
                    yield f"{named} {job:9} {figures}"


def main() -> None:
    """Print milliseconds of processor time a node, and the ratio to load and save of onnx_ir."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--scales", nargs="+", choices=("few", "all"), default=["few", "all"])
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS)[:7])
    parser.add_argument("--repeat", type=int, default=1, help="runs of each job; the least counts")
    options = parser.parse_args()
    for package in (qgraph, qgraph.cli, qgraph.transforms):
        # As installing does; a checkout may be one that Python writes no bytecode into.
        compileall.compile_dir(package.__path__[0], quiet=1)
    print(
        f"{'form':9} {'scal':4} {'nodes':>7} {'job':9} {'ms/node':>8} {'ratio':>7} {'MB':>8} status"
    )
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(options, Path(folder)):
            print(row, flush=True)


if __name__ == "__main__":
    main()
