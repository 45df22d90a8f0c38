"""A process of the command line loads modules when they are used, and ends at once."""

from __future__ import annotations

import bisect
import compileall
import importlib.machinery
import importlib.metadata
import inspect
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy
import numpy.typing
import pytest

from qgraph.cli import stand_ins, tuning

TUNED = "import sys; from qgraph.cli import tuning; tuning.tune();"


def printed(code: str, *arguments: object) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", TUNED + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_module_is_loaded_when_it_is_used_and_not_when_it_is_imported_again():
    code = """
import csv, zipfile, csv
print(type(csv).__name__)
print(next(csv.reader(['a,b'])), zipfile.ZIP_STORED, csv.__loader__ is csv.__spec__.loader)
print(type(csv).__name__, type(zipfile).__name__)
"""
    assert printed(code) == ["_Unused", "['a', 'b'] 0 True", "module module"]


def test_the_version_of_onnx_is_that_of_its_metadata():
    code = """
import importlib.metadata, onnx
print(onnx.__version__, importlib.metadata.version('numpy'), 'email' in sys.modules)
print(importlib.metadata.distribution('onnx').version, 'email' in sys.modules)
try:
    importlib.metadata.version('there-is-no-such-package')
except importlib.metadata.PackageNotFoundError as error:
    print('none', error.name)
"""
    onnx, numpy = map(importlib.metadata.version, ("onnx", "numpy"))
    lines = [f"{onnx} {numpy} False", f"{onnx} True", "none there-is-no-such-package"]
    assert printed(code) == lines


TEXTS = [
    "",
    "one",
    "  one ",
    "a\n  b\n    c\n  ",
    "\n\n  a\n\n b\n\n",
    "\ta\n\tb\n",
    "a\n",
    " \n a",
]


@pytest.mark.parametrize("text", [*TEXTS, str(inspect.__doc__), str(inspect.signature.__doc__)])
def test_texts_lose_their_indentation_as_in_the_standard_library(text: str):
    assert stand_ins.cleandoc(text) == inspect.cleandoc(text)


def test_what_replaces_parts_of_modules_goes_when_they_are_loaded():
    code = """
import numpy, inspect, platform
print(platform.system(), numpy.linalg.eigh(numpy.eye(1)).eigenvalues)
import numpy.typing
print(numpy.typing.NDArray[numpy.int8], platform.node() and platform.system())
"""
    system = platform.system()
    first, second = printed(code)
    assert first.endswith(f"{system} [1.]")
    assert second == f"{numpy.typing.NDArray[numpy.int8]} {system}"


def test_stand_ins_are_for_names_of_lazy_modules():
    for module, name in stand_ins.STAND_INS:
        assert module in tuning._LAZY
        assert hasattr(importlib.import_module(module), name)


def test_a_conversion_does_not_execute_what_libraries_need_for_names_only(tmp_path: Path):
    code = """
from qgraph.cli.main import main
main(["convert", sys.argv[1], "-o", sys.argv[2], "--to", "qdq", "-q"])
names = ["gettext", "numpy._typing", "typing_extensions", "qgraph.quantizers.weights.job"]
print(*(type(sys.modules[name]).__name__ for name in names))
"""
    model = Path(__file__).parents[2] / "examples" / "digits_brevitas.onnx"
    assert printed(code, model, tmp_path / "out.onnx")[-1] == " ".join(["_Unused"] * 4)


def test_signatures_of_other_functions_are_whole():
    code = """
import inspect
def function(a, *, b=1): ...
print(inspect.signature(function), inspect.signature(function).parameters["b"].default)
"""
    assert printed(code) == ["(a, *, b=1) 1"]


def test_stand_ins_take_all_arguments():
    code = """
import difflib, inspect, pathlib, urllib.parse
from difflib import get_close_matches
from urllib.parse import quote_from_bytes
print(get_close_matches("word", ["lord", "wood"], n=1, cutoff=0.5), get_close_matches("-o", ["o"]))
print(quote_from_bytes(b"a b/c", safe=""), pathlib.Path("/a b").as_uri())
"""
    assert printed(code) == ["['wood'] []", "a%20b%2Fc file:///a%20b"]


def test_the_closest_command_is_named():
    code = "from qgraph.cli.main import main; print(main(['convrt']), main(['info', '--jsn', 'a']))"
    done = subprocess.run([sys.executable, "-c", TUNED + code], capture_output=True, text=True)
    assert done.stdout == "2 2\n"
    assert "Did you mean 'convert'?" in done.stderr
    assert "--json" in done.stderr


def test_masked_arrays_can_be_imported():
    """NumPy makes functions from the signatures of others then."""
    code = "import numpy; print(numpy.ma.masked_array([1, 2], [True, False]).sum())"
    assert printed(code) == ["2"]


def test_a_package_that_is_only_in_metadata_of_another_name_is_found(tmp_path: Path):
    folder = tmp_path / "some_thing-1.5.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: some-thing\nVersion: 1.5\n")
    code = """
sys.path.insert(0, sys.argv[1])
import importlib.metadata
print(importlib.metadata.version('some_thing'), importlib.metadata.version('Some-Thing'))
"""
    assert printed(code, tmp_path) == ["1.5 1.5"]


def test_threads_wait_until_a_module_is_loaded(tmp_path: Path):
    (tmp_path / "slow_module.py").write_text("import time\ntime.sleep(0.2)\nanswer = 42\n")
    code = """
from concurrent.futures import ThreadPoolExecutor
sys.path.insert(0, sys.argv[1])
tuning._LAZY |= {'slow_module'}
import slow_module
with ThreadPoolExecutor(4) as pool:
    print({each.result() for each in [pool.submit(lambda: slow_module.answer) for _ in range(4)]})
"""
    assert printed(code, tmp_path) == ["{42}"]


def test_modules_have_what_they_have_in_other_processes():
    code = """
import json, xml.dom, numpy.lib, onnx.helper, qgraph.text, onnx_ir.serde, onnx_ir._core
for module in (xml.dom, numpy.lib, onnx.helper, qgraph.text, onnx_ir.serde, onnx_ir._core):
    spec = module.__spec__
    print(module.__name__, module.__file__, module.__cached__, module.__package__,
          getattr(module, '__path__', None), spec.name, spec.origin, spec.has_location,
          spec.submodule_search_locations, spec.parent, len(spec.loader.get_source(spec.name)))
"""
    command = [sys.executable, "-c", f"import sys; {code}"]
    usual = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed(code) == usual.splitlines()
    command = [sys.executable, "-O", "-c", TUNED + "import numpy; print(numpy.lib.__cached__)"]
    optimized = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert optimized.endswith(".opt-1.pyc\n")


def test_bytecode_of_another_source_is_not_executed(tmp_path: Path, monkeypatch):
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    package = tmp_path / "changing"
    package.mkdir()
    (package / "__init__.py").touch()
    code = """
sys.path.insert(0, sys.argv[1])
tuning._PACKAGES |= {'changing'}
from changing import module
print(module.answer, type(module.__loader__).__name__)
"""
    (package / "module.py").write_text("answer = 41\n")
    assert printed(code, tmp_path) == ["41 _BytecodeLoader"]
    compileall.compile_dir(package, quiet=1)
    (cached,) = package.glob("__pycache__/module.*.pyc")
    for text in ("answer = 42\n", "answer = 'longer'\n"):
        (package / "module.py").write_text(text)
        os.utime(package / "module.py", (1e9 + len(text), 1e9 + len(text)))
        assert printed(code, tmp_path) == [f"{eval(text.split('=')[1])} _BytecodeLoader"]
    compileall.compile_dir(package, quiet=1, force=True)
    whole = cached.read_bytes()
    for wrong in (b"", whole[:10], whole[:20], bytes(4) + whole[4:], whole[:4] + b"\1" + whole[5:]):
        cached.write_bytes(wrong)
        assert printed(code, tmp_path) == ["longer _BytecodeLoader"]
    cached.unlink()
    assert printed(code, tmp_path) == ["longer _BytecodeLoader"]


def test_a_module_of_the_folder_of_a_script_comes_first(tmp_path: Path):
    (tmp_path / "statistics.py").write_text("mean = 'own'\n")
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "__init__.py").write_text("reader = 'own'\n")
    code = """
sys.path.insert(0, sys.argv[1])
import statistics, csv, bisect, fractions
print(statistics.mean, csv.reader, bisect.__file__, fractions.Fraction(1, 2).numerator)
"""
    assert printed(code, tmp_path) == [f"own own {bisect.__file__} 1"]


def test_no_module_is_found_that_python_would_not_import():
    """Of a module with source and an extension module of the same name, Python takes the latter."""
    library = Path(tuning._STANDARD_LIBRARY)
    roots = [library / name for name in sys.stdlib_module_names - {"lib2to3", "test"}]
    packages = map(importlib.import_module, tuning._PACKAGES)
    roots += (Path(next(iter(package.__path__))) for package in packages)
    files = [*library.glob("*.*"), *(path for root in roots for path in root.rglob("*.*"))]
    sources = {path.with_suffix("") for path in files if path.suffix == ".py"}
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    extensions = {
        path.with_name(path.name.removesuffix(suffix))
        for path in files
        for suffix in suffixes
        if path.name.endswith(suffix)
    }
    folders = {path.parent for path in sources if path.name == "__init__"}
    assert extensions
    assert not sources & (extensions | folders)


def test_classes_of_libraries_are_dataclasses():
    code = """
import dataclasses, onnx_ir
from onnx_ir._multi_device import ShardingSpec, SimpleShardedDim
sharded = SimpleShardedDim(dim=8, num_shards=2)
equal = SimpleShardedDim(8, 2)
print(dataclasses.dataclass.__module__, sharded, sharded == equal, hash(sharded) == hash(equal))
print([each.name for each in dataclasses.fields(sharded)], dataclasses.is_dataclass(ShardingSpec))
try:
    sharded.dim = 3
except dataclasses.FrozenInstanceError as error:
    print(error)
print(dataclasses.replace(sharded, dim=3))
"""
    usual = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed(code) == usual.stdout.splitlines()


ENDING = "import atexit; atexit.register(print, 'registered'); print('printed');"


def ended(code: str) -> tuple[str, int]:
    command = [sys.executable, "-c", TUNED + ENDING + code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout, done.returncode


def test_a_process_ends_with_its_status_when_all_is_printed_and_called():
    assert ended("tuning.end(3)") == ("printed\nregistered\n", 3)
    assert ended("sys.stdout = sys.stderr = None; tuning.end(0)")[1] == 0


def test_a_process_waits_for_its_threads():
    late = "import threading; threading.Timer(0.2, print, ['late']).start(); tuning.end(3)"
    assert ended(late) == ("printed\nlate\nregistered\n", 3)


def test_a_profiler_prints_what_it_measured(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(f"{TUNED}{ENDING}tuning.end(3)\n")
    command = [sys.executable, "-m", "cProfile", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "printed\n" in done.stdout
    assert "function calls" in done.stdout
