"""What a run holds at a time."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.execution.executor import Executor

SIDE = 512
TENSOR = SIDE * SIDE * 4
DOMAIN = "qonnx.custom_op.general"
PARAMETERS = "float s = {0.5}, float z = {0}, float b = {4}"


def chain(layers: int) -> str:
    """Return a body of alternating quantizers and activations, from x to y."""
    lines = []
    for i in range(layers):
        before = f"v{i - 1}" if i else "x"
        after = f"v{i}" if i < layers - 1 else "y"
        operator = f"{DOMAIN}.Quant <signed = 1, narrow = 0>" if i % 2 == 0 else "Neg"
        lines.append(f"{after} = {operator} ({before}{', s, z, b' if i % 2 == 0 else ''})")
    return "\n".join(lines)


def plain(layers: int) -> str:
    shape = f"float[{SIDE},{SIDE}]"
    return f"g ({shape} x) => ({shape} y) <{PARAMETERS}> {{ {chain(layers)} }}"


def branch(layers: int) -> str:
    inner = chain(layers).replace("y = ", "w = ")
    shape = f"float[{SIDE},{SIDE}]"
    return f"""g ({shape} x, bool c) => ({shape} y) <{PARAMETERS}> {{
        y = If (c) <then_branch = t () => ({shape} w) {{ {inner} }},
                    else_branch = e () => ({shape} o) {{ o = Neg (x) }}>
    }}"""


def function(layers: int) -> str:
    shape = f"float[{SIDE},{SIDE}]"
    return f"""g ({shape} x) => ({shape} y) <{PARAMETERS}> {{ y = local.f (x, s, z, b) }}
        <domain: "local", opset_import: ["": 18, "{DOMAIN}": 1]> f (x, s, z, b) => (y) {{
            {chain(layers)} }}"""


def peak(text: str) -> float:
    """Return the most that a run holds beyond its input, in tensors."""
    imports = f'["": 18, "{DOMAIN}": 1, "local": 1]'
    executor = Executor(ir.from_onnx_text(f"<ir_version: 10, opset_import: {imports}> {text}"))
    inputs = {"x": np.ones((SIDE, SIDE), np.float32)}
    if "bool c" in text:
        inputs["c"] = np.asarray(True)
    executor.run(inputs)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        executor.run(inputs)
        return (tracemalloc.get_traced_memory()[1] - before) / TENSOR
    finally:
        tracemalloc.stop()


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("shape", [plain, branch, function])
def test_the_peak_of_a_chain_does_not_grow_with_its_length(shape: object) -> None:
    """Input and output of a layer, and a temporary or two; 100 layers would be 100 tensors."""
    assert callable(shape)
    short, long = peak(shape(5)), peak(shape(100))
    assert long < short + 0.5
    assert long < 4.5
