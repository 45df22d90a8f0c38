"""Outputs of a run that appear together when it has succeeded, or not at all.

Every output is first written into a scratch folder beside its place. When all are whole, each is
renamed to its place; if a rename fails, those before it are taken back. At any moment, also if the
process is killed, each output is the old file or the new one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from qgraph.errors import OptionError, QGraphError
from qgraph.storage.locks import Lock, Scratch
from qgraph.storage.places import Access, expect_place, is_same, seal, sync_folder

StrPath = str | os.PathLike[str]

IS_READ = "is read by this command"
HOLDS_WEIGHTS = "holds weights of the model that is read"
HOLDS_OLD_WEIGHTS = "holds weights of the model that is replaced"
_BACKUP = ".qgraph-old"


class Output:
    """One output, and the files that appear beside it.

    Attributes:
        name: as the caller gave it, for messages.
        target: the file that it becomes.
        folder: where it is written.
        failure: the kind of error that says why it cannot be written.
        is_staged: whether it is to appear.
        is_taken: says whether a path is an output of the same run.
    """

    def __init__(
        self,
        name: StrPath,
        target: Path,
        failure: type[QGraphError],
        is_taken: Callable[[Path], bool],
    ) -> None:
        self.name = name
        self.target = target
        self.failure = failure
        self.is_staged = False
        self.is_taken = is_taken
        self._lock = Lock(target)
        self._scratch = Scratch(target)
        self.folder = self._scratch.path
        self._reserved: dict[Path, Path] = {}
        self._had_target = self._was_moved = False
        self._afterwards: list[Callable[[], None]] = []

    @property
    def file(self) -> Path:
        """The file in ``folder`` that takes the place of ``target``."""
        return self.folder / self.target.name

    def begin(self) -> None:
        """Take the lock, and make the folder."""
        self._lock.acquire()
        self._scratch.make(is_locked=self._lock.is_held)

    def reserve(self, file: Path, name: str) -> None:
        """Let ``file``, in ``folder``, appear beside the target under a name that nothing has.

        Raises:
            FileExistsError: there is something of this name, or another output is to have it.
        """
        target = self.target.with_name(name)
        if self.is_taken(target):
            raise FileExistsError(errno.EEXIST, "is another output of this run", str(target))
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        self._reserved[file] = target

    def give_back(self) -> None:
        """Remove the empty files that hold reserved names."""
        for file, target in list(self._reserved.items()):
            _unlink(target)
            del self._reserved[file]

    def has_reserved(self, place: Path) -> bool:
        """Return whether a path is one of the reserved names."""
        return any(is_same(place, own) for own in self._reserved.values())

    def afterwards(self, action: Callable[[], None]) -> None:
        """Call ``action`` when all outputs have appeared; it may not fail."""
        self._afterwards.append(action)

    def seal(self) -> None:
        """Give the files the mode and owner of the old output, and write them to the disk."""
        access = Access.of(self.target)
        for file in (*self._reserved, self.file):
            seal(file, access)

    def publish_neighbours(self) -> None:
        """Move the files that appear beside the output to their places; nothing names them yet."""
        for file, target in self._reserved.items():
            os.replace(file, target)
        if self._reserved:
            sync_folder(self.target.parent)

    def publish(self) -> None:
        """Put the output into its place; keep the old one until ``end``."""
        self._had_target = os.path.lexists(self.target)
        if self._had_target:
            # Without hard links the old file cannot be brought back.
            with suppress(OSError, NotImplementedError):
                os.link(self.target, self.folder / _BACKUP, follow_symlinks=False)
        self._was_moved = True
        os.replace(self.file, self.target)

    def sync(self) -> None:
        """Write the names in the output's folder to the disk."""
        sync_folder(self.target.parent)

    def take_back(self) -> None:
        """Undo what ``publish`` has done, as far as it can be undone."""
        backup = self.folder / _BACKUP
        if not self._has_appeared():
            return
        if os.path.lexists(backup):
            _again(lambda: os.replace(backup, self.target))
        elif not self._had_target:
            _unlink(self.target)
        else:
            return  # the new output stays, with its data
        self._was_moved = False

    def conclude(self) -> None:
        """Do what was to be done afterwards."""
        for action in self._afterwards:
            action()

    def end(self) -> None:
        """Remove the folder, and give the lock back; reserved names too if nothing appeared.

        What went wrong after the output has appeared does not matter: its data files are its own.
        """
        try:
            if not self._has_appeared():
                self._was_moved = False
                self.give_back()
        finally:
            try:
                self._scratch.remove()
            finally:
                self._lock.release()

    def _has_appeared(self) -> bool:
        return self._was_moved and not os.path.lexists(self.file)


class Outputs:
    """The files that a run writes; they appear when the block ends without an error.

    Example::

        with Outputs() as outputs:
            outputs.protect(["in.onnx"])
            outputs.write_text("report.json", text)
    """

    def __init__(self) -> None:
        self._outputs: list[Output] = []
        self._reads: dict[Path, str] = {}
        self._stays: list[Path] = []
        self._folders: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        succeeded = False
        try:
            if error is None:
                self._publish([output for output in self._outputs if output.is_staged])
                succeeded = True
        finally:
            self._end(succeeded)

    def protect(
        self, files: Iterable[StrPath | None], what: str = IS_READ, *, stays: bool = True
    ) -> None:
        """Name files that the run reads and no output may replace; None stands for no file.

        ``what`` says what they are. If one ``stays``, it also may not be removed when the model
        that names it is replaced.

        Raises:
            OptionError: an output is one of them.
        """
        read = [Path(file) for file in files if file is not None]
        self._reads |= dict.fromkeys(read, what)
        self._stays += read if stays else []
        for output in self._outputs:
            self.expect_free(output.name)

    def protects(self, file: StrPath) -> bool:
        """Return whether a file may not be removed."""
        return any(is_same(file, read) for read in self._stays)

    def expect_free(self, path: StrPath) -> None:
        """Check that no output would replace a file that the run reads.

        Raises:
            OptionError: it would.
        """
        for read, what in self._reads.items():
            if is_same(path, read):
                raise OptionError(
                    f"{path}: {what}, expected a place of its own. Name another file."
                )

    def make_folder(self, folder: Path) -> None:
        """Create a folder and those around it; without success they are removed again.

        Raises:
            OSError: it cannot be made.
        """
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        for each in reversed(missing):
            each.mkdir()
            self._folders.append(each)
        folder.mkdir(exist_ok=True)

    def written(self, path: StrPath) -> Path:
        """Return where the content of an output is that has not appeared yet.

        Raises:
            KeyError: there is no such output.
        """
        for output in self._outputs:
            if is_same(output.target, path):
                return output.file
        raise KeyError(path)

    def reserve(self, path: StrPath, *, follow_links: bool = True) -> Output:
        """Lock an output, before any work is done for it.

        An output that is never written leaves what is there. For links see
        :func:`qgraph.storage.places.expect_place`.

        Raises:
            OptionError: the run reads this file, or writes it already.
            QGraphError: it cannot be written, or another process is writing it.
        """
        target = expect_place(path, follow_links=follow_links)
        self.expect_free(path)
        if self._is_taken(target) or any(each.has_reserved(target) for each in self._outputs):
            raise OptionError(
                f"{path}: is named twice, expected one file for each result. Name another file."
            )
        output = Output(path, target, QGraphError, self._is_taken)
        self._outputs.append(output)
        with writing(path, output.failure):
            output.begin()
        return output

    @contextmanager
    def staging(
        self, path: StrPath, *, follow_links: bool = True, failure: type[QGraphError] = QGraphError
    ) -> Iterator[Output]:
        """Yield an output to write in the block; it appears only if the block succeeds.

        The arguments and errors are those of :meth:`reserve`, which may have come before.
        """
        target = expect_place(path, follow_links=follow_links)
        output = self._find(target)
        if output is None or output.is_staged:
            output = self.reserve(path, follow_links=follow_links)
        output.failure = failure
        with writing(path, failure):
            yield output
        output.is_staged = True

    @contextmanager
    def open(self, path: StrPath) -> Iterator[IO[bytes]]:
        """Open an output for writing and reading; see :meth:`staging`."""
        with self.staging(path) as output, output.file.open("x+b") as file:
            yield file

    def write_text(self, path: StrPath, text: str) -> None:
        """Write an output in UTF-8; see :meth:`staging`."""
        with self.open(path) as file:
            file.write(text.encode())

    def _find(self, target: Path) -> Output | None:
        return next((each for each in self._outputs if is_same(each.target, target)), None)

    def _is_taken(self, place: Path) -> bool:
        return self._find(place) is not None

    def _publish(self, outputs: list[Output]) -> None:
        try:
            for output in outputs:
                with writing(output.name, output.failure):
                    output.seal()
            for step in (Output.publish_neighbours, Output.publish, Output.sync):
                for output in outputs:
                    with writing(output.name, output.failure):
                        step(output)
        except BaseException:
            for output in reversed(outputs):
                output.take_back()
            raise
        for output in outputs:
            output.conclude()

    def _end(self, succeeded: bool) -> None:
        outputs, self._outputs = self._outputs, []
        # The stack ends each output, whatever is raised by those before.
        with ExitStack() as stack:
            if not succeeded:
                stack.callback(self._remove_folders)
            for output in outputs:
                stack.callback(_end_twice, output)

    def _remove_folders(self) -> None:
        while self._folders:
            with suppress(OSError):
                self._folders.pop().rmdir()


def _end_twice(output: Output) -> None:
    """End an output; once more if a signal or an error stops that."""
    try:
        output.end()
    except BaseException:
        output.end()
        raise


@contextmanager
def joined(outputs: Outputs | None) -> Iterator[Outputs]:
    """Yield ``outputs``, which the caller publishes, or new ones, which appear with this block."""
    if outputs is not None:
        yield outputs
        return
    with Outputs() as own:
        yield own


@contextmanager
def writing(path: StrPath, failure: type[QGraphError]) -> Iterator[None]:
    """Turn errors of the system into errors of a kind that name the output."""
    try:
        yield
    except OSError as error:
        raise failure(
            f"{path}: cannot be written ({error}); the previous file is unchanged. "
            "Free some space, correct the permissions, or choose another place."
        ) from error


def _again(action: Callable[[], None]) -> None:
    try:
        action()
    except OSError:
        action()


def _unlink(path: Path) -> None:
    _again(lambda: path.unlink(missing_ok=True))
