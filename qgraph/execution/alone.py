"""Operators that qgraph does not define: ONNX Runtime computes each such node alone.

Their results are those of ONNX Runtime on this processor, and not by definition.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections import Counter
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from qgraph.errors import UnsupportedError, where
from qgraph.execution.plan import is_fixed
from qgraph.execution.session import Session
from qgraph.graph.opset.history import EARLY
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.ops.dispatch import Imports
from qgraph.ops.kernels.standard import Kernel

logger = logging.getLogger(__name__)

_IR_VERSION, _OPSET = 10, 21
"""What every ONNX Runtime loads that has the operators."""


def import_runtime(what: str, instead: str) -> ModuleType:
    """Return the module of ONNX Runtime.

    Raises:
        UnsupportedError: it is not installed; the message begins with ``what`` needs it, and ends
            with what to do ``instead``.
    """
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise UnsupportedError(
            f"{what}, but ONNX Runtime is not installed. Install it with "
            f"pip install qgraph[ort], or {instead}."
        ) from error


def is_runtime_operator(node: ir.Node) -> bool:
    """Return whether ``node`` is an operator of ONNX Runtime itself; the runtime must be installed.

    Those of the standard domain that onnx has, in another opset perhaps, are not its own, but for
    the few that it has in every opset.
    """
    is_standard = node.domain == "" and onnx.defs.has(node.op_type) and node.op_type not in EARLY
    return not is_standard and OpKey.of(node) in _runtime_operators()


def runs_alone(node: ir.Node) -> bool:
    """Return whether ONNX Runtime is installed, and has the operator of ``node``."""
    return importlib.util.find_spec("onnxruntime") is not None and is_runtime_operator(node)


@cache
def _runtime_operators() -> frozenset[OpKey]:
    """Return the operators that ONNX Runtime lists."""
    try:
        state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
        schemas = state.get_all_operator_schema()
    except (ImportError, AttributeError):
        return frozenset()
    return frozenset(OpKey(schema.domain, schema.name) for schema in schemas)


class AloneNodes:
    """Kernels of ONNX Runtime for nodes without a kernel in qgraph, and a list of these nodes."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def kernel(self, node: ir.Node, imports: Imports, error: UnsupportedError) -> Kernel:
        """Return a kernel that runs ``node``, which has none in qgraph, in a session of its own.

        Raises:
            UnsupportedError: ONNX Runtime is not installed, or has no such operator.
        """
        if node.domain not in ("", MICROSOFT):
            raise error
        name = where(node)
        runtime = import_runtime(
            f"{name}: qgraph runs {node.op_type} in ONNX Runtime",
            "write the node in standard operators",
        )
        if not is_runtime_operator(node):
            raise error
        self._counts[node.op_type] += 1
        return _AloneKernel(node, imports, runtime)

    def tell(self) -> None:
        """Log which operators run in ONNX Runtime."""
        if self._counts:
            names = ", ".join(f"{name} ({n})" for name, n in sorted(self._counts.items()))
            logger.warning(
                "ONNX Runtime computes these nodes, since qgraph does not define them: %s", names
            )


class _AloneKernel:
    def __init__(self, node: ir.Node, imports: Imports, runtime: ModuleType) -> None:
        self._node = node
        versions = dict(imports)
        if node.domain:
            versions[""] = min(versions.get("", _OPSET), _OPSET)
        self._imports = versions
        self._runtime = runtime
        self._sessions: dict[tuple[Any, ...], Session] = {}

    def __call__(self, *arrays: Any) -> list[Any]:
        node = self._node
        environment = {
            value: np.asarray(array)
            for value, array in zip(node.inputs, arrays, strict=True)
            if value is not None
        }
        feeds = {value: a.dtype for value, a in environment.items() if not is_fixed(value)}
        outputs = [value for value in node.outputs if value.name != ""]
        key = tuple(feeds.values())
        session = self._sessions.get(key)
        if session is None:
            session = Session(self._runtime, _IR_VERSION, [node], self._imports, feeds, outputs)
            self._sessions[key] = session
        results = session.run(environment)
        return [results[value] for value in outputs]
