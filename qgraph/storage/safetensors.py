"""The head of a safetensors file, whose data an ONNX model can read as external data.

Eight bytes with the length of a JSON object, the object, then all tensors densely packed:
https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import onnx_ir as ir

from qgraph.errors import ModelError
from qgraph.graph.tensors import stored_bytes

_TYPES = {
    ir.DataType.BOOL: "BOOL",
    ir.DataType.INT8: "I8",
    ir.DataType.UINT8: "U8",
    ir.DataType.INT16: "I16",
    ir.DataType.UINT16: "U16",
    ir.DataType.INT32: "I32",
    ir.DataType.UINT32: "U32",
    ir.DataType.INT64: "I64",
    ir.DataType.UINT64: "U64",
    ir.DataType.FLOAT16: "F16",
    ir.DataType.BFLOAT16: "BF16",
    ir.DataType.FLOAT: "F32",
    ir.DataType.DOUBLE: "F64",
    ir.DataType.FLOAT8E4M3FN: "F8_E4M3",
    ir.DataType.FLOAT8E5M2: "F8_E5M2",
    ir.DataType.FLOAT8E8M0: "F8_E8M0",
}

_ALIGNMENT = 8


def head(tensors: Iterable[ir.TensorProtocol]) -> bytes:
    """Return what precedes the data of ``tensors``, which follow each other without gaps.

    Types that the format lacks, and those of less than 8 bits, are bytes there; what they are is
    told in its metadata, as ``INT4[4096,4096]``.
    """
    entries: dict[str, object] = {}
    remarks = {"format": "onnx"}
    offset = 0
    for tensor in tensors:
        name = _fresh(tensor.name or "tensor", entries)
        size = stored_bytes(tensor)
        shape = [int(n) for n in tensor.shape.numpy()]
        kind = _TYPES.get(tensor.dtype)
        if kind is None:
            remarks[name] = f"{tensor.dtype.name}[{','.join(map(str, shape))}]"
            kind, shape = "U8", [size]
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps({"__metadata__": remarks, **entries}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def expect_head(path: Path) -> None:
    """Read the head of a file, and compare its offsets with the size of the file.

    Raises:
        ModelError: the tensors do not fill the file from the end of the head on.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(length))
        size = os.fstat(file.fileno()).st_size - 8 - length
    places = [entry["data_offsets"] for name, entry in entries.items() if name != "__metadata__"]
    starts, ends = zip(*places, strict=True)
    if (0, *ends) != (*starts, size):
        raise ModelError(
            f"{path}: a new safetensors file has {size} bytes of data, its head says "
            f"{ends[-1]}, without gaps; nothing was replaced. Choose another place."
        )


def _fresh(name: str, taken: Iterable[str]) -> str:
    unique, number = name, 1
    while unique in taken or unique == "__metadata__":
        unique, number = f"{name}_{number}", number + 1
    return unique
