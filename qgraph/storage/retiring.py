"""Remove data files of a replaced model.

A data file is removed only if

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
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import onnx_ir as ir

from qgraph.graph.deferred import DeferredTensor
from qgraph.graph.tensors import slots
from qgraph.storage.outputs import HOLDS_OLD_WEIGHTS, Outputs
from qgraph.storage.reading import mentions, parsed, recorded

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
