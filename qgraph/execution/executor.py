"""Runs a model in NumPy, node by node, each operator by its own definition."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.choices import Choice, member
from qgraph.errors import ModelError, OptionError, where
from qgraph.execution.control import ControlStep, captured, function_kernel, is_control
from qgraph.execution.feeds import check_feeds
from qgraph.execution.plan import Environment, NodeStep, Observer, Plan, Step, initial
from qgraph.execution.reference import reference_kernel
from qgraph.foreign.kernels import foreign_kernel
from qgraph.graph.constants import constant
from qgraph.kernels.mat_mul_n_bits import is_mat_mul_n_bits, mat_mul_n_bits
from qgraph.kernels.standard import Kernel, kernel_of
from qgraph.ops.operator import Operator, operator_of

Imports = Mapping[str, int]
"""Domains and their opset versions."""

logger = logging.getLogger(__name__)


class Backend(Choice):
    """What computes: ``auto`` is ONNX Runtime where it is installed, NumPy elsewhere."""

    AUTO = "auto"
    NUMPY = "numpy"
    ORT = "ort"


def run(
    model: ir.Model,
    inputs: Mapping[str, npt.ArrayLike],
    *,
    backend: str = Backend.AUTO,
    taps: Sequence[str] = (),
) -> dict[str, Any]:
    """Run ``model`` once, see :meth:`Executor.run`; :func:`prepare` serves several runs."""
    return prepare(model, backend).run(inputs, taps=taps)


def prepare(model: ir.Model, backend: str = Backend.AUTO, *, as_written: bool = False) -> Executor:
    """Return what runs ``model``, any number of times.

    Args:
        model: must not change while it is run.
        backend: see :class:`Backend`.
        as_written: leave constant quantizers to be computed where they stand, which is slower.
            ONNX Runtime adds up products with constant weights in another order than with
            computed ones; two models are only comparable in it where both have the latter.

    Raises:
        OptionError: there is no such backend.
        UnsupportedError: a node has no implementation, or ONNX Runtime is asked for and missing.
    """
    chosen = member(Backend, backend, "backend")
    installed = importlib.util.find_spec("onnxruntime") is not None
    if chosen is Backend.NUMPY or (chosen is Backend.AUTO and not installed):
        return Executor(model)
    from qgraph.execution.runtime import RuntimeExecutor
    from qgraph.standardize import standardize

    return RuntimeExecutor(model, None if as_written else standardize)


class Executor:
    """A model made ready to run: which kernel computes each node, and until when values live.

    A function of the model comes before a kernel of the same name, as ONNX has it; then come the
    quantizers' own kernels, fast kernels of standard operators, and onnx's reference.

    Args:
        model: is not changed, and must not change while this is used.

    Raises:
        UnsupportedError: a node has no implementation.
        ModelError: functions call each other in a circle.
    """

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._calls: list[ir.OperatorIdentifier] = []
        self._graph = model.graph
        self._plan = self.plan(model.graph, _imports(model.graph))

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
                be looked at during the call only.

        Raises:
            ExecutionError: an input does not fit, or a node fails.
            OptionError: a tap is unknown.
        """
        wanted = {str(value.name): value for value in self._graph.outputs}
        tapped = self._find(taps)
        known: Environment = dict(check_feeds(self._graph, inputs))
        # Infinities and NaN are ordinary results here.
        with np.errstate(all="ignore"):
            if observe is None:
                wanted |= tapped
                self._plan.run(known, frozenset(wanted.values()))
            else:
                self._plan.run(known, frozenset(tapped.values()), _told(tapped, known, observe))
        return {
            name: known[value] if value in known else initial(value)
            for name, value in wanted.items()
        }

    @property
    def computed(self) -> list[str]:
        """Names of all values that nodes of the main graph compute, in order."""
        nodes = (node for node in self._graph if not is_constant(node))
        return [str(value.name) for node in nodes for value in node.outputs if value.name]

    def depending_on(self, names: Collection[str]) -> set[str]:
        """Return those of the values that change with the inputs ``names``, or by themselves."""
        changing = {value for value in self._graph.inputs if value.name in names}
        for node in self._graph:
            used = [*node.inputs, *captured(node)]
            if not changing.isdisjoint(used) or not (used or is_constant(node)):
                changing.update(node.outputs)
        return {str(value.name) for value in changing}

    def plan(self, graph: ir.Graph, imports: Imports) -> Plan:
        """Return the plan of the main graph, of a subgraph, or of a function's body."""
        return Plan(graph, [self.step(node, imports) for node in graph if not is_constant(node)])

    def step(self, node: ir.Node, imports: Imports) -> Step:
        """Return the step that computes ``node``."""
        if is_control(node) and not self.is_call(node):
            planner = functools.partial(self.plan, imports=imports)
            return ControlStep(node, imports.get("", 1), planner)
        return NodeStep(node, self._kernel(node, imports))

    def is_call(self, node: ir.Node) -> bool:
        """Return whether ``node`` calls a function of the model."""
        return node.op_identifier() in self._functions

    def _kernel(self, node: ir.Node, imports: Imports) -> Kernel:
        if self.is_call(node):
            return self._call(node)
        return kernel_for(node, imports)

    def _call(self, node: ir.Node) -> Kernel:
        key = node.op_identifier()
        if key in self._calls:
            raise ModelError(
                f"{where(node)}: function {key[0]}::{key[1]} calls itself, expected functions "
                "without a circle. Export the model again."
            )
        function = self._functions[key]
        planner = functools.partial(self.plan, imports=_imports(function.graph))
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
        known = {str(value.name): value for value in values if value.name}
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else "name a value of the main graph."
                raise OptionError(f"There is no tensor {name!r} to tap in the main graph; {hint}")
        return {name: known[name] for name in names}


def kernel_for(node: ir.Node, imports: Imports) -> Kernel:
    """Return the kernel of a node that neither calls a function nor runs subgraphs.

    Raises:
        UnsupportedError: there is none.
    """
    operator = operator_of(node)
    if operator is not None:
        return _Quantizer(node, operator)
    if is_mat_mul_n_bits(node):
        return mat_mul_n_bits(node)
    version = imports.get(node.domain)
    fast = foreign_kernel(node) or (None if version is None else kernel_of(node, version))
    return fast or reference_kernel(node, imports)


class _Quantizer:
    """The kernel of an operator of ours; it warns once of a scale that no quantizer has."""

    def __init__(self, node: ir.Node, operator: Operator) -> None:
        self._node = node
        self._operator = operator
        self._warned = False

    def __call__(self, *arrays: Any) -> list[Any]:
        if not self._warned and any(map(_is_odd, self._scales(arrays))):
            self._warned = True
            logger.warning(
                "%s: a scale is zero, infinite or NaN; computed by IEEE arithmetic",
                where(self._node),
            )
        return [self._operator.run(self._node, arrays)]

    def _scales(self, arrays: Sequence[Any]) -> list[Any]:
        named = zip(self._operator.schema.inputs, arrays, strict=False)
        return [array for name, array in named if "scale" in name]


def _is_odd(scale: npt.NDArray[Any] | None) -> bool:
    if scale is None:
        return False
    numbers = scale.astype(np.float32, copy=False)
    return not bool(np.all(np.isfinite(numbers) & (numbers != 0)))


def _told(
    tapped: Mapping[str, ir.Value], known: Environment, observe: Callable[[str, Any], None]
) -> Observer:
    """Tell ``observe`` what no node computes, and return what tells it of the rest."""
    for name, value in tapped.items():
        producer = value.producer()
        if producer is None or is_constant(producer):
            observe(name, known[value] if value in known else initial(value))
    names = {value: name for name, value in tapped.items()}
    return lambda value, array: observe(names[value], array)


def _imports(graph: ir.Graph) -> dict[str, int]:
    return {("" if key == "ai.onnx" else key): n for key, n in graph.opset_imports.items()}


def is_constant(node: ir.Node) -> bool:
    """Return whether ``node`` only spells a constant out, so that nothing has to run."""
    spelled = node.domain == "" and node.op_type == "Constant"
    return spelled and constant(node.outputs[0]) is not None
