"""Imports and garbage collection of a process that runs one command.

The library changes neither; :func:`tune` is called only where the process is the command's.
"""

from __future__ import annotations

import atexit
import functools
import gc
import marshal
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import MAGIC_NUMBER, LazyLoader
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from qgraph.cli.stand_ins import STAND_INS

if TYPE_CHECKING:
    from importlib.abc import Loader

_LAZY = frozenset(
    {
        "ast",
        "calendar",
        "concurrent.futures",
        "csv",
        "ctypes",
        "decimal",
        "difflib",
        "fractions",
        "gettext",
        "google.protobuf.descriptor_database",
        "google.protobuf.internal.python_edition_defaults",
        "google.protobuf.internal.python_message",
        "google.protobuf.json_format",
        "google.protobuf.text_encoding",
        "google.protobuf.text_format",
        "html",
        "importlib.metadata",
        "inspect",
        "ipaddress",
        "json",
        "ml_dtypes._finfo",
        "networkx",
        "ntpath",
        "numpy._core._add_newdocs",
        "numpy._core._add_newdocs_scalars",
        "numpy._typing",
        "numpy.typing",
        "onnx._mapping",
        "onnx.compose",
        "onnx.gen_proto",
        "onnx.numpy_helper",
        "onnx.parser",
        "onnx.printer",
        "onnx.serialization",
        "onnx.shape_inference",
        "onnx.utils",
        "onnx.version_converter",
        "onnx_ir._symbolic_shapes",
        "onnx_ir._type_casting",
        "onnx_ir.convenience",
        "onnx_ir.schemas",
        "onnx_ir.tape",
        "onnx_ir.tensor_adapters",
        "onnx_ir.traversal",
        "packaging.version",
        "pickle",
        "platform",
        "qgraph.quantizers.dialects.qonnx_forms",
        "qgraph.quantizers.weights.job",
        "qgraph.quantizers.weights.level_table",
        "qgraph.reporting.drawing",
        "shutil",
        "sympy",
        "tempfile",
        "textwrap",
        "tokenize",
        "traceback",
        "typing_extensions",
        "urllib.parse",
        "zipfile",
    }
)
"""Modules that qgraph and its dependencies import but use in few functions or none. sympy, for
arithmetic on symbolic dimensions, takes more than half of the time that importing onnx_ir takes."""

_WITH_DATACLASSES = frozenset(
    {
        "onnx_ir._core",
        "onnx_ir._multi_device",
        "onnx_ir.external_data",
        "onnx_ir.passes._pass_infra",
    }
)
"""Modules with dataclasses of which few commands make objects."""

_PACKAGES = frozenset({"click", "google", "ml_dtypes", "numpy", "onnx", "onnx_ir", "qgraph"})
"""Packages whose modules with source are not extension modules too."""

_HAS_OTHER_BYTECODE = bool(sys.flags.optimize or sys.pycache_prefix)
_STANDARD_LIBRARY = os.path.dirname(os.__file__)

_HEAD = MAGIC_NUMBER + bytes(4)
"""Magic number and flags; time and size of the source follow in a bytecode file (PEP 552)."""

_WORD = 0xFFFFFFFF

_TOOLS = 6
"""Number of places for debuggers, profilers and other tools in ``sys.monitoring``."""

_OBJECTS = 1_000_000
"""Number of new objects after which Python collects garbage."""


class _Unused(ModuleType):
    """A module that was imported and not used yet; another import does not load it either."""

    def __getattribute__(self, name: str) -> Any:
        own = super().__getattribute__
        if name in ("__path__", "__spec__"):  # import statements read them
            return own(name)
        if name == "__module__":  # onnx_ir asks modules for it; only classes and functions have it
            raise AttributeError(name)
        stand_in = STAND_INS.get((own("__name__"), name))
        if stand_in is not None:
            return stand_in
        own("__spec__").loader_state.load(self)
        return own(name)


class _Loader(LazyLoader):
    """Executes a module when it is first used; other threads wait meanwhile."""

    def __init__(self, loader: Loader) -> None:
        super().__init__(loader)
        self._loader = loader
        self._lock = threading.RLock()
        self._has_begun = False

    def exec_module(self, module: ModuleType) -> None:
        spec = vars(module)["__spec__"]
        spec.loader, spec.loader_state, module.__loader__ = self._loader, self, self._loader
        module.__class__ = _Unused

    def load(self, module: ModuleType) -> None:
        with self._lock:
            if not self._has_begun:
                self._has_begun = True
                self._loader.exec_module(module)
                module.__class__ = ModuleType


class _BytecodeLoader(SourceFileLoader):
    """Reads the bytecode of a module, which must be that of its source, with few system calls."""

    def __init__(self, fullname: str, path: str, found: os.stat_result) -> None:
        super().__init__(fullname, path)
        folder, _, name = path.rpartition(os.sep)
        tag = sys.implementation.cache_tag
        self.cached = f"{folder}{os.sep}__pycache__{os.sep}{name[:-3]}.{tag}.pyc"
        self._size, self._time = found.st_size, int(found.st_mtime)

    def get_code(self, fullname: str) -> CodeType | None:
        code: CodeType
        try:
            file = os.open(self.cached, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            try:
                size = os.fstat(file).st_size
                content = os.read(file, size)
            finally:
                os.close(file)
            stamp = (self._size & _WORD) << 32 | (self._time & _WORD)
            if len(content) == size and content[:16] == _HEAD + stamp.to_bytes(8, "little"):
                code = marshal.loads(memoryview(content)[16:])
                return code
        except OSError:
            pass
        except (EOFError, TypeError, ValueError):  # the file is damaged, and Python would not go on
            code = self.source_to_code(self.get_data(self.path), self.path)
            return code
        return super().get_code(fullname)


class _RecordsLoader(_BytecodeLoader):
    """Executes a module with our dataclasses, which compile their functions at first use."""

    def exec_module(self, module: ModuleType) -> None:
        import dataclasses  # after tune(), so that what it imports is lazy

        from qgraph.records import guarded

        standard, dataclasses.dataclass = dataclasses.dataclass, guarded
        try:
            super().exec_module(module)
        finally:
            dataclasses.dataclass = standard


@functools.cache
def _names_in(*folders: str) -> frozenset[str]:
    """Return the names of all that folders contain, up to the first dot."""
    names = set[str]()
    for folder in folders:
        with suppress(OSError):
            names |= {name.partition(".")[0] for name in os.listdir(folder or ".")}
    return frozenset(names)


def _folder(fullname: str, path: Sequence[str] | None) -> str | None:
    """Return the one folder that a module can be in; None if there are several."""
    if path is not None:
        return path[0] if isinstance(path, list) and len(path) == 1 else None
    if _STANDARD_LIBRARY not in sys.path:
        return None
    before = sys.path[: sys.path.index(_STANDARD_LIBRARY)]
    return None if fullname in _names_in(*before) else _STANDARD_LIBRARY


def _spec(fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Return the spec of a module with source in the one folder that it can be in, or None."""
    folder = None if _HAS_OTHER_BYTECODE else _folder(fullname, path)
    if folder is None:
        return None
    base = folder + os.sep + fullname.rpartition(".")[2]
    for source in (base + ".py", base + os.sep + "__init__.py"):
        try:
            found = os.stat(source)
        except OSError:
            continue
        make = _RecordsLoader if fullname in _WITH_DATACLASSES else _BytecodeLoader
        loader, is_package = make(fullname, source, found), source != base + ".py"
        spec = ModuleSpec(fullname, loader, origin=source, is_package=is_package)
        spec.submodule_search_locations = [base] if is_package else None
        spec.has_location, spec.cached = True, loader.cached
        return spec
    return None


class _ModuleFinder:
    """Import finder for the standard library, modules of :data:`_PACKAGES`, and :data:`_LAZY`."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_lazy, package = fullname in _LAZY, fullname.partition(".")[0]
        is_standard = package in sys.stdlib_module_names
        if not (is_lazy or is_standard or (path is not None and package in _PACKAGES)):
            return None
        spec = _spec(fullname, path)
        if is_lazy:
            spec = spec or PathFinder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader)
        return spec


def tune() -> None:
    """Tune this process for one command: import lazily, collect garbage rarely.

    Modules that few commands use are loaded at first use. Garbage is collected rarely, because most
    objects of a command live until the process ends. Passes multiply no matrices, so NumPy is
    limited to one thread.
    """
    sys.meta_path.insert(0, _ModuleFinder)
    gc.set_threshold(_OBJECTS, 50, 50)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def end(status: int) -> NoReturn:
    """End this process. Its objects are not freed one by one: the operating system is faster.

    What is registered with ``atexit`` runs, and the standard streams are flushed. With a profiler,
    a debugger, or threads that still run, Python ends the process as usual.
    """
    gc.freeze()
    is_watched = sys.gettrace() is not None or sys.getprofile() is not None
    if (monitoring := getattr(sys, "monitoring", None)) is not None:  # from Python 3.12 on
        tools = map(monitoring.get_tool, range(_TOOLS))
        is_watched = is_watched or any(tool is not None for tool in tools)
    if is_watched or sys.flags.inspect or threading.active_count() > 1:
        sys.exit(status)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
            stream.flush()
    os._exit(status)


@contextmanager
def without_collector() -> Iterator[None]:
    """Collect no garbage meanwhile: looking for it in large graphs, which live on, takes long.

    A process that :func:`tune` prepared collects none afterwards either, because it ends.
    """
    is_enabled = gc.isenabled() and gc.get_threshold()[0] != _OBJECTS
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()
