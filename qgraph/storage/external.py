"""Whether the external data that a model points to are there, and safe to read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import onnx_ir as ir

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
