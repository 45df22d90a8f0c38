"""The program as a whole: help, versions, exit codes, start-up."""

from __future__ import annotations

import importlib
import io
import json
import logging
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import click
import onnx
import pytest

from qgraph import __version__
from qgraph.cli import main as program
from qgraph.cli.group import cli
from qgraph.cli.main import main
from qgraph.errors import (
    EquivalenceError,
    ExactnessError,
    ModelError,
    OptionError,
    UndecidedError,
)

COMMANDS = cli.list_commands(click.Context(cli))


def test_there_is_a_command_for_each_file():
    files = {path.stem for path in Path(program.__file__).parent.glob("commands/*.py")}
    assert set(COMMANDS) == files - {"__init__"}
    assert {"check", "convert", "fold", "info", "passes", "run", "transform"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_each_command_has_help_and_the_common_options(qgraph, name, flag):
    status, out, err = qgraph(name, flag)
    assert status == 0
    assert err == ""
    assert out.startswith(f"Usage: qgraph {name} ")
    for option in ("-v, --verbose", "-q, --quiet", "--debug"):
        assert option in out


def test_help_lists_each_command_with_a_sentence(qgraph):
    status, out, _ = qgraph("--help")
    assert status == 0
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        summary = command.get_short_help_str(limit=70)
        assert not summary.endswith("...")
        assert f"{name} " in out
        assert summary in out


def test_version(qgraph):
    assert qgraph("--version") == (0, f"qgraph {__version__}\n", "")


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["convert", "--help"], ["nothing"]]
)
def test_what_needs_no_model_loads_no_model_library(arguments):
    code = (
        "import sys; from qgraph.cli.main import main; main(sys.argv[1:]);"
        "print(sorted({'numpy', 'onnx', 'onnx_ir', 'onnxruntime', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_libraries_for_few_functions_stay_unloaded():
    code = (
        "import sys; from qgraph.cli.main import main, tune; tune(); main();"
        "print(sorted({'networkx.algorithms', 'sympy.core'} & set(sys.modules)))"
    )
    model = Path(__file__).parents[2] / "examples/digits_brevitas.onnx"
    done = subprocess.run(
        [sys.executable, "-c", code, "info", model], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_a_conversion_loads_only_what_its_model_needs(tmp_path):
    model = Path(__file__).parents[2] / "examples/digits_brevitas.onnx"
    unused = (
        "email multiprocessing qgraph.bound qgraph.certificate qgraph.cli.tasks "
        "qgraph.ops.integer.kernels qgraph.ops.kernels.standard qgraph.proof.functions.enumeration "
        "qgraph.proof.matching.normalise qgraph.quantizers.recognition.chains "
        "qgraph.quantizers.weights.decoded qgraph.reporting.deploy_view qgraph.targets.layer "
        "qgraph.transforms.lowered_operators"
    )
    code = (
        "import sys; from qgraph.cli.main import main, tune; tune(); main();"
        f"print(sorted(set({unused.split()}) & set(sys.modules)))"
    )
    arguments = ["convert", model, "-o", tmp_path / "out.onnx", "--to", "qdq"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_unknown_command_is_usage_and_the_nearest_is_named(qgraph):
    found = qgraph("conver", "model.onnx")
    assert found.status == 2
    assert found.error == "error: There is no command 'conver'. Did you mean 'convert'?"


@pytest.mark.parametrize("arguments", [[], ["info"], ["info", "--jason", "m.onnx"], ["--nothing"]])
def test_wrong_usage_is_2_and_shows_how_it_is_used(qgraph, arguments):
    status, out, err = qgraph(*arguments)
    assert status == 2
    assert "Usage: qgraph" in out + err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelError("bad"), 3),
        (ExactnessError("bad"), 3),
        (OptionError("bad"), 2),
        (EquivalenceError("bad"), 1),
        (UndecidedError("bad"), 4),
        (MemoryError(), 3),
        (OSError("bad"), 3),
        (ZeroDivisionError("bad"), 3),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
    ],
)
def test_errors_have_exit_codes_and_one_message(qgraph, monkeypatch, error, status):
    monkeypatch.setattr("qgraph.model.load", _raising(error))
    found = qgraph("info", "model.onnx")
    assert found.status == status
    assert found.out == ""
    if status != 141:
        assert found.error


def test_an_internal_error_asks_for_a_report(qgraph, monkeypatch):
    error = ZeroDivisionError("by zero")
    monkeypatch.setattr("qgraph.model.load", _raising(error))
    found = qgraph("info", "model.onnx")
    assert "error: model.onnx could not be handled (ZeroDivisionError: by zero)" in found.error
    assert "--debug" in found.error


def test_an_internal_error_of_lint_names_the_model(qgraph, monkeypatch, model):
    engine = importlib.import_module("qgraph.lint.engine")  # qgraph.lint is a function too
    monkeypatch.setattr(engine, "lint", _raising(ZeroDivisionError("by zero")))
    assert f"error: {model} could not be handled" in qgraph("lint", model).error


@pytest.mark.parametrize(
    ("arguments", "node"),
    [(["info"], "act"), (["transform", "-o", "OUT", "-p", "fold-weights"], "weight")],
)
def test_an_internal_error_names_the_node_in_hand(qgraph, monkeypatch, model, arguments, node):
    def fail(node):
        raise ZeroDivisionError("by zero\nand more")

    monkeypatch.setattr("qgraph.quantizers.dialects.dialect.operator_of", fail)
    name, *options = arguments
    out = {"OUT": model.with_name("out.onnx")}
    found = qgraph(name, model, *(out.get(option, option) for option in options))
    assert found.status == 3
    assert "could not" in found.error
    assert f"(Quant '{node}' in graph 'net': ZeroDivisionError: by zero)" in found.error
    assert "and more" not in found.error


def test_warnings_of_libraries_are_shown_without_their_source_only_if_wanted(
    qgraph, monkeypatch, model
):
    def warn(path):
        warnings.warn("a cast loses digits", RuntimeWarning, stacklevel=1)
        return load(path)

    from qgraph.model import load

    monkeypatch.setattr("qgraph.model.load", warn)
    monkeypatch.setattr(warnings, "filters", [])
    assert qgraph("info", model).talk == ""
    assert qgraph("info", model, "-vv").err.splitlines()[0] == (
        "debug: RuntimeWarning: a cast loses digits"
    )


NAMES = ["::error::n", "a\n::error::n", "a\n \u3000::error::n", "a ##[error]n"]


@pytest.mark.parametrize("text", NAMES)
def test_no_name_in_the_output_is_a_command_to_a_runner(qgraph, model, text):
    """As the runner reads lines: blanks before two colons do not count, ``##[`` anywhere does."""
    proto = onnx.load(model)
    proto.producer_name = proto.graph.name = proto.graph.input[0].name = text
    proto.graph.node[0].input[0] = text
    onnx.save(proto, model)
    absent = model.with_name("gone\n::error::by path")
    for arguments in (["info", model], ["info", "--json", model], ["info", absent], ["run", model]):
        found = qgraph(*arguments)
        for line in re.split("[\r\n]", found.out + found.err):
            assert not line.strip().startswith("::")
            assert "##[" not in line
        if "--json" in arguments:
            assert json.dumps(text) in json.dumps(json.loads(found.out))


@pytest.mark.parametrize("arguments", [["--debug", "info", "m"], ["info", "m", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(qgraph, arguments):
    found = qgraph(*arguments)
    assert found.status == 3
    assert "Traceback (most recent call last)" in found.err
    assert "error: m: there is no such file" in found.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["info", "m"], "warning"),
        (["-v", "info", "m"], "warning info"),
        (["info", "-v", "m"], "warning info"),
        (["info", "-vv", "m"], "warning info debug"),
        (["-v", "info", "-v", "m"], "warning info debug"),
        (["-q", "info", "m"], ""),
        (["info", "m", "-q"], ""),
    ],
)
def test_the_log_is_told_as_far_as_wanted_and_once(qgraph, monkeypatch, arguments, told):
    def load(_path: Path) -> object:
        logger = logging.getLogger("qgraph.test")
        for _ in range(2):
            logger.warning("%s", "w")
            logger.info("i")
            logger.debug("d")
        raise ModelError("end")

    monkeypatch.setattr("qgraph.model.load", load)
    lines = qgraph(*arguments).err.splitlines()
    assert lines == [f"{level}: {level[0]}" for level in told.split()] + ["error: end"]


def test_a_full_disk_behind_stdout_is_an_error(monkeypatch, capsys):
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("sys.stdout", Full())
    assert main(["passes"]) == 3
    assert "No space left on device" in capsys.readouterr().err


@pytest.mark.slow
def test_a_reader_that_goes_away_is_not_told_that_models_differ():
    read, write = os.pipe()
    os.close(read)
    code = "import sys; from qgraph.cli.main import main; sys.exit(main(['passes']))"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == b""


def test_names_that_the_encoding_lacks_are_printed_as_codes():
    code = (
        "from qgraph.cli.main import main; from qgraph.cli.output import show;"
        "main(['--version']); show('ü')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        env={"PYTHONIOENCODING": "ascii"},
    )
    assert done.stdout.splitlines()[-1] == rb"\xfc"


def _raising(error: BaseException) -> Callable[[Path], object]:
    def call(_path: Path) -> object:
        raise error

    return call
