"""Outputs that appear together; names that are one file; locks; scratch folders."""

from __future__ import annotations

import os
import platform
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from qgraph.errors import OptionError, QGraphError
from qgraph.storage.locks import Lock, Scratch
from qgraph.storage.outputs import Outputs
from qgraph.storage.places import expect_place, is_same


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


class TestTogether:
    def test_they_appear_when_the_block_ends(self, tmp_path: Path) -> None:
        with Outputs() as outputs:
            outputs.write_text(tmp_path / "a", "1")
            outputs.write_text(tmp_path / "b", "2")
            assert not (tmp_path / "a").exists()
            assert outputs.written(tmp_path / "a").read_text() == "1"
        assert names(tmp_path) == ["a", "b"]

    def test_one_that_fails_keeps_all_from_appearing(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("old")

        def run() -> None:
            with Outputs() as outputs:
                outputs.write_text(tmp_path / "a", "1")
                outputs.make_folder(tmp_path / "new" / "deep")
                outputs.write_text(tmp_path / "new" / "deep" / "b", "2")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            run()
        assert names(tmp_path) == ["a"]
        assert (tmp_path / "a").read_text() == "old"

    def test_an_error_afterwards_takes_nothing_away(self, tmp_path: Path) -> None:
        def stop() -> None:
            raise KeyboardInterrupt

        def run() -> None:
            with Outputs() as outputs, outputs.staging(tmp_path / "a") as output:
                output.file.write_text("1")
                (output.folder / "a.data").write_text("2")
                output.reserve(output.folder / "a.data", "a.data")
                output.afterwards(stop)

        with pytest.raises(KeyboardInterrupt):
            run()
        assert (tmp_path / "a.data").read_text() == "2"
        assert names(tmp_path) == ["a", "a.data"]

    def test_a_neighbour_does_not_get_the_name_of_another_output(self, tmp_path: Path) -> None:
        with Outputs() as outputs, outputs.staging(tmp_path / "a") as output:
            output.file.write_text("1")
            outputs.write_text(tmp_path / "b", "2")
            for name in ("b", "B"):
                with pytest.raises(FileExistsError):
                    output.reserve(output.folder / name, name)
            (output.folder / "c").write_text("3")
            output.reserve(output.folder / "c", "c")
            with pytest.raises(OptionError, match="named twice"):
                outputs.reserve(tmp_path / "c")
        assert names(tmp_path) == ["a", "b", "c"]

    @pytest.mark.parametrize("has_links", [True, False])
    def test_a_rename_that_fails_takes_those_before_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
    ) -> None:
        (tmp_path / "a").write_text("old")
        rename, link = os.replace, os.link

        def fail_at_c(source: Path, target: Path) -> None:
            if Path(target).name == "c":
                raise OSError(5, "broken disk")
            rename(source, target)

        def no_links(*_paths: Path, **_options: object) -> None:
            raise OSError(95, "no links here")

        monkeypatch.setattr(os, "replace", fail_at_c)
        monkeypatch.setattr(os, "link", link if has_links else no_links)

        def run() -> None:
            with Outputs() as outputs:
                for name in "abc":
                    outputs.write_text(tmp_path / name, "new")

        with pytest.raises(QGraphError, match=r"c: cannot be written .*broken disk"):
            run()
        assert names(tmp_path) == ["a"]
        assert (tmp_path / "a").read_text() == ("old" if has_links else "new")

    def test_an_output_that_fails_within_a_run_that_goes_on_does_not_appear(
        self, tmp_path: Path
    ) -> None:
        with Outputs() as outputs:
            with suppress(ZeroDivisionError), outputs.open(tmp_path / "a") as file:
                file.write(b"half")
                raise ZeroDivisionError
            outputs.write_text(tmp_path / "b", "whole")
        assert names(tmp_path) == ["b"]

    def test_a_reserved_output_that_is_not_written_leaves_what_is_there(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "a").write_text("old")
        with Outputs() as outputs:
            outputs.reserve(tmp_path / "a")
            outputs.reserve(tmp_path / "b")
        assert names(tmp_path) == ["a"]
        assert (tmp_path / "a").read_text() == "old"

    def test_what_fails_after_all_have_appeared_removes_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("old")

        def fail() -> None:
            raise ZeroDivisionError

        def run() -> None:
            with Outputs() as outputs, outputs.staging(tmp_path / "a") as output:
                output.file.write_text("new")
                output.reserve(output.folder / "beside", "a.data")
                (output.folder / "beside").write_text("data")
                output.afterwards(fail)

        with pytest.raises(ZeroDivisionError):
            run()
        assert names(tmp_path) == ["a", "a.data"]
        assert (tmp_path / "a").read_text() == "new"
        assert (tmp_path / "a.data").read_text() == "data"

    def test_a_name_beside_an_output_is_that_of_no_other_output(self, tmp_path: Path) -> None:
        with Outputs() as outputs:
            first = outputs.reserve(tmp_path / "a")
            outputs.reserve(tmp_path / "b")
            with pytest.raises(FileExistsError):
                first.reserve(first.folder / "x", "b")
            first.reserve(first.folder / "x", "c")
            with pytest.raises(OptionError, match="named twice"):
                outputs.reserve(tmp_path / "c")
        assert names(tmp_path) == []

    def test_one_name_is_one_output(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "a")
        with Outputs() as outputs:
            outputs.write_text(tmp_path / "a", "1")
            for other in ("a", "./a", "A", "link", f"../{tmp_path.name}/a"):
                with pytest.raises(OptionError, match="named twice"):
                    outputs.write_text(tmp_path / other, "2")
        assert (tmp_path / "a").read_text() == "1"

    def test_owner_mode_and_umask(self, tmp_path: Path) -> None:
        (tmp_path / "old").touch()
        (tmp_path / "old").chmod(0o4604)
        if os.geteuid() == 0:
            os.chown(tmp_path / "old", 12, 34)
        before = (tmp_path / "old").stat()
        mask = os.umask(0o027)
        try:
            with Outputs() as outputs:
                outputs.write_text(tmp_path / "old", "1")
                outputs.write_text(tmp_path / "new", "1")
        finally:
            os.umask(mask)
        after = (tmp_path / "old").stat()
        assert after.st_ino != before.st_ino
        assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
        assert stat.S_IMODE(after.st_mode) & 0o777 == 0o604
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640

    @pytest.mark.parametrize("name", ["with space", "line\nbreak", "é", "x" * 255, "-", "*?["])
    def test_any_name_that_the_system_takes(self, tmp_path: Path, name: str) -> None:
        for text in ("1", "2"):
            with Outputs() as outputs:
                outputs.write_text(tmp_path / name, text)
        assert names(tmp_path) == [name]
        assert (tmp_path / name).read_text() == "2"


HIDDEN: dict[str, Callable[[Path, Path], Path]] = {
    "plain": lambda _, file: file,
    "dots": lambda folder, file: folder / "sub" / ".." / file.name,
    "symlink": lambda folder, file: _linked(os.symlink, file, folder / "s"),
    "hard link": lambda folder, file: _linked(os.link, file, folder / "h"),
    "folder link": lambda folder, file: _linked(os.symlink, folder, folder / "f") / file.name,
    "link to a link": lambda folder, file: _linked(
        os.symlink, _linked(os.symlink, file, folder / "s"), folder / "t"
    ),
    "relative": lambda _, file: Path(os.path.relpath(file)),
}


def _linked(link: Callable[[Path, Path], None], file: Path, name: Path) -> Path:
    link(file, name)
    return name


@pytest.mark.parametrize("way", HIDDEN)
def test_a_file_that_is_read_is_not_written_whatever_its_name(tmp_path: Path, way: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "read").write_text("precious")
    alias = HIDDEN[way](tmp_path, tmp_path / "read")

    def run(*steps: str) -> None:
        with Outputs() as outputs:
            for step in steps:
                if step == "read":
                    outputs.protect([tmp_path / "read"])
                else:
                    outputs.write_text(alias, "gone")

    for steps in (("read", "write"), ("write", "read")):
        with pytest.raises(OptionError, match="is read by this command"):
            run(*steps)
    assert (tmp_path / "read").read_text() == "precious"
    assert not [name for name in names(tmp_path) if name.startswith(".")]


class TestPlaces:
    def test_existing_files_that_differ_in_case_are_two(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        if (tmp_path / "A").exists():
            pytest.skip("this file system ignores case")
        assert not is_same(tmp_path / "a", tmp_path / "A")

    def test_a_name_in_an_unreadable_place_is_an_error_and_no_other_file(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        with pytest.raises(OSError, match="symbolic links"):
            is_same(tmp_path / "loop", tmp_path / "a")

    @pytest.mark.parametrize("name", ["/dev/null", "/dev/stdout", "/proc/self/fd/1", "pipe", "."])
    def test_what_is_no_regular_file_is_refused(
        self, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        os.mkfifo(tmp_path / "pipe")
        for follow in (True, False):
            with pytest.raises(QGraphError, match="not a regular file"):
                expect_place(name, follow_links=follow)

    def test_a_name_that_is_too_long_is_refused_before_any_work(self, tmp_path: Path) -> None:
        with pytest.raises(QGraphError, match="no file can have a name of this length"):
            expect_place(tmp_path / ("x" * 300))

    def test_a_name_that_no_file_can_have_is_refused(self) -> None:
        with pytest.raises(QGraphError, match="no file can have this name"):
            expect_place("a\0b")

    def test_the_file_behind_standard_output_is_refused(self, tmp_path: Path) -> None:
        code = (
            "import sys; from qgraph.storage.outputs import Outputs; "
            "Outputs().write_text(sys.argv[1], 'x')"
        )
        with (tmp_path / "out").open("w") as out:
            done = subprocess.run(
                [sys.executable, "-c", code, tmp_path / "out"],
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert "is the standard output or error of this command" in done.stderr
        assert names(tmp_path) == ["out"]


class TestLock:
    def test_a_second_writer_is_told_the_process(self, tmp_path: Path) -> None:
        with Outputs() as outputs:
            outputs.reserve(tmp_path / "a")
            here = f"process {os.getpid()} on {platform.node()}"
            with pytest.raises(QGraphError, match=f"a: is being written by {here}"):
                Lock(tmp_path / "a").acquire()
            with Outputs() as others:
                others.write_text(tmp_path / "b", "other outputs of the folder are free")
        assert names(tmp_path) == ["b"]

    def test_a_lock_that_is_left_over_is_taken_and_removed(self, tmp_path: Path) -> None:
        lock = Lock(tmp_path / "a")
        lock.path.write_text("qgraph 1 elsewhere\n")
        lock.path.chmod(0o444)
        with Outputs() as outputs:
            outputs.write_text(tmp_path / "a", "1")
        assert names(tmp_path) == ["a"]

    @pytest.mark.parametrize("kind", ["text", "folder", "link", "hard link"])
    def test_another_file_of_its_name_is_not_touched(self, tmp_path: Path, kind: str) -> None:
        path, other = Lock(tmp_path / "a").path, tmp_path / "other"
        other.write_text("qgraph precious")
        match kind:
            case "text":
                path.write_text("precious")
            case "folder":
                path.mkdir()
            case "link":
                path.symlink_to(other)
            case "hard link":
                os.link(other, path)
        before = names(tmp_path)
        with pytest.raises(QGraphError, match="not a lock file"), Outputs() as outputs:
            outputs.write_text(tmp_path / "a", "1")
        assert names(tmp_path) == before
        assert other.read_text() == "qgraph precious"

    def test_without_locks_there_is_a_warning(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("qgraph.storage.locks.fcntl", None)
        with Outputs() as outputs:
            outputs.write_text(tmp_path / "a", "1")
        assert "has no locks" in caplog.text
        assert names(tmp_path) == ["a"]
        assert (tmp_path / "a").read_text() == "1"


class TestScratch:
    def leave(self, target: Path) -> Path:
        """Make what a killed process leaves."""
        left = Scratch(target)
        left.make(is_locked=True)
        (left.path / "part").write_text("half")
        return left.path

    def test_one_of_a_process_that_is_gone_is_removed(self, tmp_path: Path) -> None:
        code = (
            "import os, sys; from pathlib import Path; from qgraph.storage.locks import Scratch;"
            "Scratch(Path(sys.argv[1])).make(is_locked=True); os._exit(0)"
        )
        subprocess.run([sys.executable, "-c", code, tmp_path / "a"], check=True)
        (left,) = tmp_path.iterdir()
        with Outputs() as outputs:
            outputs.write_text(tmp_path / "b", "another output")
        assert left.exists()
        with Outputs() as outputs:
            outputs.write_text(tmp_path / "a", "1")
        assert names(tmp_path) == ["a", "b"]

    def test_one_that_is_in_use_stays(self, tmp_path: Path) -> None:
        left = self.leave(tmp_path / "a")
        with Outputs() as outputs:
            outputs.write_text(tmp_path / "a", "1")
        assert left.exists()

    def test_one_of_another_host_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(platform, "node", lambda: "elsewhere")
        scratch = Scratch(tmp_path / "a")
        scratch.path.mkdir()
        monkeypatch.undo()
        with Outputs() as outputs:
            outputs.write_text(tmp_path / "a", "1")
        assert scratch.path.exists()

    def test_a_folder_of_the_user_stays(self, tmp_path: Path) -> None:
        for name in (".a.mine", ".a.qgraph", f".a.{'0' * 8}-1-{'0' * 8}.qgraph"):
            (tmp_path / name).mkdir()
        before = names(tmp_path)
        with Outputs() as outputs:
            outputs.write_text(tmp_path / "a", "1")
        assert names(tmp_path) == sorted([*before, "a"])

    def test_only_its_owner_can_look_into_it(self, tmp_path: Path) -> None:
        with Outputs() as outputs:
            output = outputs.reserve(tmp_path / "a")
            assert stat.S_IMODE(output.folder.stat().st_mode) == 0o700
