"""What commands write: never over a file that they read, all of it or nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qgraph as library
from qgraph.cli.main import main
from qgraph.cli.process import Guarded
from qgraph.storage import datafiles, files as storage

REFERENCE, CANDIDATE = "net.onnx", "other.onnx"


@pytest.fixture
def files(model, tmp_path, monkeypatch):
    """Two models with data files, inputs, labels and a report, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name, change in ((REFERENCE, 0.0), (CANDIDATE, 1.0)):
        loaded = ir.load(model)
        weight = loaded.graph.initializers["w"]
        weight.const_value = ir.tensor(weight.const_value.numpy() + np.float32(change), name="w")
        ir.save(loaded, tmp_path / name, external_data=f"{name}.data", size_threshold_bytes=16)
    np.savez(tmp_path / "in.npz", x=np.eye(4, dtype=np.float32), right=np.zeros(4, np.int64))
    np.save(tmp_path / "x.npy", np.eye(4, dtype=np.float32))
    np.save(tmp_path / "right.npy", np.zeros(4, np.int64))
    assert main(["prove", REFERENCE, REFERENCE, "--certificate", "report.json", "-q"]) == 0
    return tmp_path


def everything(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


CHECK = ["check", REFERENCE, CANDIDATE, "--backend", "numpy", "--inputs", "in.npz"]
LABELLED = ["check", REFERENCE, CANDIDATE, "--backend", "numpy", "-i", "x=x.npy"]
LABELLED += ["--labels", "right.npy", "--max-drop", "1"]
PROVE = ["prove", REFERENCE, CANDIDATE]
FOLD = ["fold", REFERENCE, "-o", "out.onnx"]
RUN = ["run", REFERENCE, "--backend", "numpy", "--inputs", "in.npz"]

WRITERS = [
    (CHECK, ["--report", "--junit", "--markdown", "--witness", "--html", "--sarif"], "in.npz"),
    (LABELLED, ["--report"], "right.npy"),
    (LABELLED, ["--report"], "x.npy"),
    (PROVE, ["--certificate", "--witness", "--html", "--sarif", "--markdown", "--junit"], ""),
    (FOLD, ["-o", "--report", "--html", "--sarif", "--markdown"], ""),
    ([*FOLD, "--safetensors"], ["-o", "--report"], ""),
    (["fold", REFERENCE, "--in-place"], ["--report", "--markdown"], ""),
    (["convert", REFERENCE, "-o", "out.onnx", "--to", "qdq"], ["-o", "--sarif"], ""),
    (["transform", REFERENCE, "-o", "out.onnx", "-p", "fold-weights"], ["-o", "--html"], ""),
    (["lock", REFERENCE], ["-o"], ""),
    (RUN, ["-o"], "in.npz"),
    (["plot", REFERENCE, "--node", "act"], ["-o"], ""),
    (["report", "report.json"], ["--html", "--sarif", "--markdown", "--junit"], "report.json"),
]


@pytest.mark.cases(fast=4, slow=8)
@pytest.mark.parametrize(("arguments", "options", "other"), WRITERS)
def test_no_output_takes_the_place_of_a_file_that_is_read(qgraph, files, arguments, options, other):
    before = everything(files)
    os.link("net.onnx.data", "alias.svg")
    Path("link.svg").symlink_to("net.onnx.data")
    Path("folder").symlink_to(".")
    names = [REFERENCE, "net.onnx.data", "alias.svg", "link.svg", "folder/net.onnx.data"]
    names += [str(files / "net.onnx.data"), *([other] if other else [])]
    for option in options:
        for name in names:
            found = qgraph(*arguments, option, name)
            in_place = "--in-place" in arguments and name == REFERENCE
            assert found.status in ((2, 3) if in_place or "alias.svg" in os.listdir() else (2,))
            assert {key: Path(key).read_bytes() for key in before} == before, (option, name)
    assert not [name for name in os.listdir() if name.startswith(".")]


@pytest.mark.parametrize("option", ["--report", "--markdown"])
def test_data_files_do_not_get_the_name_of_a_report(qgraph, files, option):
    assert qgraph(*FOLD, "--external-threshold", "1", option, "out.onnx.data").status == 0
    library.load("out.onnx").run({"x": np.eye(4, dtype=np.float32)[:1]}, backend="numpy")
    assert Path("out.onnx-1.data").exists()
    # The old model needs its data file until it is replaced.
    before = everything(files)
    result = qgraph(*FOLD, option, "out.onnx-1.data")
    assert result.status == 2
    assert "holds weights of the model that is replaced" in result.err
    assert everything(files) == before


@pytest.mark.parametrize("name", [CANDIDATE, f"{CANDIDATE}.data"])
def test_a_report_does_not_replace_a_model_that_it_names_and_that_has_changed(qgraph, files, name):
    assert qgraph(*PROVE, "--certificate", "two.json").status == 1
    Path(REFERENCE).unlink()
    before = everything(files)
    assert qgraph("report", "two.json", "--markdown", name).status == 2
    assert everything(files) == before


@pytest.mark.parametrize("place", ["a\0b", "x" * 300])
def test_a_model_whose_data_file_has_no_possible_name(qgraph, files, place):
    proto = onnx.load(CANDIDATE, load_external_data=False)
    proto.graph.initializer[0].external_data[0].value = place
    proto.metadata_props.add(key="qgraph.data_files", value=json.dumps({place: "00"}))
    onnx.save(proto, CANDIDATE)
    result = qgraph("check", REFERENCE, CANDIDATE, "--report", "new.json")
    assert result.status == 3
    assert "internal error" not in result.err
    assert qgraph("fold", REFERENCE, "-o", CANDIDATE).status == 0
    assert library.load(CANDIDATE).inputs


@pytest.mark.parametrize("name", ["net.onnx.data", "other.onnx.data", "in.npz", REFERENCE])
def test_reduce_does_not_write_into_what_it_reads(qgraph, files, name):
    for part in ("reference.onnx", "candidate.onnx", "inputs.npz"):
        folder = files / "part"
        folder.mkdir()
        (folder / part).symlink_to(files / name)
        before = everything(files)
        found = qgraph("reduce", *CHECK[1:], "-o", folder)
        assert found.status == 2
        assert everything(files) == before
        (folder / part).unlink()
        folder.rmdir()


def test_reduce_writes_all_three_or_leaves_no_folder(qgraph, files, monkeypatch):
    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("qgraph.comparison.reduce.write_arrays", fail)
    before = everything(files)
    assert qgraph("reduce", *CHECK[1:], "-o", "a/b").status == 3
    assert not Path("a").exists()
    assert everything(files) == before


@pytest.mark.parametrize("arguments", [CHECK, PROVE, FOLD])
def test_a_view_that_fails_keeps_all_outputs_from_appearing(qgraph, files, monkeypatch, arguments):
    def fail(_document: object) -> str:
        raise library.QGraphError("cannot be shown")

    monkeypatch.setattr("qgraph.reporting.pages.markdown_report", fail)
    before = everything(files)
    extra = ["--certificate" if arguments is PROVE else "--report", "r.json"]
    found = qgraph(*arguments, *extra, "--sarif", "r.sarif", "--markdown", "r.md")
    assert (found.status, found.error) == (3, "error: cannot be shown")
    assert everything(files) == before


@pytest.mark.slow
def test_a_full_disk_behind_standard_output_leaves_no_file(files):
    before = everything(files)
    code = "import sys; from qgraph.cli.main import main; sys.exit(main(sys.argv[1:]))"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, *FOLD, "--report", "r.json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 3
    assert "standard output: cannot be written" in done.stderr
    assert everything(files) == before


def status_without_reader(*arguments):
    read, write = os.pipe()
    os.close(read)
    code = "import sys; from qgraph.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], stdout=write, stderr=write, check=False
    )
    os.close(write)
    return done.returncode


def test_a_reader_that_goes_away_is_said_by_the_status():
    assert status_without_reader("explain", "QG001") == 141


@pytest.mark.slow
def test_a_reader_that_goes_away_costs_no_output(files):
    assert status_without_reader(*FOLD) == 141
    assert Path("out.onnx").exists()


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize(
    ("streams", "arguments", "status"),
    [
        ("2>&-", "check nope.onnx nope.onnx", 3),
        (">&-", "passes", 0),
        ("<&- >&- 2>/dev/full", "convert", 2),
        (">/dev/full", "passes", 3),
        (">/dev/full", "--help", 3),
    ],
)
def test_closed_and_full_streams(tmp_path, streams, arguments, status):
    code = f"import sys; from qgraph.cli.main import main; sys.exit(main({arguments.split()!r}))"
    command = f'exec "$0" -c "$1" {streams}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, code], capture_output=True, cwd=tmp_path, check=False
    )
    assert done.returncode == status
    assert b"Traceback" not in done.stderr
    assert b"internal" not in done.stderr


def test_a_stream_that_is_gone_takes_everything():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        stream = Guarded(pipe, "standard output")
        for _ in range(3):
            stream.write("x" * 100_000)
            stream.flush()
        assert stream.is_gone


@pytest.fixture
def heeded(name: str) -> Iterator[signal.Signals]:
    """A signal with its default handler; a process in the background ignores some of them."""
    number = signal.Signals[name]
    is_interrupt = number is signal.SIGINT
    before = signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)
    yield number
    signal.signal(number, before)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_signals_end_a_command_and_leave_nothing(qgraph, files, monkeypatch, name, heeded):
    before = everything(files)
    number = heeded
    handlers = [signal.getsignal(each) for each in (number, signal.SIGTERM)]
    write = datafiles.write

    def interrupted(*arguments: object, **options: object) -> object:
        found = write(*arguments, **options)
        assert [each for each in os.listdir() if each.startswith(".out.onnx.")]
        signal.raise_signal(number)
        return found

    monkeypatch.setattr(datafiles, "write", interrupted)
    found = qgraph(*FOLD, "--report", "r.json")
    assert found.status == 128 + number
    assert found.error == f"error: interrupted by {name}"
    assert everything(files) == before
    assert [signal.getsignal(each) for each in (number, signal.SIGTERM)] == handlers


@pytest.mark.parametrize("name", ["SIGINT"])
def test_a_signal_ends_a_command_although_a_library_catches_it(qgraph, files, monkeypatch, heeded):
    def caught(*arguments: object, **options: object) -> object:
        try:
            signal.raise_signal(heeded)
        except BaseException as error:
            raise ImportError("initialization failed") from error

    def caught_once(*arguments: object, **options: object) -> None:
        with contextlib.suppress(ImportError):
            caught()
        signal.raise_signal(heeded)

    for instead in (caught, caught_once):
        monkeypatch.setattr(library.Model, "apply", instead)
        found = qgraph(*FOLD)
        assert (found.status, found.error) == (130, "error: interrupted by SIGINT")


def test_an_ignored_signal_stays_ignored(qgraph, files, monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        apply = library.Model.apply

        def interrupted(*arguments: object, **options: object) -> object:
            signal.raise_signal(signal.SIGHUP)
            return apply(*arguments, **options)

        monkeypatch.setattr(library.Model, "apply", interrupted)
        assert qgraph(*FOLD).status == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_writer_stops_before_it_reads(qgraph, files):
    from qgraph.storage.outputs import Outputs

    with Outputs() as outputs:
        outputs.reserve("out.onnx", follow_links=False)
        found = qgraph("fold", "absent.onnx", "-o", "out.onnx")
        assert found.status == 3
        assert f"is being written by process {os.getpid()}" in found.error
        assert qgraph("fold", REFERENCE, "-o", "another.onnx", "-q").status == 0


class TestDataFilesOfAReplacedModel:
    def fold(self, qgraph, *arguments: str) -> str:
        found = qgraph("fold", *arguments, "--external-threshold", "1", "-q")
        assert found.status == 0
        assert library.load("out.onnx" if "-o" in arguments else arguments[0]).ir
        return found.err

    def test_what_qgraph_wrote_goes(self, qgraph, files):
        for _ in range(3):
            self.fold(qgraph, REFERENCE, "-o", "out.onnx")
        assert len(list(files.glob("out.onnx*.data"))) == 1
        self.fold(qgraph, "out.onnx", "--in-place")
        assert len(list(files.glob("out.onnx*.data"))) == 1

    def test_what_another_program_wrote_stays_with_a_note(self, qgraph, files):
        assert qgraph("fold", REFERENCE, "--in-place").err.count("qgraph did not write it") == 1
        assert Path("net.onnx.data").exists()

    @pytest.mark.parametrize("copy", ["backup.onnx", "BACKUP.ONNX", "out.onnx.bak", "out.onnx~"])
    def test_what_a_copy_needs_stays(self, qgraph, files, copy):
        self.fold(qgraph, REFERENCE, "-o", "out.onnx")
        Path(copy).write_bytes(Path("out.onnx").read_bytes())
        expected = everything(files)["out.onnx.data"]
        found = qgraph("fold", CANDIDATE, "-o", "out.onnx", "--external-threshold", "1")
        assert f"{copy} mentions it" in found.err
        assert Path("out.onnx.data").read_bytes() == expected

    def test_what_was_changed_stays(self, qgraph, files):
        self.fold(qgraph, REFERENCE, "-o", "out.onnx")
        data = bytearray(Path("out.onnx.data").read_bytes())
        data[0] ^= 1
        Path("out.onnx.data").write_bytes(data)
        found = qgraph("fold", CANDIDATE, "-o", "out.onnx", "--external-threshold", "1")
        assert "it was changed after qgraph wrote it" in found.err
        assert Path("out.onnx.data").read_bytes() == data

    def test_what_the_input_reads_stays(self, qgraph, files):
        """The input lies in another folder, where no search for model files comes."""
        Path("sub").mkdir()
        library.load(REFERENCE).save("sub/out.onnx", external_data=True, size_threshold=1)
        proto = storage.parsed(Path("sub/out.onnx"))
        for tensor in proto.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = f"sub/{entry.value}"
        Path("above.onnx").write_bytes(proto.SerializeToString())
        expected = Path("sub/out.onnx.data").read_bytes()
        found = qgraph("fold", "above.onnx", "-o", "sub/out.onnx", "--external-threshold", "1")
        assert found.status == 0
        assert "another model that this run reads needs it" in found.err
        assert Path("sub/out.onnx.data").read_bytes() == expected

    def test_a_report_does_not_take_its_name(self, qgraph, files):
        """Neither that of the new data file, which is not there yet, nor that of the old one."""
        self.fold(qgraph, REFERENCE, "-o", "out.onnx", "--report", "out.onnx.data")
        assert json.loads(Path("out.onnx.data").read_text())["command"] == "fold"
        self.fold(qgraph, REFERENCE, "-o", "out.onnx")
        before = everything(files)
        (data,) = json.loads(storage.parsed(Path("out.onnx")).metadata_props[-1].value)
        options = ["-o", "out.onnx", "--external-threshold", "1", "--report", data]
        found = qgraph("fold", CANDIDATE, *options)
        assert found.status == 2
        assert "holds weights of the model that is replaced" in found.error
        assert everything(files) == before

    def test_an_old_model_never_reads_new_data(self, qgraph, files):
        self.fold(qgraph, REFERENCE, "-o", "out.onnx")
        Path("out.onnx.data").unlink()
        self.fold(qgraph, CANDIDATE, "-o", "out.onnx")
        assert not Path("out.onnx.data").exists()

    def test_data_files_have_the_mode_of_the_model(self, qgraph, files):
        for options in ((), ("--safetensors",), ("--shard-size", "16")):
            Path(REFERENCE).chmod(0o600)
            self.fold(qgraph, REFERENCE, "--in-place", *options)
            written = json.loads(storage.parsed(Path(REFERENCE)).metadata_props[-1].value)
            assert written
            for name in written:
                assert Path(name).stat().st_mode & 0o777 == 0o600


def test_a_link_to_the_input_is_the_input(qgraph, files):
    before = everything(files)
    Path("out.onnx").symlink_to(REFERENCE)
    assert qgraph(*FOLD).status == 2
    Path("out.onnx").unlink()
    assert everything(files) == before


def test_a_graph_without_a_name_is_written_as_a_model(qgraph, tmp_path):
    import onnx

    proto = onnx.ModelProto(ir_version=8, opset_import=[onnx.helper.make_opsetid("", 17)])
    proto.graph.SetInParent()
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    out, report = tmp_path / "out.onnx", tmp_path / "r.json"
    assert qgraph("fold", tmp_path / "m.onnx", "-o", out, "--report", report).status == 0
    assert qgraph("info", out).status == 0
