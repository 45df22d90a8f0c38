"""Write a model of MatMulNBits of any size, with external data, in little memory.

    python tests/benchmarks/make_packed.py out.onnx --gigabytes 1

Products are of 4096 x 14336 and back, with random nibbles, and a scale for 32 of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx

BLOCK = 32


def make_packed(path: Path, gigabytes: float) -> None:
    """Write a model and its data file of so many bytes of nibbles, and a quarter more of scales."""
    random = np.random.default_rng(0)
    data = path.with_name(path.name + ".data")
    tensors, nodes, x = [], [], "x"
    with data.open("wb") as file:

        def external(name: str, array: np.ndarray) -> str:
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            tensor = onnx.TensorProto(name=name, data_type=kind, dims=array.shape)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            place = {"location": data.name, "offset": file.tell(), "length": array.nbytes}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            file.write(array.tobytes())
            tensors.append(tensor)
            return name

        while file.tell() < gigabytes * 1.25e9:
            i = len(nodes)
            k, n = (4096, 14336) if i % 2 == 0 else (14336, 4096)
            codes = random.integers(0, 256, (n, k // BLOCK, BLOCK // 2), np.uint8)
            scales = random.uniform(1e-3, 2e-2, (n, k // BLOCK)).astype(np.float32)
            inputs = [x, external(f"w{i}", codes), external(f"s{i}", scales)]
            sizes = {"K": k, "N": n, "bits": 4, "block_size": BLOCK}
            x = f"y{i}"
            nodes.append(
                onnx.helper.make_node(
                    "MatMulNBits", inputs, [x], f"m{i}", domain="com.microsoft", **sizes
                )
            )
    value = onnx.helper.make_tensor_value_info
    ends = [value("x", 1, ["N", 4096])], [value(x, 1, None)]
    graph = onnx.helper.make_graph(nodes, "packed", *ends, initializer=tensors)
    imports = [onnx.helper.make_opsetid(*pair) for pair in (("", 21), ("com.microsoft", 1))]
    onnx.save(onnx.helper.make_model(graph, opset_imports=imports, ir_version=10), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    given = parser.parse_args()
    make_packed(given.out, given.gigabytes)


if __name__ == "__main__":
    main()
