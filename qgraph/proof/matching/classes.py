"""Classes of equal values of two models, closed under congruence.

Values that equal operators compute from equal operands are equal::

    reference   y = Mul(x, c); z = Relu(y)      classes   {x, u}  {c, d}  {y, v}  {z, w}
    candidate   v = Mul(d, u); w = Relu(v)

``Congruence`` keeps the classes; ``ValueClasses`` fills them with the values of two models by what
their nodes compute (:mod:`qgraph.proof.matching.operators`). Whoever proves two values equal merges
their classes, and all classes that become equal by congruence are merged too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from qgraph.graph.interface import Pair, interface
from qgraph.graph.scopes import graphs_of, subgraphs
from qgraph.numerics.values import fingerprint
from qgraph.ops.known_values import KnownValues, is_random
from qgraph.proof.matching.normalise import NormalisedModel
from qgraph.proof.matching.operators import (
    OperatorForm,
    common_form,
    described,
    forms,
    is_commutative,
    is_identity,
    joined,
    label,
    operands,
    rewritten_sum,
)
from qgraph.records import dataclass, field

_HASHED_BYTES = 1 << 20
"""Size in bytes above which constants are compared only if a proof needs it."""

Class: TypeAlias = int
"""Number of a class of equal values; :meth:`Congruence.find` returns its current number."""

_Key: TypeAlias = tuple[Hashable, tuple[Class, ...]]


@dataclass(frozen=True, eq=False)
class _Term:
    label: Hashable
    operands: tuple[Class, ...]
    result: Class


class Congruence:
    """Classes of equal values, closed under congruence: ``a = b`` implies ``f(a) = f(b)``.

    Attributes:
        absorbed: the classes that became part of others, in this order.
    """

    def __init__(self, commutative: Callable[[Hashable], bool]) -> None:
        self._commutative = commutative
        self._parent: list[Class] = []
        self._uses: list[list[_Term]] = []
        self._terms: dict[_Key, _Term] = {}
        self.absorbed: list[Class] = []

    def new(self) -> Class:
        """Return a new class."""
        self._parent.append(len(self._parent))
        self._uses.append([])
        return len(self._parent) - 1

    def find(self, member: Class) -> Class:
        """Return the number of the class that now contains ``member``."""
        root = member
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[member] != root:
            self._parent[member], member = root, self._parent[member]
        return root

    def apply(self, label: Hashable, operands: Sequence[Class]) -> Class:
        """Return the class of an operator's result; equal applications share it."""
        key = self._key(label, operands)
        known = self._terms.get(key)
        if known is not None:
            return known.result
        term = self._terms[key] = _Term(label, tuple(operands), self.new())
        for operand in set(key[1]):
            self._uses[operand].append(term)
        return term.result

    def merge(self, one: Class, other: Class) -> None:
        """Merge two classes, and all classes that become equal by congruence."""
        pending = [(one, other)]
        while pending:
            small, large = map(self.find, pending.pop())
            if small == large:
                continue
            if len(self._uses[small]) > len(self._uses[large]):
                small, large = large, small
            self._parent[small] = large
            self.absorbed.append(small)
            for term in self._uses[small]:
                known = self._terms.setdefault(self._key(term.label, term.operands), term)
                if known is not term:
                    pending.append((term.result, known.result))
                self._uses[large].append(term)
            self._uses[small] = []

    def _key(self, label: Hashable, operands: Sequence[Class]) -> _Key:
        roots = tuple(map(self.find, operands))
        return label, tuple(sorted(roots)) if self._commutative(label) else roots


@dataclass(eq=False)
class MatchedModel:
    """One of the two models while it is matched, with all nodes, also of subgraphs.

    ``classes`` has the class of each value visited so far.
    """

    normalised: NormalisedModel
    known: KnownValues
    classes: dict[ir.Value, Class] = field(default_factory=dict)
    nodes: list[ir.Node] = field(default_factory=list)
    _operands: dict[ir.Value, list[ir.Value]] = field(default_factory=dict)
    _forms: dict[ir.Node, list[OperatorForm]] = field(default_factory=dict)

    def forms(self, node: ir.Node) -> list[OperatorForm]:
        """Return all forms of a node."""
        if node not in self._forms:
            self._forms[node] = forms(node, self.normalised.imports)
        return self._forms[node]

    def operands(self, value: ir.Value) -> list[ir.Value]:
        """Return the operands of the elementwise operator that computes ``value``, else nothing."""
        if value not in self._operands:
            self._operands[value] = operands(value, self.known.has)
        return self._operands[value]

    def joined(self, value: ir.Value) -> list[ir.Value]:
        """Return :meth:`operands`, also of operators that combine codes of two tensors."""
        return joined(value, self.known.has)


class ValueClasses:
    """The classes of the values of two models; before any merge, by equal operators alone.

    Attributes:
        reference, candidate: the two sides.
        interface: the pairs of inputs and outputs.

    Raises:
        ModelError: the models have different inputs or outputs.
    """

    def __init__(self, reference: MatchedModel, candidate: MatchedModel) -> None:
        self.reference, self.candidate = reference, candidate
        self.interface = interface(reference.normalised.graph, candidate.normalised.graph)
        self._congruence = Congruence(is_commutative)
        self._constants: dict[Hashable, Class] = {}
        self._entered: dict[tuple[ir.Node, ir.Node], None] = {}
        for pair in self.interface.inputs + self.interface.defaults:
            self._share(pair)
        for side in (reference, candidate):
            self._enter(side, side.normalised.graph)

    def without_claims(self) -> ValueClasses:
        """Return the classes of the same models before any values were merged."""
        sides = (
            MatchedModel(side.normalised, side.known) for side in (self.reference, self.candidate)
        )
        bare = ValueClasses(*sides)
        for first, second in self._entered:
            bare._enter_bodies(first, second)
        return bare

    def merge(self, pair: Pair) -> None:
        """Assume that two values are equal."""
        ours, theirs = self.classes(pair)
        self._congruence.merge(ours, theirs)

    def equal(self, pair: Pair) -> bool:
        """Return whether two values are in one class."""
        ours, theirs = self.classes(pair)
        return ours == theirs

    def absorbed(self) -> list[Class]:
        """Return the classes that became part of others, in this order."""
        return self._congruence.absorbed

    def classes(self, pair: Pair) -> tuple[Class, Class]:
        """Return the class of each of two values."""
        return self.class_of(self.reference, pair[0]), self.class_of(self.candidate, pair[1])

    def class_of(self, side: MatchedModel, value: ir.Value) -> Class:
        """Return the class of a value of one side."""
        if value not in side.classes:
            side.classes[value] = self._initial(side, value)
        return self._congruence.find(side.classes[value])

    def _initial(self, side: MatchedModel, value: ir.Value) -> Class:
        """Return the class of a value without a node: a constant, or an unknown value."""
        tensor = value.const_value if side.known.has(value) else None
        if tensor is None or value.producer() is not None:
            return self._congruence.new()
        if tensor.nbytes > _HASHED_BYTES:
            return self._constants.setdefault(id(tensor), self._congruence.new())
        return self._class_of_constant(side, value)

    def _class_of_constant(self, side: MatchedModel, value: ir.Value) -> Class:
        """Return the class of a constant; its bits are the key."""
        array = side.known.array(value)
        if array is None:
            return self._congruence.new()
        return self._constants.setdefault(fingerprint(array), self._congruence.new())

    def _share(self, pair: Pair) -> None:
        shared = self._congruence.new()
        self.reference.classes[pair[0]] = self.candidate.classes[pair[1]] = shared

    def _enter(self, side: MatchedModel, graph: ir.Graph) -> None:
        nodes, imports = list(graph), side.normalised.imports
        side.nodes += nodes
        side.known.enter(nodes)
        for node in nodes:
            if is_identity(node, imports) and (source := node.inputs[0]) is not None:
                side.classes[node.outputs[0]] = self.class_of(side, source)
                continue
            if node.op_type == "Constant" and side.known.has(node.outputs[0]):
                side.classes[node.outputs[0]] = self._class_of_constant(side, node.outputs[0])
                continue
            # Random nodes equal no other; nodes with subgraphs are matched when they are compared.
            is_apart = is_random(node, imports) or bool(graphs_of(node))
            operator_forms = [] if is_apart else side.forms(node)
            for index, value in enumerate(node.outputs):
                result = side.classes[value] = self._congruence.new()
                for form in operator_forms:
                    used = [self.class_of(side, operand) for operand in form.operands]
                    same = self._congruence.apply((*form.label, index), used)
                    self._congruence.merge(result, same)

    def ways(self, pair: Pair) -> list[list[Pair]]:
        """Return lists of operand pairs whose equality implies that two results are equal.

        All pairs of one list must be equal. There is no list if the operators differ, and there are
        two if the operands may be swapped.
        """
        first, second = (value.producer() for value in pair)
        if first is None or second is None or self.mismatch(pair) is not None:
            return []
        one, other = self._common_operands(first, second)
        results = self._enter_bodies(first, second)
        ways = [[*zip(one.operands, other.operands, strict=False), *results]]
        if _may_swap(one):
            ways.append([*zip(one.operands, other.operands[::-1], strict=True), *results])
        return ways

    def mismatch(self, pair: Pair) -> str | None:
        """Return why the nodes that compute two values are not the same operator."""
        a, b = pair
        first, second = a.producer(), b.producer()
        ours, theirs = described(a), described(b)
        if first is None or second is None:
            return f"{ours} and {theirs} have no common source"
        if is_random(first, self.reference.normalised.imports):
            return f"{ours} and {theirs} are random"
        if self._common_form(first, second) is None:
            reason = rewritten_sum(first, second)
            if reason is not None:
                return reason
            sides = (first, self.reference), (second, self.candidate)
            labels = [label(node, side.normalised.imports) for node, side in sides]
            if labels[0][:2] != labels[1][:2]:
                return f"{ours} and {theirs} are different operators, for which there is no rule"
            return f"{ours} and {theirs} differ in {_difference(*labels)}"
        if list(first.outputs).index(a) != list(second.outputs).index(b):
            return f"{ours} and {theirs} are different outputs"
        if _graphs(first) != _graphs(second):
            return f"the graphs that {ours} and {theirs} run have different forms"
        return None

    def _operand_pairs(self, first: ir.Node, second: ir.Node) -> list[Pair]:
        """Return the pairs of operands of two equal operators, swapped if that makes more equal."""
        one, other = self._common_operands(first, second)
        ours, theirs = one.operands, other.operands
        if _may_swap(one):
            crossed = self.equal((ours[0], theirs[1])) or self.equal((ours[1], theirs[0]))
            straight = self.equal((ours[0], theirs[0])) or self.equal((ours[1], theirs[1]))
            ours = ours[::-1] if crossed and not straight else ours
        return list(zip(ours, theirs, strict=False))

    def _common_operands(
        self, first: ir.Node, second: ir.Node
    ) -> tuple[OperatorForm, OperatorForm]:
        """Return the common form of two nodes; if there is none, forms with all operands."""
        form = self._common_form(first, second)
        if form is not None:
            return form
        one, other = (
            OperatorForm((), tuple(value for value in node.inputs if value is not None))
            for node in (first, second)
        )
        return one, other

    def _common_form(
        self, first: ir.Node, second: ir.Node
    ) -> tuple[OperatorForm, OperatorForm] | None:
        return common_form(self.reference.forms(first), self.candidate.forms(second))

    def _enter_bodies(self, first: ir.Node, second: ir.Node) -> list[Pair]:
        """Return the pairs of results of the subgraphs of two nodes, for equal inputs."""
        is_new = (first, second) not in self._entered
        self._entered[first, second] = None
        results: list[Pair] = []
        for name, attribute in first.attributes.items():
            if not subgraphs(attribute):
                continue
            graphs = subgraphs(attribute), subgraphs(second.attributes[name])
            for ours, theirs in zip(*graphs, strict=True):
                if is_new:
                    for pair in zip(ours.inputs, theirs.inputs, strict=True):
                        self._share(pair)
                    self._enter(self.reference, ours)
                    self._enter(self.candidate, theirs)
                results += zip(ours.outputs, theirs.outputs, strict=True)
        return results


def _may_swap(form: OperatorForm) -> bool:
    return bool(form.label) and len(form.operands) == 2 and is_commutative(form.label)


def _graphs(node: ir.Node) -> list[tuple[str, int, int]]:
    return [
        (name, len(graph.inputs), len(graph.outputs))
        for name, attribute in sorted(node.attributes.items())
        for graph in subgraphs(attribute)
    ]


def _difference(ours: tuple[Hashable, ...], theirs: tuple[Hashable, ...]) -> str:
    """Return the attributes, or else the version, in which two labels of one operator differ."""
    one, other = (dict(of[-1]) if isinstance(of[-1], tuple) else {} for of in (ours, theirs))
    names = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    return f"attribute {', '.join(names)}" if names else "version or form"
