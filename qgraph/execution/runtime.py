"""Runs a model with ONNX Runtime, and quantizers of other domains with our kernels.

ONNX Runtime is optional: it is imported when a :class:`RuntimeExecutor` is made.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from qgraph.errors import where
from qgraph.execution.executor import AloneNodes, Executor, import_runtime, is_runtime_operator
from qgraph.execution.plan import Plan, Step, initial, is_constant, is_fixed
from qgraph.execution.session import Direct, Session, free_values, is_conformant, is_moderate
from qgraph.graph.constants import overridable
from qgraph.graph.opset.versions import minimum_ir_version
from qgraph.graph.scopes import graphs_of, operands
from qgraph.ops.dispatch import Environment, Imports
from qgraph.records import dataclass

logger = logging.getLogger(__name__)

_TAPS_AT_ONCE = 2
"""Number of values to tap that one session computes."""

_DOMAINS = frozenset({"ai.onnx.ml", "com.microsoft"})
Standardize = Callable[..., ir.Model]
"""``(model, *, bounded)`` to a model; see :func:`qgraph.quantizers.standardize.standardize`."""

_LEAST_IR_VERSION = 8
"""Below 4 initializers would have to be inputs, below 8 there are no functions."""


class RuntimeExecutor(Executor):
    """An :class:`Executor` that runs standard nodes in ONNX Runtime, with few large sessions.

    Graph optimizations are off, since they change results. What ONNX Runtime refuses is computed
    in NumPy and logged, and so are quantizers that it computes otherwise than onnx defines them.

    Args:
        model: is not changed, and must not change while this is used.
        standardize: returns an equal model with more of standard nodes; the values of the main
            graph have the same names there, and initializers that are inputs too are constants.
        bounded: ask for a model that is equal for numbers of moderate magnitude only; others are
            then left to an executor of their own.
        shares_memory: see :func:`qgraph.execution.prepare.prepare`.

    Raises:
        UnsupportedError: ONNX Runtime is not installed.
    """

    def __init__(
        self,
        model: ir.Model,
        standardize: Standardize | None = None,
        *,
        bounded: bool = True,
        shares_memory: bool = False,
    ) -> None:
        self._shares_memory = shares_memory
        self._runtime = import_runtime("Backend 'ort' is asked for", "choose backend 'numpy'")
        self._ir_version = _LEAST_IR_VERSION
        self._loadable: dict[int, bool] = {}
        self._source = model
        self._frozen: frozenset[str] = frozenset()
        self._standardize = standardize
        self._others: dict[bool, RuntimeExecutor] = {}
        self._direct: Direct | None = None
        self._tapped: tuple[frozenset[ir.Value], Plan] | None = None
        if standardize is not None and self._loads(model.opset_imports):
            model = standardize(model, bounded=bounded)
        # Newer formats than a model needs are no reason for ONNX Runtime to refuse it.
        self._ir_version = max(minimum_ir_version(model), _LEAST_IR_VERSION)
        if model is not self._source:
            self._frozen = frozenset(str(value.name) for value in overridable(self._source.graph))
        self._bounded = bounded and model is not self._source
        super().__init__(model, AloneNodes())

    def run(
        self,
        inputs: Mapping[str, npt.ArrayLike],
        *,
        taps: Sequence[str] = (),
        observe: Callable[[str, Any], None] | None = None,
    ) -> dict[str, Any]:
        """Return outputs and taps, see :meth:`Executor.run`."""
        if self._bounded and not all(map(is_moderate, inputs.values())):
            return self._other(standard=True).run(inputs, taps=taps, observe=observe)
        if self._direct is not None and observe is None and not taps:
            results = self._direct.run(inputs)
            if results is not None:
                return results
        if not self._frozen.isdisjoint(inputs):
            return self._other(standard=False).run(inputs, taps=taps, observe=observe)
        results = super().run(inputs, taps=taps, observe=observe)
        if self._direct is None and observe is None and not taps:
            self._direct = self._one_session()
        return results

    def stream(
        self, inputs: Mapping[str, npt.ArrayLike], taps: Sequence[str]
    ) -> Iterator[tuple[str, Any]]:
        """Yield taps, see :meth:`Executor.stream`."""
        if self._bounded and not all(map(is_moderate, inputs.values())):
            yield from self._other(standard=True).stream(inputs, taps)
        elif not self._frozen.isdisjoint(inputs):
            yield from self._other(standard=False).stream(inputs, taps)
        else:
            yield from super().stream(inputs, taps)

    def _plan_for(self, keep: frozenset[ir.Value]) -> Plan:
        """Return a plan in which no session computes more than a few of the values in ``keep``.

        A session has all its results in memory when it returns them.
        """
        tapped = self._tapped  # another thread may replace it
        if tapped is None or tapped[0] != keep:
            steps: list[Step] = []
            for step in self._plan.steps:
                steps += step.split(keep) if isinstance(step, SessionSegment) else [step]
            self._tapped = tapped = keep, Plan(self._graph, steps)
        return tapped[1]

    def _other(self, *, standard: bool) -> RuntimeExecutor:
        """Return the session for inputs of another form."""
        if standard not in self._others:
            chosen = self._standardize if standard else None
            self._others[standard] = RuntimeExecutor(
                self._source, chosen, bounded=False, shares_memory=self._shares_memory
            )
        return self._others[standard]

    def _one_session(self) -> Direct | None:
        """Return the session of the whole plan, if there is only one and it has run."""
        steps = self._plan.steps
        segment = steps[0] if len(steps) == 1 else None
        session = segment.session if isinstance(segment, SessionSegment) else None
        fed = {str(value.name) for value in self._graph.inputs if not value.is_initializer()}
        if session is None or session.carries or not fed.issuperset(session.feeds):
            return None
        outputs = [str(value.name) for value in session.outputs]
        if sorted(outputs) != sorted({str(value.name) for value in self._graph.outputs}):
            return None
        return Direct(self._graph, session.feeds, session.raw, outputs)

    @property
    def computed(self) -> list[str]:
        """Names of all values that nodes of the model's own main graph compute, in order."""
        nodes = (node for node in self._source.graph if not is_constant(node))
        return [str(value.name) for node in nodes for value in node.outputs if value.name]

    def plan(self, graph: ir.Graph, imports: Imports) -> Plan:
        """Return a plan in which nodes for ONNX Runtime are gathered into segments."""
        if not self._loads(imports):
            return super().plan(graph, imports)
        steps: list[Step] = []
        waiting = [node for node in graph if not is_constant(node)]
        taken = {node for node in waiting if self._takes(node, imports)}
        while waiting:
            ours, waiting = _ready(waiting, lambda node: node not in taken)
            steps += [self.step(node, imports) for node in ours]
            theirs, waiting = _ready(waiting, lambda node: node in taken)
            if theirs:
                keeps = not self._shares_memory
                steps.append(SessionSegment(theirs, self, imports, arena=keeps))
        return Plan(graph, steps)

    def session(
        self,
        nodes: Sequence[ir.Node],
        imports: Imports,
        feeds: dict[ir.Value, np.dtype[Any]],
        constants: Iterable[ir.Value],
        outputs: Sequence[ir.Value],
        *,
        arena: bool = True,
    ) -> Session:
        """Return a session for ``nodes``; raises the errors of ONNX Runtime."""
        version = self._ir_version
        return Session(
            self._runtime, version, nodes, imports, feeds, constants, outputs, arena=arena
        )

    def _loads(self, imports: Imports) -> bool:
        """Return whether ONNX Runtime knows the opset at all."""
        version = imports.get("", 0)
        if version not in self._loadable:
            x, y = ir.val("x"), ir.val("y")
            probe = ir.Node("", "Identity", [x], outputs=[y])
            try:
                self.session([probe], imports, {x: np.dtype(np.float32)}, (), [y])
                self._loadable[version] = True
            except Exception as error:  # they have no common base of their own
                logger.warning("NumPy runs opset %d, ONNX Runtime refuses it: %s", version, error)
                self._loadable[version] = False
        return self._loadable[version]

    def _takes(self, node: ir.Node, imports: Imports) -> bool:
        is_defined = node.domain in _DOMAINS
        if node.domain == "":
            version = imports.get("", 0)
            is_defined = version > 0 and onnx.defs.has(node.op_type, version, "")
            is_defined = is_defined or is_runtime_operator(node)
        is_ours = is_defined and is_conformant(node) and not self.is_call(node)
        return is_ours and all(self._takes(n, imports) for g in graphs_of(node) for n in g)


class SessionSegment:
    """Nodes that one session computes; if ONNX Runtime refuses them, two halves are tried.

    Threads may run it at once: only one makes a session, the others wait for it. ``reads`` come
    from outside and are not constant; ``outputs`` that are used elsewhere become known.
    """

    def __init__(
        self,
        nodes: Sequence[ir.Node],
        executor: RuntimeExecutor,
        imports: Imports,
        *,
        arena: bool = True,
    ) -> None:
        self._nodes = nodes
        self._arena = arena
        self._executor = executor
        self._imports = imports
        self._lock = threading.Lock()
        self._sessions: dict[tuple[Any, ...], Session | None] = {}
        self._parts: dict[tuple[Any, ...], _Part] = {}
        self._tapped: frozenset[ir.Value] | None = None
        self.outputs = [value for node in nodes for value in node.outputs if value.name != ""]
        self.reads = [value for value in free_values(nodes) if not is_fixed(value)]
        inside = set(nodes)
        self._exports = frozenset(
            value
            for value in self.outputs
            if value.is_graph_output() or not inside.issuperset(value.consumers())
        )

    def split(self, keep: frozenset[ir.Value]) -> list[SessionSegment]:
        """Return segments of the same nodes that compute a few of the values in ``keep`` each."""
        parts: list[list[ir.Node]] = [[]]
        count = 0
        for node in self._nodes:
            number = len(keep.intersection(node.outputs))
            if count and count + number > _TAPS_AT_ONCE:
                parts.append([])
                count = 0
            parts[-1].append(node)
            count += number
        if len(parts) == 1:
            return [self]
        return [SessionSegment(p, self._executor, self._imports, arena=False) for p in parts]

    @property
    def session(self) -> Session | None:
        """The session of all nodes, if there is one only and it has run."""
        sessions = list(self._sessions.values())
        return sessions[0] if len(sessions) == 1 else None

    def run(self, environment: Environment, keep: frozenset[ir.Value]) -> None:
        """Compute what is used elsewhere, and what ``keep`` asks for."""
        if keep <= self._exports:
            self._run(self._nodes, self._exports, environment)
            return
        wanted = self._exports | keep
        with self._lock:
            if self._tapped is not None and wanted != self._tapped:
                # each session copies its weights: one session for each set of taps would fill the
                # memory
                self._sessions.clear()
                self._parts.clear()
            self._tapped = wanted
        self._run(self._nodes, wanted, environment)

    def _run(
        self, nodes: Sequence[ir.Node], wanted: frozenset[ir.Value], environment: Environment
    ) -> None:
        key = (nodes[0], len(nodes), wanted)
        with self._lock:
            part = self._parts.get(key)
            if part is None:
                part = self._parts[key] = _Part.of(nodes, wanted)
        if not part.nodes or self._run_session(part, environment):
            return
        nodes = part.nodes
        if len(nodes) == 1:
            self._run_alone(nodes[0], environment)
            return
        half = len(nodes) // 2
        self._run(nodes[:half], wanted.union(free_values(nodes[half:])), environment)
        self._run(nodes[half:], wanted, environment)

    def _run_session(self, part: _Part, environment: Environment) -> bool:
        arrays = [environment[value] for value in part.reads]
        if not all(isinstance(array, np.ndarray) for array in arrays):
            return False  # a sequence, or an optional that is absent
        key = (part, *(array.dtype for array in arrays))
        try:
            session = self._session(part, key)
            if session is not None:
                environment.update(session.run(environment))
        # ONNX Runtime's exceptions have no common base of their own.
        except Exception as error:  # a genuine fault comes back from NumPy, with the node's name
            self._sessions[key] = None
            nodes = part.nodes
            if len(nodes) == 1 and self._executor.has_kernel(nodes[0], self._imports):
                logger.warning(
                    "%s: ONNX Runtime refuses it, NumPy runs it: %s", where(nodes[0]), error
                )
            return False
        return session is not None

    def _session(self, part: _Part, key: tuple[Any, ...]) -> Session | None:
        """Return the session of a part for the types in ``key``; None if it was refused before."""
        with self._lock:
            if key not in self._sessions:
                feeds = dict(zip(part.reads, key[1:], strict=True))
                self._sessions[key] = self._executor.session(
                    part.nodes,
                    self._imports,
                    feeds,
                    part.constants,
                    part.outputs,
                    arena=self._arena,
                )
            return self._sessions[key]

    def _run_alone(self, node: ir.Node, environment: Environment) -> None:
        step = self._executor.step(node, self._imports)
        loaded = {value for value in step.reads if value not in environment}
        environment.update((value, initial(value)) for value in loaded)
        step.run(environment, frozenset())
        for value in loaded:
            del environment[value]


@dataclass(frozen=True, eq=False)
class _Part:
    """The nodes of a segment that some wanted values need, with what they read from outside."""

    nodes: Sequence[ir.Node]
    reads: Sequence[ir.Value]
    constants: Sequence[ir.Value]
    outputs: Sequence[ir.Value]

    @staticmethod
    def of(nodes: Sequence[ir.Node], wanted: frozenset[ir.Value]) -> _Part:
        """Return the part of ``nodes`` for the values in ``wanted``."""
        outputs = [value for node in nodes for value in node.outputs if value in wanted]
        needed, kept = set(outputs), list[ir.Node]()
        for node in reversed(nodes):
            if not needed.isdisjoint(node.outputs):
                kept.append(node)
                needed.update(operands(node))
        kept.reverse()
        reads, constants = list[ir.Value](), list[ir.Value]()
        for value in free_values(kept):
            (constants if is_fixed(value) else reads).append(value)
        return _Part(kept, reads, constants, outputs)


def _ready(
    nodes: Iterable[ir.Node], chosen: Callable[[ir.Node], bool]
) -> tuple[list[ir.Node], list[ir.Node]]:
    """Split off the chosen nodes that depend on no node left after; both parts keep the order."""
    ready, rest = [], []
    pending: set[ir.Value] = set()
    for node in nodes:
        if chosen(node) and pending.isdisjoint(operands(node)):
            ready.append(node)
        else:
            rest.append(node)
            pending.update(node.outputs)
    return ready, rest
