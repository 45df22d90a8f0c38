"""Files that a model was read from: its identity and hash, and data files of a replaced model.

A data file of a replaced model is removed only if

- the model file that was replaced names it,
- the model file also records its SHA-256, as qgraph does when it writes both, and the file still
  has it,
- this run reads it for no other model than the replaced one, and
- no other model file in the folder mentions its name.

Every other data file stays, with a note in the log.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from qgraph.graph.deferred import DeferredTensor
from qgraph.graph.streaming import FileRange, stream_of
from qgraph.graph.tensors import slots, stored_bytes
from qgraph.records import dataclass, field
from qgraph.storage.outputs import HOLDS_OLD_WEIGHTS, Outputs
from qgraph.storage.reading import mentions, message, parsed, recorded, written_ir_version


@dataclass(frozen=True)
class Origin:
    """A model file as it was when it was read.

    Attributes:
        place: the absolute path of the file.
        data: the data files in the order in which the model mentions them, each with its inode,
            size and time of change.
        content: SHA-256 of the model file, to be continued with the data files.
    """

    place: Path
    data: tuple[tuple[Path, tuple[int, int, int]], ...]
    content: Any = field(repr=False, compare=False)

    @classmethod
    def of(cls, path: Path, content: bytes, model: ir.Model) -> Origin:
        """Return the origin of a model that was read from ``content``, the bytes of ``path``."""
        tensors = (slot.tensor for slot in slots(model))
        external = (t for t in tensors if isinstance(t, ir.ExternalTensor) and t.size)
        files = dict.fromkeys(Path(os.path.abspath(t.path)) for t in external)
        data = tuple((file, _state(file)) for file in files)
        return cls(Path(os.path.abspath(path)), data, hashlib.sha256(content))

    def sha256(self) -> str | None:
        """Return the hash of the model file and its data files; None if the data have changed.

        The model file is not read again.
        """
        digest = self.content.copy()
        try:
            for file, _ in self.data:
                with file.open("rb") as stream:
                    hashlib.file_digest(stream, lambda: digest)
        except OSError:
            return None
        return str(digest.hexdigest()) if self.has_same_data() else None

    def has_same_data(self) -> bool:
        """Return whether the data files are as they were."""
        try:
            return all(_state(file) == state for file, state in self.data)
        except OSError:
            return False


def _state(file: Path) -> tuple[int, int, int]:
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def is_same_model(model: ir.Model, other: ir.Model) -> bool:
    """Return whether two models are equal, weights included.

    Weights that both read from one place of a data file are not compared.
    """
    ours, theirs = ([slot.tensor for slot in slots(each)] for each in (model, other))
    if len(ours) != len(theirs) or not all(map(_is_same, ours, theirs)):
        return False
    return _frame(model, set(map(id, ours))) == _frame(other, set(map(id, theirs)))


def hash_in_memory(model: ir.Model) -> str:
    """Return the hash of a model as it is serialised.

    It is the SHA-256 of ``Model.to_proto()``, and of the file that the model is saved as, if all
    weights lie in the model. Weights that lie in data files, or are computed when the model is
    saved, are left out of the message; type, shape and bytes of each follow it. The same goes for
    all weights of a model that is too large for one message.
    """
    tensors = {id(slot.tensor): slot.tensor for slot in slots(model)}
    outside: dict[int, ir.TensorProtocol] = {
        key: tensor
        for key, tensor in tensors.items()
        if isinstance(tensor, ir.ExternalTensor | DeferredTensor)
    }
    if not outside and sum(map(stored_bytes, tensors.values())) >= onnx.checker.MAXIMUM_PROTOBUF:
        outside = tensors
    if not outside:
        return hashlib.sha256(message(model, {}).SerializeToString()).hexdigest()
    digest = hashlib.sha256(_frame(model, outside))
    for tensor in outside.values():
        digest.update(f"{tensor.dtype.name}{list(tensor.shape.numpy())}".encode())
        _add_bytes(digest, tensor)
    return digest.hexdigest()


def _add_bytes(digest: hashlib._Hash, tensor: ir.TensorProtocol) -> None:
    place = stream_of(tensor).stored if isinstance(tensor, ir.ExternalTensor) else None
    if not isinstance(place, FileRange):
        digest.update(_bytes(tensor))
        return
    for _, part in place.pieces():
        digest.update(part.data)


def _frame(model: ir.Model, left_out: Container[int]) -> bytes:
    """Return a model without the tensors of some ids, serialised."""
    image = model.clone()
    for slot in slots(image):
        if id(slot.tensor) in left_out:
            slot.fill(ir.Tensor(np.zeros(0, np.uint8), name=slot.tensor.name))
    image.ir_version = written_ir_version(model)
    return bytes(ir.to_proto(image).SerializeToString())


def _is_same(first: ir.TensorProtocol, second: ir.TensorProtocol) -> bool:
    if (first.dtype, first.shape, first.name) != (second.dtype, second.shape, second.name):
        return False
    if isinstance(first, ir.ExternalTensor) and isinstance(second, ir.ExternalTensor):
        starts = {(os.path.abspath(t.path), t.offset or 0) for t in (first, second)}
        if len(starts) == 1:
            return True
    return _bytes(first) == _bytes(second)


def _bytes(tensor: ir.TensorProtocol) -> bytes:
    """Return the elements as a file stores them; of strings, the message."""
    if tensor.dtype is ir.DataType.STRING:
        return bytes(ir.to_proto(tensor).SerializeToString())
    return bytes(tensor.tobytes())


_CHUNK_BYTES = 1 << 20
_DATA_ENDINGS = (".data", ".safetensors")

logger = logging.getLogger(__name__)


class Retirement:
    """The data files of the model that an output replaces.

    Args:
        target: the output, which still holds the old model.
        outputs: of this run; they know which files the run reads. None of them may take the place
            of a data file of the old model.

    Attributes:
        candidates: SHA-256 by path of those that qgraph wrote, as the old model says.
    """

    def __init__(self, target: Path, outputs: Outputs) -> None:
        self._target = target
        self._outputs = outputs
        names, known = _old_data(target)
        folder = target.parent
        self.candidates = {folder / n: known[n] for n in names if n in known and _is_plain(n)}
        # Until the new model is at its place, the old one needs them.
        data = [folder / n for n in names if "\0" not in n]
        outputs.protect(data, HOLDS_OLD_WEIGHTS, stays=False)
        self._others = sorted(folder / n for n in names if folder / n not in self.candidates)

    def carry_out(self, model: ir.Model, fresh: Mapping[int, ir.TensorProtocol]) -> None:
        """Remove what may be removed, after tensors of the saved model have released the files.

        ``fresh`` has, by ``id`` of a tensor, the one that reads the new file or memory.
        """
        try:
            self._remove(model, fresh)
        except (OSError, ValueError) as error:
            # The output is there; nothing that comes after may turn it into a failure. Names that
            # no file can have are a ValueError.
            logger.warning("%s: old data files may be left (%s)", self._target, error)

    def _remove(self, model: ir.Model, fresh: Mapping[int, ir.TensorProtocol]) -> None:
        for path in self._others:
            if path.is_file():
                _note(path, "qgraph did not write it")
        removable = []
        for path, digest in self.candidates.items():
            reason = self._reason_to_stay(path, digest)
            if reason is None:
                removable.append(path)
            elif reason:
                _note(path, reason)
        if removable:
            _let_go(model, fresh, removable)
        for path in removable:
            try:
                path.unlink()
            except OSError as error:
                _note(path, f"it cannot be removed ({error})")

    def _reason_to_stay(self, path: Path, digest: str) -> str | None:
        """Return why a file stays; None if it may be removed, empty if it does not exist."""
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                return "it is not a regular file"
            if self._outputs.protects(path):
                return "another model that this run reads needs it"
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    return "it was changed after qgraph wrote it"
            for other in self._other_models():
                if _holds(other, path.name):
                    return f"{other.name} mentions it"
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"it is unknown whether it is needed ({error})"
        return None

    def _other_models(self) -> Iterator[Path]:
        """Yield all files of the folder that look like models, the output itself excepted."""
        for path in sorted(self._target.parent.iterdir()):
            name = path.name.lower()
            if ".onnx" not in name or name.endswith(_DATA_ENDINGS) or path.is_dir():
                continue
            with suppress(FileNotFoundError):  # a link that leads nowhere
                if path.is_file() and not path.samefile(self._target):
                    yield path


def _old_data(target: Path) -> tuple[set[str], dict[str, str]]:
    """Return the data files that a model names, and the SHA-256 of those that it records."""
    names = {os.path.normpath(name) for name in mentions(target) if name}
    return names, recorded(parsed(target)) if names else {}


def _is_plain(name: str) -> bool:
    return (
        os.path.basename(name) == name and name not in (os.curdir, os.pardir) and "\0" not in name
    )


def _holds(path: Path, name: str) -> bool:
    """Return whether a file holds a name anywhere, in upper or lower case."""
    wanted, before = os.fsencode(name).lower(), b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            before += chunk
            if wanted in before.lower():
                return True
            before = before[-len(wanted) :]
    return False


def _let_go(model: ir.Model, fresh: Mapping[int, ir.TensorProtocol], removable: list[Path]) -> None:
    """Bind tensors of ``model`` that read from these files to new files."""
    for slot in list(slots(model)):
        tensor = slot.tensor
        late = isinstance(tensor, ir.LazyTensor | DeferredTensor)
        reads = late or (isinstance(tensor, ir.ExternalTensor) and _reads(tensor, removable))
        if reads and id(tensor) in fresh:
            slot.fill(fresh[id(tensor)])


def _reads(tensor: ir.ExternalTensor, files: list[Path]) -> bool:
    """Return whether a tensor reads from one of these files; True if this is not known."""
    try:
        return any(os.path.samefile(tensor.path, file) for file in files)
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _note(path: Path, reason: str) -> None:
    logger.warning("%s: this data file of the replaced model stays, because %s", path, reason)
