"""Runs a model in NumPy, node by node, each operator by its own definition.

ONNX Runtime computes each node alone that qgraph does not define. Its results are those of ONNX
Runtime on this processor, and not by definition.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from qgraph.errors import Choice, ModelError, OptionError, UnsupportedError, meant, where
from qgraph.execution.inputs import check_feeds
from qgraph.execution.plan import (
    ControlStep,
    Plan,
    Step,
    function_kernel,
    initial,
    is_constant,
    is_fixed,
)
from qgraph.execution.session import Session, free_values
from qgraph.graph.opset.history import EARLY
from qgraph.graph.schema import MICROSOFT, OpKey, versions_of
from qgraph.graph.scopes import is_control, operands
from qgraph.ops.dispatch import Environment, Imports, NodeStep, has_removed_mode, kernel_for
from qgraph.ops.kernels.kernel import Kernel

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
    is_standard = is_standard and not has_removed_mode(node)
    return not is_standard and OpKey.of(node) in _runtime_operators()


def runs_alone(node: ir.Node) -> bool:
    """Return whether ONNX Runtime is installed, and has the operator of ``node``."""
    return importlib.util.find_spec("onnxruntime") is not None and is_runtime_operator(node)


@functools.cache
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
        return _alone_kernel(node, imports, runtime)

    def tell(self) -> None:
        """Log which operators run in ONNX Runtime."""
        if self._counts:
            names = ", ".join(f"{name} ({n})" for name, n in sorted(self._counts.items()))
            logger.warning(
                "ONNX Runtime computes these nodes, since qgraph does not define them: %s", names
            )


def _alone_kernel(node: ir.Node, imports: Imports, runtime: ModuleType) -> Kernel:
    versions = dict(imports)
    if node.domain:
        versions[""] = min(versions.get("", _OPSET), _OPSET)
    outputs = [value for value in node.outputs if value.name != ""]
    sessions: dict[tuple[Any, ...], Session] = {}

    def run(*arrays: Any) -> list[Any]:
        environment = {
            value: np.asarray(array)
            for value, array in zip(node.inputs, arrays, strict=True)
            if value is not None
        }
        feeds = {value: a.dtype for value, a in environment.items() if not is_fixed(value)}
        key = tuple(feeds.values())
        if key not in sessions:
            constants = [value for value in free_values([node]) if value not in feeds]
            sessions[key] = Session(
                runtime, _IR_VERSION, [node], versions, feeds, constants, outputs
            )
        results = sessions[key].run(environment)
        return [results[value] for value in outputs]

    return run


class Backend(Choice):
    """Backend that runs models: ``auto`` is ONNX Runtime if it is installed, else NumPy."""

    AUTO = "auto"
    NUMPY = "numpy"
    ORT = "ort"


class Executor:
    """A model that is ready to run: the kernel of each node, and how long each value is kept.

    A function of the model comes before a kernel of the same name, as ONNX has it; then come the
    quantizers' own kernels, fast kernels of standard operators, onnx's reference, and ``alone`` for
    nodes that qgraph does not define. The model must not change while this is used.

    Raises:
        UnsupportedError: a node has no implementation.
        ModelError: functions call each other in a circle.
    """

    def __init__(self, model: ir.Model, alone: AloneNodes | None = None) -> None:
        self._alone = alone
        self._functions = model.functions
        self._calls: list[ir.OperatorIdentifier] = []
        self._graph = model.graph
        self._plan = self.plan(model.graph, versions_of(model.graph.opset_imports))

    def run(
        self,
        inputs: Mapping[str, npt.ArrayLike],
        *,
        taps: Sequence[str] = (),
        observe: Callable[[str, Any], None] | None = None,
    ) -> dict[str, Any]:
        """Return the graph's outputs, and the values named in ``taps``, by name.

        Args:
            inputs: an array for each input of the graph, of exactly its type; Python numbers and
                lists are converted. Initializers that are listed as inputs may be given, too.
            taps: further values of the main graph.
            observe: called with name and value of each tap as soon as it is known; taps are then
                not returned, and no longer held than the computation needs them. The value may
                be read during the call only.

        Raises:
            ExecutionError: an input does not fit, or a node fails.
            OptionError: a tap is unknown.
        """
        wanted = {str(value.name): value for value in self._graph.outputs}
        tapped = self._find(taps)
        environment: Environment = dict(check_feeds(self._graph, inputs))
        # Infinities and NaN are ordinary results here.
        with np.errstate(all="ignore"):
            if observe is None:
                wanted |= tapped
                self._plan.run(environment, frozenset(wanted.values()))
            else:
                for name, array in self._stream(tapped, environment):
                    observe(name, array)
        return {
            name: environment[value] if value in environment else initial(value)
            for name, value in wanted.items()
        }

    def stream(
        self, inputs: Mapping[str, npt.ArrayLike], taps: Sequence[str]
    ) -> Iterator[tuple[str, Any]]:
        """Yield name and value of each tap as soon as it is known.

        Little more than what the computation needs is held. A value may be read until the next one
        is asked for. The caller ignores floating-point errors. Arguments and errors are those of
        :meth:`run`.
        """
        yield from self._stream(self._find(taps), dict(check_feeds(self._graph, inputs)))

    def _stream(
        self, tapped: Mapping[str, ir.Value], environment: Environment
    ) -> Iterator[tuple[str, Any]]:
        for name, value in tapped.items():
            producer = value.producer()
            if producer is None or is_constant(producer):
                yield name, environment[value] if value in environment else initial(value)
        names = {value: name for name, value in tapped.items()}
        keep = frozenset(names)
        for value, array in self._plan_for(keep).stream(environment, keep):
            yield names[value], array

    def _plan_for(self, keep: frozenset[ir.Value]) -> Plan:
        """Return the plan for runs that yield the values in ``keep``."""
        return self._plan

    @property
    def computed(self) -> list[str]:
        """Names of all values that nodes of the main graph compute, in order."""
        nodes = (node for node in self._graph if not is_constant(node))
        return [str(value.name) for node in nodes for value in node.outputs if value.name]

    def depending_on(self, names: Collection[str]) -> set[str]:
        """Return the values that depend on the inputs ``names``, or that are random."""
        changing = {value for value in self._graph.inputs if value.name in names}
        for node in self._graph:
            used = operands(node)
            if not changing.isdisjoint(used) or not (used or is_constant(node)):
                changing.update(node.outputs)
        return {str(value.name) for value in changing}

    def plan(self, graph: ir.Graph, imports: Imports) -> Plan:
        """Return the plan of the main graph, of a subgraph, or of a function's body."""
        return Plan(graph, [self.step(node, imports) for node in graph if not is_constant(node)])

    def part(self, nodes: Collection[ir.Node | None]) -> Plan:
        """Return the plan of some nodes of the main graph."""
        steps = self._plan.steps
        return Plan(
            self._graph, [s for s in steps if s.outputs and s.outputs[0].producer() in nodes]
        )

    def step(self, node: ir.Node, imports: Imports) -> Step:
        """Return the step that computes ``node``."""
        if is_control(node) and not self.is_call(node):
            planner = functools.partial(self.plan, imports=imports)
            return ControlStep(node, imports.get("", 1), planner)
        return NodeStep(node, self._kernel(node, imports))

    def has_kernel(self, node: ir.Node, imports: Imports) -> bool:
        """Return whether ``node`` can be computed without ONNX Runtime."""
        try:
            return self.is_call(node) or kernel_for(node, imports) is not None
        except UnsupportedError:
            return False

    def is_call(self, node: ir.Node) -> bool:
        """Return whether ``node`` calls a function of the model."""
        return node.op_identifier() in self._functions

    def _kernel(self, node: ir.Node, imports: Imports) -> Kernel:
        if self.is_call(node):
            return self._call(node)
        try:
            return kernel_for(node, imports)
        except UnsupportedError as error:
            if self._alone is None:
                raise
            return self._alone.kernel(node, imports, error)

    def _call(self, node: ir.Node) -> Kernel:
        key = node.op_identifier()
        if key in self._calls:
            raise ModelError(
                f"{where(node)}: function {key[0]}::{key[1]} calls itself, expected functions "
                f"without recursion. Export the model again."
            )
        function = self._functions[key]
        planner = functools.partial(self.plan, imports=versions_of(function.graph.opset_imports))
        self._calls.append(key)
        try:
            return function_kernel(node, function, planner)
        finally:
            self._calls.pop()

    def _find(self, names: Sequence[str]) -> dict[str, ir.Value]:
        if not names:
            return {}
        values = [*self._graph.inputs, *self._graph.initializers.values()]
        values += [value for node in self._graph for value in node.outputs]
        by_name = {str(value.name): value for value in values if value.name}
        for name in names:
            if name not in by_name:
                hint = meant(name, by_name) or " Name a value of the main graph."
                raise OptionError(f"There is no tensor {name!r} to tap in the main graph.{hint}")
        return {name: by_name[name] for name in names}
