"""Write decoder-like models of any size, with external data, in little memory.

    python tests/benchmarks/make_decoder.py out.onnx --gigabytes 4 --quantizer quant4

A layer has four MatMuls of 4096 x 4096 and three of 4096 x 11008, as in a decoder of 7 billion
parameters. Weights are normal numbers; a block of them is drawn once and written many times.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir

WIDTH, INNER = 4096, 11008
KINDS = ("float", "quant4", "quant4block", "mxfp4", "nvfp4")
DOMAIN = "qonnx.custom_op.general"
BLOCK = {"quant4block": 32, "mxfp4": 32, "nvfp4": 16}


def shapes(gigabytes: float, width: int = WIDTH, inner: int = INNER) -> Iterator[tuple[int, int]]:
    """Yield the shapes of weights until they have so many bytes of float32."""
    left = gigabytes * 1e9
    layer = [(width, width)] * 4 + [(width, inner), (width, inner), (inner, width)]
    while True:
        for shape in layer:
            if left < shape[0] * shape[1] * 2:
                return
            left -= shape[0] * shape[1] * 4
            yield shape


def make(path: Path, gigabytes: float, kind: str, width: int = WIDTH, inner: int = INNER) -> int:
    """Write a model and its data file; return the bytes of its float weights."""
    if kind not in KINDS:
        raise SystemExit(f"{kind!r} is no quantizer here; expected one of {', '.join(KINDS)}.")
    data = path.with_name(path.name + ".data")
    values: list[ir.Value] = []
    nodes: list[ir.Node] = []
    random = np.random.default_rng(0)
    total = 0
    with data.open("wb") as file:

        def external(name: str, shape: tuple[int, ...]) -> ir.Value:
            size = 4 * int(np.prod(shape))
            tensor = ir.ExternalTensor(
                data.name,
                file.tell() - size,
                size,
                ir.DataType.FLOAT,
                shape=ir.Shape(shape),
                name=name,
                base_dir=path.parent.resolve(),
            )
            value = ir.Value(
                name=name,
                shape=ir.Shape(shape),
                type=ir.TensorType(ir.DataType.FLOAT),
                const_value=tensor,
            )
            values.append(value)
            return value

        def scalar(name: str, number: float) -> ir.Value:
            tensor = ir.tensor(np.float32(number), name=name)
            value = ir.Value(name=name, shape=ir.Shape([]), const_value=tensor)
            value.type = ir.TensorType(ir.DataType.FLOAT)
            values.append(value)
            return value

        x = ir.Value(name="x", shape=ir.Shape(["n", width]), type=ir.TensorType(ir.DataType.FLOAT))
        numbers = {name: scalar(name, n) for name, n in NUMBERS.get(kind, {}).items()}
        outputs: dict[int, ir.Value] = {}
        for place, (rows, columns) in enumerate(shapes(gigabytes, width, inner)):
            name = f"layer{place // 7}_w{place % 7}"
            _write(file, random, rows, columns)
            weight = external(name, (rows, columns))
            total += 4 * rows * columns
            if kind != "float":
                _write_scales(file, random, kind, rows, columns)
                weight = _quantized(name, weight, external, numbers, kind, rows, columns, nodes)
            source = outputs.get(rows, x) if rows != width else x
            nodes.append(ir.node("MatMul", [source, weight], name=f"{name}_matmul"))
            nodes[-1].outputs[0].name = f"{name}_y"
            outputs[columns] = nodes[-1].outputs[0]
    last = nodes[-1].outputs[0]
    last.type, last.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["n", columns])
    imports = {"": 21} | ({} if kind == "float" else {DOMAIN: 1})
    graph = ir.Graph([x], [last], nodes=nodes, initializers=values, opset_imports=imports, name="g")
    path.write_bytes(ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString())
    return total


NUMBERS = {
    "quant4": {"zero": 0, "bits": 4},
    "quant4block": {"zero": 0, "bits": 4},
    "mxfp4": {"e": 2, "m": 1, "bias": 1, "top": 6},
    "nvfp4": {"e": 2, "m": 1, "bias": 1, "top": 6},
}


def _write(file, random: np.random.Generator, rows: int, columns: int) -> None:
    block = random.standard_normal((min(64, rows), columns), dtype=np.float32) * np.float32(0.02)
    for start in range(0, rows, len(block)):
        file.write(block[: rows - start])


def _write_scales(file, random: np.random.Generator, kind: str, rows: int, columns: int) -> None:
    count = columns if kind == "quant4" else rows * columns // BLOCK[kind]
    scales = (random.random(count, dtype=np.float32) + np.float32(0.5)) * np.float32(0.01)
    if kind == "mxfp4":
        scales = np.exp2(np.rint(np.log2(scales))).astype(np.float32)
    elif kind == "nvfp4":
        import ml_dtypes

        scales = (scales * 20000).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        scales *= np.float32(5e-5)
    file.write(scales)


def _quantized(name, weight, external, numbers, kind, rows, columns, nodes) -> ir.Value:
    """Append the quantizer of a weight; blocks lie along the columns, an axis of their own."""
    if kind == "quant4":
        operands = [weight, external(f"{name}_scale", (1, columns)), *numbers.values()]
        nodes.append(ir.node("Quant", operands, {"signed": 1, "narrow": 0}, domain=DOMAIN))
        nodes[-1].name = f"{name}_quant"
        nodes[-1].outputs[0].name = f"{name}_q"
        return nodes[-1].outputs[0]
    size = BLOCK[kind]
    scale = external(f"{name}_scale", (rows, columns // size, 1))
    seen = ir.node(
        "Constant", [], {"value": ir.tensor(np.array([rows, columns // size, size], np.int64))}
    )
    seen.outputs[0].name = f"{name}_seen"
    back = ir.node("Constant", [], {"value": ir.tensor(np.array([rows, columns], np.int64))})
    back.outputs[0].name = f"{name}_back"
    split = ir.node("Reshape", [weight, seen.outputs[0]])
    split.outputs[0].name = f"{name}_split"
    operands = [split.outputs[0], scale, *numbers.values()]
    if kind == "quant4block":
        quantizer = ir.node("Quant", operands, {"signed": 1, "narrow": 0}, domain=DOMAIN)
    else:
        quantizer = ir.node("FloatQuant", operands, {"has_nan": 1}, domain=DOMAIN)
    quantizer.name = f"{name}_quant"
    quantizer.outputs[0].name = f"{name}_blocks"
    merged = ir.node("Reshape", [quantizer.outputs[0], back.outputs[0]])
    merged.outputs[0].name = f"{name}_q"
    nodes += [seen, back, split, quantizer, merged]
    return merged.outputs[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--quantizer", choices=KINDS, default="quant4")
    given = parser.parse_args()
    print(f"{make(given.out, given.gigabytes, given.quantizer)} bytes of float32")


if __name__ == "__main__":
    main()
