"""Rewrite the main graph of a model by rules, node by node.

Nodes are visited in topological order. The first rule that applies to a node replaces it by new
nodes, which are visited next. So all nodes before a node are in normal form when it is visited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from qgraph.conditions import Condition
from qgraph.errors import OperatorError
from qgraph.exactness import Exactness
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.graph.inference.dimensions import symbol
from qgraph.graph.inference.rules import Fact, Unknown, given, of_tensor
from qgraph.graph.inference.walk import infer_nodes, write as write_fact
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import graphs_of, node_name
from qgraph.graph.sizes import stated_shape
from qgraph.numerics import Array
from qgraph.ops.composite import region_of
from qgraph.ops.dispatch import Imports
from qgraph.ops.known_values import KnownValues
from qgraph.proof.matching.zero_signs import distinguished
from qgraph.records import dataclass, field

_PARAMETER_BYTES = 1 << 22
"""Size up to which constants are moved to the other side of an operator."""

_NEW_NODES = 8
"""Maximum number of new nodes per node of the model; beyond it, the model is not rewritten."""

Size: TypeAlias = int | str | None
"""A number, the name of a symbolic dimension, or None if unknown."""

Sizes: TypeAlias = tuple[Size, ...]


class TooLargeError(Exception):
    """The rules would enlarge the model too much."""


@dataclass(frozen=True)
class RewriteRule:
    """A rule of the normal form.

    Attributes:
        name: its name in the notes of certificates.
        apply: returns what replaces the first output of a node; None if it changed the graph
            itself. Raises Unknown, with no node changed, if the rule does not apply.
        operators: the operators of ``domain`` to which it may apply; None for all operators.
        constants: whether it also applies to nodes with constant results.
        domain: domain of the operators.
    """

    name: str
    apply: Callable[[Rewriter, ir.Node], ir.Value | None]
    operators: Collection[str] | None = None
    constants: bool = False
    domain: str = ""

    def is_for(self, operator: OpKey) -> bool:
        """Return whether the rule may apply to nodes of an operator."""
        named = operator.domain == self.domain and operator.name in (self.operators or ())
        return named or self.operators is None


@dataclass
class Rewriter:
    """The main graph of a model, with the operations that rules use.

    Attributes:
        model: a private copy.
        imports: domains and their versions.
        level: the level that rules must keep: bits or values.
        kept: operators that no rule replaces.
        used: number of applications of each rule.
        exchanged: number of maxima that were exchanged with functions under the condition on NaN.
        loses_zero_signs: whether a rule was applied that keeps values only.
        conditions: further conditions of the applied rules.
    """

    model: ir.Model
    imports: Imports
    level: Exactness
    kept: frozenset[OpKey] = frozenset()
    used: Counter[str] = field(default_factory=Counter)
    exchanged: int = 0
    loses_zero_signs: bool = False
    conditions: set[Condition] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.graph = self.model.graph
        self._editor = Editor(self.model)
        self.known = KnownValues(self.imports)
        self.known.enter(self.graph)
        self._distinguished = set(
            distinguished(self.graph) if self.level is Exactness.VALUES else ()
        )
        self._names = {str(value.name) for value in _values(self.graph)}
        self._memo: dict[Hashable, ir.Value] = {}
        self._replaced: dict[ir.Value, ir.Value] = {}
        self._fresh: set[ir.Value] = set()
        self._pending: list[ir.Node] = []
        self._gives_up = False
        self._left = _NEW_NODES * len(self.graph) + 64
        self.movements: dict[ir.Node, Any] = {}
        self.monotone: dict[Hashable, Any] = {}

    def apply(self, rules: Sequence[RewriteRule]) -> None:
        """Rewrite all nodes until no rule applies; raise TooLargeError if the graph grows."""
        self._pending = list(self.graph)[::-1]
        fitting: dict[OpKey, list[RewriteRule]] = {}
        while self._pending:
            node = self._pending.pop()
            handed = [output for output in node.outputs if output.is_graph_output()]
            is_inner = any(all(output is not o for o in self.graph.outputs) for output in handed)
            if node.graph is None or not node.outputs or is_inner:
                continue
            waiting = len(self._pending)
            operator = OpKey.of(node)
            if operator not in fitting:
                fitting[operator] = [
                    rule for rule in rules if operator not in self.kept and rule.is_for(operator)
                ]
            for rule in fitting[operator]:
                self._gives_up = False
                if not rule.constants and self.known.has(node.outputs[0]):
                    continue
                try:
                    new = rule.apply(self, node)
                except Unknown:
                    continue
                if new is not None:
                    self.replace(node.outputs[0], new)
                self.used[rule.name] += 1
                self.loses_zero_signs |= self._gives_up
                if node.graph is not None:
                    self._pending.insert(waiting, node)  # it was changed in place
                break
            self._pending[waiting:] = self._pending[waiting:][::-1]
        self.graph.sort()  # a shared value may stand after the first node that uses it
        for node in reversed(list(self.graph)):
            if not any(output.uses() or output.is_graph_output() for output in node.outputs):
                self.graph.remove(node, safe=True)

    def gives_up_zero_sign(self, value: ir.Value) -> bool:
        """Return whether a rule may change the signs of zeros in ``value``, and note if it may."""
        may = self.level is Exactness.VALUES and value not in self._distinguished
        self._gives_up |= may
        return may

    def is_delicate(self, node: ir.Node) -> bool:
        """Return whether the sign of zeros in a result of ``node`` must be kept."""
        return any(output in self._distinguished for output in node.outputs)

    def array(self, value: ir.Value | None) -> Array | None:
        """Return the array of a small constant; None for others."""
        if value is None or not self.known.has(value):
            return None
        tensor = value.const_value
        if tensor is not None and tensor.nbytes > _PARAMETER_BYTES:
            return None
        array = self.known.array(value)
        return None if array is None or array.nbytes > _PARAMETER_BYTES else array

    def single(self, value: ir.Value | None) -> Any:
        """Return the element of a scalar float32 constant as a NumPy number; None for others."""
        array = self.array(value)
        if array is None or array.size != 1 or array.dtype != np.float32:
            return None
        return array.reshape(())[()]

    def constant(self, array: Array, stem: str) -> ir.Value:
        """Return a new initializer, or an existing one that is equal."""
        key = "constant", array.dtype.str, str(array.dtype), array.shape, array.tobytes()
        if key not in self._memo:
            tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape))
            value = ir.val(self.name(stem), const_value=tensor)
            self.graph.register_initializer(value)
            self._memo[key] = value
        return self._memo[key]

    def node(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Iterable[ir.Attr] | dict[str, Any] = (),
        *,
        domain: str = "",
        of: ir.Node | None = None,
        dtype: ir.DataType | None = None,
        sizes: Sizes | None = None,
    ) -> ir.Value:
        """Insert a node before another one, with the name of ``of`` or this; return its output."""
        self._left -= 1
        if self._left < 0:
            raise TooLargeError
        origin = of or before
        listed = (
            ir.convenience.convert_attributes(attributes)
            if isinstance(attributes, dict)
            else list(attributes)
        )
        new = ir.Node(domain, op_type, list(inputs), listed, num_outputs=1)
        new.name = node_name(origin)
        (output,) = new.outputs
        output.name = self.name(f"{origin.outputs[0].name}_{op_type}")
        output.type = None if dtype is None else ir.TensorType(dtype)
        output.shape = None if sizes is None else ir.Shape(list(sizes))
        before.prepend(new)
        self.known.enter([new])
        self._fresh.add(output)
        if self.is_delicate(before):
            self._distinguished.add(output)
        self._pending.append(new)
        return output

    def like(
        self,
        node: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | np.generic | None],
        dtype: ir.DataType | None = None,
    ) -> ir.Value:
        """Return the result of a new node before another one, of the same sizes.

        Constants are made of numbers among the inputs. The type is that of the other node by
        default.
        """
        output = node.outputs[0]
        values: list[Any] = list(inputs)
        for index, value in enumerate(values):
            if value is not None and not isinstance(value, ir.Value):
                values[index] = self.constant(np.asarray(value), f"{op_type}_number")
        return self.node(
            node, op_type, values, dtype=dtype or output.dtype, sizes=stated_shape(output)
        )

    def copy(
        self,
        node: ir.Node,
        before: ir.Node,
        inputs: Sequence[ir.Value | None],
        sizes: Sizes | None,
        attributes: Iterable[ir.Attr] | None = None,
        dtype: ir.DataType | None = None,
    ) -> ir.Value:
        """Return the result of a copy of a node on other operands, and perhaps of another type."""
        listed = node.attributes.values() if attributes is None else attributes
        domain, dtype = node.domain, dtype or node.outputs[0].dtype
        return self.node(
            before, node.op_type, inputs, listed, domain=domain, of=node, dtype=dtype, sizes=sizes
        )

    def define(self, node: ir.Node, write: Callable[[Draft, ir.Node], Operand]) -> Draft:
        """Replace a node by its definition, and return that.

        Raises Unknown if ``write`` refuses the node.
        """
        draft = Draft(self._editor, region_of(node))
        try:
            draft.giving(write(draft, node))
        except (OperatorError, ValueError):
            draft.discard()
        if not draft.nodes or draft.opset > self.imports.get("", 1):
            draft.discard()
            raise Unknown
        new: dict[ir.Value | None, ir.Value | None] = {None: None}
        facts: dict[ir.Value, Fact] = {}
        for value in [value for each in draft.nodes for value in each.inputs if value is not None]:
            array = draft.constants.get(value)
            new[value] = value if array is None else self.constant(array, str(value.name))
            facts[value] = _fact(value)
        infer_nodes(draft.nodes, facts, self.imports)
        for each in draft.nodes:
            (output,) = each.outputs
            write_fact(output, facts[output])
            new[output] = self.node(
                node,
                each.op_type,
                [new[value] for value in each.inputs],
                each.attributes.values(),
                dtype=output.dtype,
                sizes=stated_shape(output),
            )
        draft.discard()
        self.replace(node.outputs[0], given(new[draft.y]))
        return draft

    def shared(self, key: Hashable) -> ir.Value | None:
        """Return the value that was stored under a key, or its replacement."""
        value = self._memo.get(key)
        while value in self._replaced:
            value = self._replaced[value]
        return value

    def share(self, key: Hashable, value: ir.Value) -> ir.Value:
        """Store a value that other nodes may use too."""
        self._memo[key] = value
        return value

    def replace(self, value: ir.Value, new: ir.Value) -> None:
        """Replace the only used output of a node by ``new``, and remove the node."""
        node = given(value.producer())
        is_output, name = value.is_graph_output(), value.name
        if is_output:
            self._hand_on(value, new)
        value.replace_all_uses_with(new)
        self._replaced[value] = new
        if value in self._distinguished:
            self._distinguished.add(new)
        for output in node.outputs:
            if output.uses() or output.is_graph_output():
                return
        self.graph.remove(node, safe=True)
        if new in self._fresh and not is_output:
            new.name = name
            self._fresh.discard(new)

    def _hand_on(self, value: ir.Value, new: ir.Value) -> None:
        """Make ``new`` the graph output instead of ``value``, under its name."""
        outputs = [i for i, output in enumerate(self.graph.outputs) if output is value]
        if new in self._fresh and not new.is_graph_output():
            value.name, new.name = f"{value.name}_replaced", value.name
            self._fresh.discard(new)
        else:
            handed = ir.Node("", "Identity", [new], num_outputs=1)
            handed.name = str(value.name)
            (output,) = handed.outputs
            output.type, output.shape = value.type, value.shape
            output.name, value.name = value.name, f"{value.name}_replaced"
            self.graph.append(handed)
            self.known.enter([handed])
            new = output
        if new.type is None:
            new.type = value.type
        for index in outputs:
            self.graph.outputs[index] = new

    def name(self, stem: str) -> str:
        """Return an unused name for a value."""
        name, count = stem, 0
        while name in self._names:
            count += 1
            name = f"{stem}_{count}"
        self._names.add(name)
        return name


def _fact(value: ir.Value) -> Fact:
    """Return what the type and the shape of a value of the model say, or its elements."""
    if value.const_value is not None and not value.is_graph_input():
        return of_tensor(value.const_value)
    sizes = stated_shape(value)
    if sizes is None:
        return Fact(value.dtype)
    return Fact(value.dtype, tuple(symbol(n) if isinstance(n, str) else n for n in sizes))


def _values(graph: ir.Graph) -> Iterable[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
        for inner in graphs_of(node):
            yield from _values(inner)
