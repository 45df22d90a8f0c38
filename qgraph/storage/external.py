"""Whether the external data that a model points to are there, and safe to read.

The head of a safetensors file, whose data an ONNX model can read as external data.

Eight bytes with the length of a JSON object, the object, then all tensors densely packed:
https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import onnx_ir as ir

from qgraph.errors import ModelError
from qgraph.graph.tensors import shape_fault, stored_bytes

_MATERIALISE = "Put a plain copy of the file there (cp --dereference)"
_COMPLETE = "Fetch the data file that belongs to the model again"


def external_fault(tensor: ir.ExternalTensor) -> str | None:
    """Say what is wrong with the data of ``tensor``, and what to do; None if nothing is.

    Looks at the file's size, kind and place, never at its content. onnx_ir refuses links that
    could be a way out of the folder when a tensor is first read; here the refusal comes early
    and says what to do.
    """
    location = os.fspath(tensor.location)
    fault = shape_fault(tensor)
    if fault is None and tensor.dtype is ir.DataType.STRING:
        fault = "it holds strings, which cannot be external data"
    if fault:
        return f"{fault}. Export the model again"
    needed = stored_bytes(tensor)
    if needed == 0:
        return None
    there = f"its data are said to lie in {location!r}"
    file_fault, size = _look(location, Path(os.path.abspath(tensor.base_dir)))
    if file_fault:
        return f"{there}, {file_fault}"
    start = tensor.offset or 0
    if tensor.length is not None and tensor.length != needed:
        return (
            f"{there} and take {tensor.length} bytes, but {tensor.dtype.name}"
            f"{list(tensor.shape.numpy())} takes {needed}. Export the model again"
        )
    if start < 0 or start + needed > size:
        return f"{there}, bytes {start} to {start + needed}, but the file has {size}. {_COMPLETE}"
    return None


def _look(location: str, folder: Path) -> tuple[str, int]:
    """Return what is wrong with the file (nothing: empty), and its size in bytes."""
    if not location or os.path.isabs(location):
        return "expected a path relative to the model's folder. Export the model again", 0
    path = Path(os.path.normpath(folder / location))
    if not path.is_relative_to(folder):
        return "outside the model's folder. Put it beside the model and export again", 0
    try:
        real = path.resolve()
        if not real.is_relative_to(folder.resolve()):
            return f"a link that leaves the model's folder, to {str(real)!r}. {_MATERIALISE}", 0
        status = real.stat()
    except FileNotFoundError:
        return f"but there is no such file. {_COMPLETE}", 0
    except (OSError, ValueError, RuntimeError) as error:
        return f"but it cannot be read ({error}). {_COMPLETE}", 0
    if not stat.S_ISREG(status.st_mode):
        return f"but that is not a regular file. {_COMPLETE}", 0
    if status.st_nlink > 1:
        return f"a file with {status.st_nlink} hard links, so maybe any file. {_MATERIALISE}", 0
    return "", status.st_size


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
