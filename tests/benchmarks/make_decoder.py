"""Write decoder-like models of any size, with external data, in little memory.

    python tests/benchmarks/make_decoder.py out.onnx --gigabytes 4 --quantizer quant4
    python tests/benchmarks/make_decoder.py out.onnx --gigabytes 20 --shard 4 --sparse

A layer has four MatMuls of 4096 x 4096 and three of 4096 x 11008, as in a decoder of 7 billion
parameters. Weights are normal numbers; a block of them is drawn once and written many times. In a
sparse model only the first rows of each weight take room on the disk; the others are zeros.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

WIDTH, INNER = 4096, 11008
KINDS = (
    *("float", "quant4", "quant4block", "mxfp4", "fp4block", "nvfp4", "fakequantize"),
    *("bipolar", "pair4", "pair8", "coded4block"),
)
QONNX, OPENVINO = "qonnx.custom_op.general", "org.openvinotoolkit"
BLOCK = {"quant4block": 32, "mxfp4": 32, "fp4block": 32, "nvfp4": 16, "coded4block": 32}
_ROWS = 64


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


class Store:
    """Data files of a model, and the initializers in them.

    Args:
        path: of the model.
        shard: bytes after which the next file begins; one file if None.
        sparse: write the first rows of large arrays only.
    """

    def __init__(self, path: Path, shard: float | None, *, sparse: bool) -> None:
        self._path, self._shard, self._sparse = path, shard, sparse
        self._random = np.random.default_rng(0)
        self._count = 0
        self.values: list[ir.Value] = []
        self._open()

    def _open(self) -> None:
        number = "" if self._shard is None else f"-{self._count:05d}"
        self._file = self._path.with_name(f"{self._path.name}{number}.data").open("wb")
        self._count += 1

    def close(self) -> None:
        """Close the last file."""
        self._file.close()

    def rows(self, name: str, shape: tuple[int, ...], rows: np.ndarray) -> ir.Value:
        """Store an array of this shape that repeats some rows; return its value."""
        if self._shard is not None and self._file.tell() > self._shard:
            self._file.close()
            self._open()
        kind = ir.DataType.from_numpy(rows.dtype)
        at, left, size = self._file.tell(), shape[0], rows[0].nbytes
        while left:
            count = min(len(rows), left)
            self._file.write(rows[:count])
            left -= count
            if self._sparse:
                self._file.seek(left * size, 1)
                break
        self._file.truncate()
        length = self._file.tell() - at
        place = (Path(self._file.name).name, at, length, kind)
        folder = self._path.parent.resolve()
        tensor = ir.ExternalTensor(*place, shape=ir.Shape(shape), name=name, base_dir=folder)
        return self._value(name, tensor)

    def small(self, name: str, array: np.ndarray) -> ir.Value:
        """Store an array in the model file; return its value."""
        return self._value(name, ir.tensor(array, name=name))

    def normal(self, name: str, rows: int, columns: int) -> ir.Value:
        """Store a matrix of normal numbers."""
        block = self._random.standard_normal((min(_ROWS, rows), columns), dtype=np.float32)
        return self.rows(name, (rows, columns), block * np.float32(0.02))

    def steps(self, name: str, shape: tuple[int, ...]) -> ir.Value:
        """Store random scales from 0.005 to 0.015."""
        return self.rows(name, shape, self._steps(shape))

    def _steps(self, shape: tuple[int, ...]) -> np.ndarray:
        scales = self._random.random(shape, dtype=np.float32) + np.float32(0.5)
        return scales * np.float32(0.01)

    def powers(self, name: str, shape: tuple[int, ...]) -> ir.Value:
        """Store random powers of two as scales."""
        powers = np.exp2(np.rint(np.log2(self._steps(shape)))).astype(np.float32)
        return self.rows(name, shape, powers)

    def eighths(self, name: str, shape: tuple[int, ...]) -> ir.Value:
        """Store random E4M3 numbers in float32 units as scales."""
        import ml_dtypes

        counted = (self._steps(shape) * 20000).astype(ml_dtypes.float8_e4m3fn)
        return self.rows(name, shape, counted.astype(np.float32) * np.float32(5e-5))

    def nibbles(self, name: str, rows: int, columns: int) -> ir.Value:
        """Store a matrix of random INT4 codes."""
        block = self._random.integers(0, 256, (min(_ROWS, rows), columns // 2), np.uint8)
        value = self.rows(name, (rows, columns // 2), block)
        old = value.const_value
        assert isinstance(old, ir.ExternalTensor)
        place = (old.location, old.offset, old.length, ir.DataType.INT4)
        shape = ir.Shape([rows, columns])
        value.const_value = ir.ExternalTensor(*place, shape=shape, name=name, base_dir=old.base_dir)
        value.shape, value.type = shape, ir.TensorType(ir.DataType.INT4)
        return value

    def _value(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        value = ir.Value(name=name, shape=tensor.shape, const_value=tensor)
        value.type = ir.TensorType(tensor.dtype)
        self.values.append(value)
        return value


class Layers:
    """Nodes of a model whose weights are quantized in one of :data:`KINDS`."""

    def __init__(self, store: Store, kind: str) -> None:
        self._store, self._kind = store, kind
        self.nodes: list[ir.Node] = []
        numbers = NUMBERS.get(kind, {})
        self._numbers = [store.small(name, np.float32(n)) for name, n in numbers.items()]

    def node(
        self,
        op_type: str,
        operands: list[ir.Value],
        name: str,
        attributes: dict[str, Any] | None = None,
        domain: str = "",
    ) -> ir.Value:
        """Append a node; return its output."""
        made = ir.node(op_type, operands, attributes or {}, domain=domain, name=name)
        made.outputs[0].name = f"{name}_y"
        self.nodes.append(made)
        return made.outputs[0]

    def product(self, x: ir.Value, name: str, rows: int, columns: int) -> ir.Value:
        """Append a MatMul with a quantized weight."""
        if self._kind == "pair8":
            step = self._store.small(f"{name}_step", np.float32(0.05))
            zero = self._store.small(f"{name}_zero", np.uint8(128))
            codes = self.node("QuantizeLinear", [x, step, zero], f"{name}_x_codes")
            x = self.node("DequantizeLinear", [codes, step, zero], f"{name}_x_q")
        weight = self._weight(name, rows, columns)
        return self.node("MatMul", [x, weight], f"{name}_matmul")

    def _weight(self, name: str, rows: int, columns: int) -> ir.Value:
        kind, store, numbers = self._kind, self._store, self._numbers
        if kind == "coded4block":
            codes = store.nibbles(f"{name}_codes", rows, columns)
            scale = store.steps(f"{name}_scale", (rows // BLOCK[kind], columns))
            along = {"axis": 0, "block_size": BLOCK[kind]}
            return self.node("DequantizeLinear", [codes, scale], f"{name}_q", along)
        w = store.normal(name, rows, columns)
        if kind == "float":
            return w
        if kind in ("quant4", "bipolar"):
            scale = store.steps(f"{name}_scale", (1, columns))
            operator = "Quant" if kind == "quant4" else "BipolarQuant"
            signs = {"signed": 1, "narrow": 0} if kind == "quant4" else {}
            return self.node(operator, [w, scale, *numbers], f"{name}_q", signs, QONNX)
        if kind in ("pair4", "pair8"):
            scale = store.steps(f"{name}_scale", (columns,))
            code = ir.DataType.INT4 if kind == "pair4" else ir.DataType.INT8
            made = {"axis": 1, "output_dtype": code.value}
            codes = self.node("QuantizeLinear", [w, scale], f"{name}_codes", made)
            return self.node("DequantizeLinear", [codes, scale], f"{name}_q", {"axis": 1})
        if kind == "fakequantize":
            scale = (np.random.default_rng(len(name)).random((1, columns)) + 0.5) * 0.01
            low = store.small(f"{name}_low", (-8 * scale).astype(np.float32))
            high = store.small(f"{name}_high", (7 * scale).astype(np.float32))
            operands = [w, low, high, low, high]
            return self.node("FakeQuantize", operands, f"{name}_q", {"levels": 16}, OPENVINO)
        return self._blocks(w, name, rows, columns)

    def _blocks(self, w: ir.Value, name: str, rows: int, columns: int) -> ir.Value:
        """Quantize a weight in blocks along its columns, which are an axis of their own."""
        kind, store, size = self._kind, self._store, BLOCK[self._kind]
        scales = {"mxfp4": store.powers, "nvfp4": store.eighths}.get(kind, store.steps)
        scale = scales(f"{name}_scale", (rows, columns // size, 1))
        seen = store.small(f"{name}_seen", np.array([rows, columns // size, size], np.int64))
        back = store.small(f"{name}_back", np.array([rows, columns], np.int64))
        operands = [self.node("Reshape", [w, seen], f"{name}_split"), scale, *self._numbers]
        if kind == "quant4block":
            y = self.node("Quant", operands, f"{name}_q", {"signed": 1, "narrow": 0}, QONNX)
        else:
            y = self.node("FloatQuant", operands, f"{name}_q", {"has_nan": 1}, QONNX)
        return self.node("Reshape", [y, back], f"{name}_merged")


def make(
    path: Path,
    gigabytes: float,
    kind: str,
    width: int = WIDTH,
    inner: int = INNER,
    *,
    shard: float | None = None,
    sparse: bool = False,
) -> int:
    """Write a model and its data files; return the bytes of its weights.

    Args:
        path: of the model.
        gigabytes: of float32 weights, or of codes if the weights are stored as such.
        kind: one of :data:`KINDS`.
        width: of the matrices.
        inner: their other width.
        shard: bytes after which the next data file begins; None for one file.
        sparse: let most rows of each weight be zeros that take no room.
    """
    if kind not in KINDS:
        raise SystemExit(f"{kind!r} is no quantizer here; expected one of {', '.join(KINDS)}.")
    each = 0.5 if kind.startswith("coded4") else 4
    store = Store(path, shard, sparse=sparse)
    layers = Layers(store, kind)
    x = ir.Value(name="x", shape=ir.Shape(["n", width]), type=ir.TensorType(ir.DataType.FLOAT))
    outputs: dict[int, ir.Value] = {}
    total = 0.0
    for place, (rows, columns) in enumerate(shapes(gigabytes * 4 / each, width, inner)):
        name = f"layer{place // 7}_w{place % 7}"
        source = outputs.get(rows, x) if rows != width else x
        last = outputs[columns] = layers.product(source, name, rows, columns)
        total += each * rows * columns
    store.close()
    last.type, last.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["n", columns])
    graph = ir.Graph(
        [x],
        [last],
        nodes=layers.nodes,
        initializers=store.values,
        opset_imports={"": 23, **{node.domain: 1 for node in layers.nodes if node.domain}},
        name="g",
    )
    path.write_bytes(ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString())
    return int(total)


NUMBERS = {
    "quant4": {"zero": 0, "bits": 4},
    "quant4block": {"zero": 0, "bits": 4},
    "mxfp4": {"e": 2, "m": 1, "bias": 1, "top": 6},
    "fp4block": {"e": 2, "m": 1, "bias": 1, "top": 6},
    "nvfp4": {"e": 2, "m": 1, "bias": 1, "top": 6},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--quantizer", choices=KINDS, default="quant4")
    parser.add_argument("--width", type=int, default=WIDTH, help="of the narrower matrices")
    parser.add_argument("--shard", type=float, help="gigabytes of a data file [one file]")
    parser.add_argument("--sparse", action="store_true", help="most rows take no room")
    given = parser.parse_args()
    shard = None if given.shard is None else given.shard * 1e9
    widths = given.width, given.width * INNER // WIDTH
    parts = {"shard": shard, "sparse": given.sparse}
    size = make(given.out, given.gigabytes, given.quantizer, *widths, **parts)
    print(f"{size} bytes of weights")


if __name__ == "__main__":
    main()
