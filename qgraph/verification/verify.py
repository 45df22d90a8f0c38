"""Checking a certificate: what it says about two models, without the search that found it.

The regions are derived again from the names of their values, and have to consist of the nodes that
are named. Each is evaluated on the boxes that the certificate lists, which have to tile all inputs.
Then the outputs have to follow: two values are equal if the certificate says so, if they are equal
constants, or if one operator makes them from equal values.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph import storage
from qgraph.certification.certificate import ProofVerdict
from qgraph.certification.joint import JointCut, decide_joint
from qgraph.certification.regions import Cut, enumerate_cut
from qgraph.certification.zero_signs import Step, sightings
from qgraph.errors import EquivalenceError, ModelError, UnsupportedError
from qgraph.exactness import Exactness
from qgraph.matching.canonical import common_form, is_commutative, is_identity, label
from qgraph.matching.elementwise import operands as sources
from qgraph.matching.interface import conflict
from qgraph.matching.known_values import KnownValues
from qgraph.matching.plain import Plain, plain
from qgraph.matching.randomness import is_random
from qgraph.model import Source, load
from qgraph.numerics.values import fingerprint
from qgraph.proof.expression import Undecidable
from qgraph.report import SCHEMA
from qgraph.scopes import subgraphs
from qgraph.verification.box_check import HIGHEST, LOWEST, Functions
from qgraph.verification.tracing import Trace, write_out

Pair = tuple[ir.Value, ir.Value]
Array = npt.NDArray[Any]


def verify_file(certificate: Path, reference: Path, candidate: Path) -> str:
    """Check the certificate in a file against two model files, and their hashes.

    Returns: the verdict of the certificate.

    Raises:
        ModelError: the file is no certificate, or it is one of other files.
        EquivalenceError: a statement of it does not hold.
    """
    document = _read(certificate)
    for name, path in (("reference", reference), ("candidate", candidate)):
        stated = document[name].get("sha256")
        if stated is not None and stated != storage.sha256(path):
            raise ModelError(
                f"{certificate}: it is about a {name} of the hash {stated[:12]}..., but {path} is "
                "another file, expected the same. Name the models that were proved."
            )
    return verify(document, reference, candidate)


def verify(document: Mapping[str, Any], reference: Source, candidate: Source) -> str:
    """Check what a certificate says about two models; return its verdict.

    Args:
        document: what ``Certificate.to_json`` gave.
        reference: a path or a model.
        candidate: a path or a model.

    Raises:
        ModelError: the document is no certificate.
        EquivalenceError: a statement of it does not hold.
    """
    try:
        keep = bool(document["keep_inputs"])
        regions = [_Statement.of(region) for region in document["regions"]]
        verdict = str(ProofVerdict(document["verdict"]))
        exactness = document["exactness"]
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"The certificate has no usable {error}, expected what 'qgraph prove' writes. Write it "
            "again."
        ) from error
    sides = [_Side(copy) for copy in plain(load(reference), load(candidate), keep_inputs=keep)]
    checker = _Checker(sides[0], sides[1], regions)
    checker.check_regions()
    checker.check_verdict(verdict, exactness)
    checker.check_outputs()
    return verdict


def _read(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path}: cannot be read ({error}), expected a certificate of 'qgraph prove'."
        ) from error
    known = isinstance(document, dict) and document.get("command") == "prove"
    if not known or document.get("schema") != SCHEMA:
        raise ModelError(
            f"{path}: is no certificate of schema {SCHEMA}, expected what 'qgraph prove "
            "--certificate' writes. Write it again."
        )
    return dict(document)


@dataclass(frozen=True)
class _Statement:
    """A region as the certificate states it."""

    nodes: tuple[tuple[str, ...], tuple[str, ...]]
    values: tuple[str, str]
    entries: tuple[tuple[str, str], ...]
    verdict: str
    exactness: Exactness | None
    method: str
    differing: int
    infinity_differs: bool
    boxes: tuple[Mapping[str, Any], ...]
    witness: Mapping[str, Any] | None

    @classmethod
    def of(cls, region: Mapping[str, Any]) -> _Statement:
        """Read a region of the document."""
        return cls(
            (tuple(region["reference_nodes"]), tuple(region["candidate_nodes"])),
            (str(region["reference_value"]), str(region["candidate_value"])),
            tuple((str(a), str(b)) for a, b in region["entries"]),
            str(ProofVerdict(region["verdict"])),
            None if region["exactness"] is None else Exactness(region["exactness"]),
            str(region["method"]),
            int(region["differing_inputs"]),
            bool(region["infinity_differs"]),
            tuple(region["boxes"]),
            region["witness"],
        )

    def fails(self, reason: str) -> EquivalenceError:
        """Return the error to raise."""
        return EquivalenceError(
            f"The certificate does not hold: region {self.values[0]!r} -> {self.values[1]!r}: "
            f"{reason}, expected what the certificate says. Prove the models anew."
        )


@dataclass
class _Side:
    """A model, its values by name, and which of them are equal by form."""

    plain: Plain
    known: KnownValues = field(init=False)
    values: dict[str, ir.Value] = field(default_factory=dict)
    nodes: list[ir.Node] = field(default_factory=list)
    forms: dict[ir.Value, int] = field(default_factory=dict)
    _numbers: dict[Hashable, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known = KnownValues(self.plain.imports)
        self._enter(self.plain.graph)

    def _enter(self, graph: ir.Graph) -> None:
        for value in (*graph.inputs, *graph.initializers.values()):
            self.values.setdefault(str(value.name), value)
        for node in graph:
            self.nodes.append(node)
            self.known.enter([node])
            for value in node.outputs:
                self.values.setdefault(str(value.name), value)
            for attribute in node.attributes.values():
                for inner in subgraphs(attribute):
                    self._enter(inner)

    def form(self, value: ir.Value) -> int:
        """Return a number that two values of the model share only if they are equal."""
        stack = [value]
        while stack:
            top = stack[-1]
            node = top.producer()
            closed = node is None or top in self.forms or self._is_apart(node)
            pending = [] if closed or node is None else self._pending(node)
            if pending:
                stack += pending
                continue
            source = self.origin(top)
            if source is not top and source in self.forms:
                self.forms[top] = self.forms[source]
            if top not in self.forms:
                self.forms[top] = self._numbers.setdefault(self._key(top), len(self._numbers))
            stack.pop()
        return self.forms[value]

    def origin(self, value: ir.Value) -> ir.Value:
        """Return what a value is handed on from unchanged."""
        node = value.producer()
        while node is not None and is_identity(node, self.plain.imports):
            if node.inputs[0] is None:
                break
            value = node.inputs[0]
            node = value.producer()
        return value

    def _pending(self, node: ir.Node) -> list[ir.Value]:
        return [value for value in node.inputs if value is not None and value not in self.forms]

    def _is_apart(self, node: ir.Node) -> bool:
        graphs = any(subgraphs(attribute) for attribute in node.attributes.values())
        return graphs or is_random(node, self.plain.imports)

    def _key(self, value: ir.Value) -> Hashable:
        node = value.producer()
        if node is None or self._is_apart(node) or node.op_type == "Constant":
            array = self.known.array(value) if self.known.has(value) else None
            if array is None:
                return id(value)
            return fingerprint(array)
        numbers = tuple(self.forms[operand] for operand in node.inputs if operand is not None)
        return label(node, self.plain.imports), node.outputs.index(value), numbers

    def sources(self, value: ir.Value) -> list[ir.Value]:
        """Return what an elementwise operator makes ``value`` of."""
        return sources(value, self.known.has)


class _Checker:
    """Goes through the statements, then from the outputs back to the inputs."""

    def __init__(self, reference: _Side, candidate: _Side, statements: list[_Statement]) -> None:
        self._sides = reference, candidate
        self._statements = statements
        self._claimed: dict[tuple[int, int], Sequence[Pair]] = {}
        self._steps: tuple[list[Step], list[Step]] = ([], [])
        self._starts: tuple[set[ir.Value], set[ir.Value]] = (set(), set())
        self._inputs = _by_name("input", *(_free_inputs(side.plain) for side in self._sides))
        self._outputs = _by_name("output", *(side.plain.graph.outputs for side in self._sides))

    def check_regions(self) -> None:
        """Check every statement by itself.

        Raises:
            EquivalenceError: one does not hold.
        """
        for statement in self._statements:
            if statement.verdict == "undecided":
                self._claim(statement, ())
                continue
            try:
                if statement.method == "constant":
                    self._check_constants(statement)
                else:
                    self._check_region(statement)
            except (UnsupportedError, Undecidable) as error:
                raise statement.fails(str(error)) from error
            except (IndexError, KeyError, TypeError, ValueError) as error:
                raise statement.fails(f"it cannot be read ({error})") from error

    def check_verdict(self, verdict: str, exactness: str | None) -> None:
        """Check that the verdict and the rung follow from the statements.

        Raises:
            EquivalenceError: it does not.
        """
        found = {statement.verdict for statement in self._statements}
        worst = next((v for v in ("different", "undecided") if v in found), "proved")
        if verdict != worst:
            raise EquivalenceError(
                f"The certificate does not hold: its regions add up to {worst}, but its verdict is "
                f"{verdict}. Prove the models anew."
            )
        rungs = [statement.exactness for statement in self._statements]
        known = [rung for rung in rungs if rung is not None]
        lowest = None if len(known) < len(rungs) else str(min(known, default=Exactness.BITS))
        if exactness != lowest:
            raise EquivalenceError(
                f"The certificate does not hold: its regions are equal in {lowest}, but it states "
                f"{exactness}. Prove the models anew."
            )
        if verdict == "proved":
            self._check_zero_signs()

    def check_outputs(self) -> None:
        """Check that the outputs are equal if the regions are.

        Raises:
            EquivalenceError: they do not follow.
        """
        pending = [pair for pair in self._inputs if conflict(*pair) is not None]
        pending += self._outputs
        axioms = {(id(a), id(b)) for a, b in self._inputs if conflict(a, b) is None}
        seen: set[tuple[int, int]] = set()
        while pending:
            a, b = pending.pop()
            a, b = self._origins(a, b)
            if (id(a), id(b)) in axioms | seen:
                continue
            seen.add((id(a), id(b)))
            key = self._sides[0].form(a), self._sides[1].form(b)
            if key in self._claimed:
                pending += self._claimed[key]
            elif not self._are_equal_constants(a, b):
                pending += self._follow(a, b, axioms)

    def _origins(self, a: ir.Value, b: ir.Value) -> Pair:
        return self._sides[0].origin(a), self._sides[1].origin(b)

    def _claim(self, statement: _Statement, entries: Sequence[Pair]) -> None:
        a, b = (
            self._value(statement, side, name)
            for side, name in zip(self._sides, statement.values, strict=True)
        )
        self._claimed[self._sides[0].form(a), self._sides[1].form(b)] = entries
        if statement.exactness != Exactness.BITS:
            self._starts[0].add(a)
            self._starts[1].add(b)

    def _value(self, statement: _Statement, side: _Side, name: str) -> ir.Value:
        if name not in side.values:
            raise statement.fails(f"there is no value {name!r}")
        return side.values[name]

    def _check_constants(self, statement: _Statement) -> None:
        arrays = []
        for side, name in zip(self._sides, statement.values, strict=True):
            array = side.known.array(self._value(statement, side, name))
            if array is None:
                raise statement.fails(f"{name!r} is not constant")
            arrays.append(array)
        a, b = arrays
        if a.shape != b.shape or a.dtype != b.dtype:
            raise statement.fails("the constants have different types or shapes")
        if statement.exactness == Exactness.BITS and a.tobytes() != b.tobytes():
            raise statement.fails("the constants differ in bits")
        with np.errstate(all="ignore"):
            same = np.asarray((a == b) | ((a != a) & (b != b)))
        differing = int(np.count_nonzero(~same))
        if differing != statement.differing:
            raise statement.fails(f"{differing} elements differ, not {statement.differing}")
        self._check_counts(statement, differing)
        self._claim(statement, ())

    def _pair(self, statement: _Statement, names: tuple[str, str]) -> Pair:
        return (
            self._value(statement, self._sides[0], names[0]),
            self._value(statement, self._sides[1], names[1]),
        )

    def _check_joint(self, statement: _Statement) -> None:
        entries = tuple(self._pair(statement, names) for names in statement.entries)
        region = JointCut(entries, self._pair(statement, statement.values))
        try:
            found = decide_joint(self._sides, region)
        except Undecidable as reason:
            raise statement.fails(reason.reason) from reason
        self._check_counts(statement, found.differing)
        self._check_rung(statement, found.rung)
        self._claim(statement, entries)

    def _check_region(self, statement: _Statement) -> None:
        if len(statement.entries) > 1:
            self._check_joint(statement)
            return
        if not statement.entries:
            raise statement.fails("it has no entry")
        entry = self._pair(statement, statement.entries[0])
        exit_ = self._pair(statement, statement.values)
        parts = []
        for side, start, end, names in zip(self._sides, entry, exit_, statement.nodes, strict=True):
            nodes = _between(end, start, side)
            if sorted(_name(node) for node in nodes) != sorted(names):
                raise statement.fails("it does not consist of the nodes that are named")
            parts.append(nodes)
        shape = _shape(entry)
        if statement.method == "exhaustive":
            region = Cut(entry, exit_, tuple(parts[0]), tuple(parts[1]), shape)
            found = enumerate_cut(self._sides, region)
            self._check_counts(statement, found.differing)
            self._check_rung(statement, found.rung)
            tells = found.tells_zeros_apart
        else:
            tells = self._check_boxes(statement, entry, exit_, parts, shape)
        self._claim(statement, [entry])
        for place in range(2):
            self._steps[place].append(
                Step(entry[place], exit_[place], frozenset(parts[place]), tells)
            )

    def _check_boxes(
        self,
        statement: _Statement,
        entry: Pair,
        exit_: Pair,
        parts: Sequence[Sequence[ir.Node]],
        shape: tuple[int | None, ...] | None,
    ) -> bool:
        """Check a region on its boxes; return whether it tells the zeros apart."""
        stated = {value.dtype for value in entry} - {None}
        if (stated or {side.plain.float_type for side in self._sides}) != {ir.DataType.FLOAT}:
            raise statement.fails("its data is not known to be float32")
        trace = Trace()
        roots = [
            write_out(trace, nodes, x, y, shape, side.known.array).number
            for side, nodes, x, y in zip(self._sides, parts, entry, exit_, strict=True)
        ]
        bits = statement.exactness == Exactness.BITS
        both = Functions(trace.lines, (roots[0], roots[1]), bits=bits)
        kinds = {
            trace.type_of(root) if value.dtype is None else value.dtype.name
            for root, value in zip(roots, exit_, strict=True)
        }
        if len(kinds) > 1:
            raise statement.fails("the results have different types")
        _check_shapes(statement, trace, roots, shape)
        if statement.method == "none":
            self._check_witness(statement, both)
        elif roots[0] != roots[1]:
            self._check_tiles(statement, both)
            self._check_special(statement, both)
        elif statement.differing:
            raise statement.fails("both sides are the same function")
        zeros = np.array([0.0, -0.0], np.float32)
        tells = False
        for root in roots:
            alone = Functions(trace.lines, (root, root), bits=False)
            tells |= alone.differs_between(zeros)
        return tells

    def _check_tiles(self, statement: _Statement, both: Functions) -> None:
        kinds = both.kinds()
        stated = {int(boxes["channel"]): int(boxes["count"]) for boxes in statement.boxes}
        if stated != kinds:
            raise statement.fails("its boxes leave channels out")
        columns: list[list[Array]] = [[], [], [], []]
        differing = 0
        for boxes in statement.boxes:
            starts = np.cumsum(_integers(boxes["starts"]))
            tiled = starts.size and starts[0] == LOWEST and (np.diff(starts) > 0).all()
            if not tiled or starts[-1] > HIGHEST:
                raise statement.fails("its boxes do not tile all inputs")
            ends = np.append(starts[1:] - 1, HIGHEST)
            flags = np.zeros(len(starts), np.bool_)
            flags[_integers(boxes["differing"])] = True
            differing += int((ends - starts + 1)[flags].sum()) * int(boxes["count"])
            channel = np.full(len(starts), int(boxes["channel"]))
            for column, part in zip(columns, (channel, starts, ends, flags), strict=True):
                column.append(part)
        self._check_counts(statement, differing)
        if not both.holds(*(np.concatenate(column) for column in columns)):
            raise statement.fails("its boxes do not have the results that it states")

    def _check_counts(self, statement: _Statement, differing: int) -> None:
        if differing != statement.differing:
            raise statement.fails(f"{differing} inputs differ, not {statement.differing}")
        rung = statement.exactness
        equal = rung is not None and rung >= Exactness.VALUES
        if statement.verdict == "proved" and not equal:
            raise statement.fails(f"it is called proved, but its rung is {rung}")
        if equal and (differing or statement.infinity_differs):
            raise statement.fails("it is called equal, but inputs differ")

    def _check_rung(self, statement: _Statement, found: Exactness | None) -> None:
        if found is None or statement.exactness is None or statement.exactness > found:
            raise statement.fails(f"it holds up to {found} only")

    def _check_witness(self, statement: _Statement, both: Functions) -> None:
        witness = statement.witness
        if statement.verdict != "different" or witness is None:
            raise statement.fails("it is not said how it was decided")
        channel = np.array([int(witness["channel"] or 0)])
        same = both.equal_at(channel, np.array([witness["input"]], np.float32))
        if same is None or same.any():
            raise statement.fails("its witness shows no difference")

    def _check_special(self, statement: _Statement, both: Functions) -> None:
        channels = np.array(list(both.kinds()), np.int64)
        infinite = np.array([np.inf, -np.inf], np.float32)
        x = np.repeat(infinite, len(channels))
        same = both.equal_at(np.tile(channels, 2), x)
        if not statement.infinity_differs and (same is None or not same.all()):
            raise statement.fails("the results at infinity differ")
        if statement.exactness == Exactness.BITS:
            same = both.equal_at(channels, np.full(len(channels), np.nan, np.float32))
            if same is None or not same.all():
                raise statement.fails("the results for NaN differ")

    def _check_zero_signs(self) -> None:
        for side, starts, steps in zip(self._sides, self._starts, self._steps, strict=True):
            found = sightings(side.nodes, side.plain.graph.outputs, starts, steps)
            if found:
                node, reason = found[0]
                raise EquivalenceError(
                    f"The certificate does not hold: node {_name(node)!r}: {reason}. Prove the "
                    "models anew."
                )

    def _are_equal_constants(self, a: ir.Value, b: ir.Value) -> bool:
        if not (self._sides[0].known.has(a) and self._sides[1].known.has(b)):
            return False
        arrays = self._sides[0].known.array(a), self._sides[1].known.array(b)
        if arrays[0] is None or arrays[1] is None:
            return False
        return fingerprint(arrays[0]) == fingerprint(arrays[1])

    def _follow(self, a: ir.Value, b: ir.Value, axioms: set[tuple[int, int]]) -> list[Pair]:
        """Return the pairs on which the equality of two results of one operator rests."""
        first, second = a.producer(), b.producer()
        if first is None or second is None or not self._are_one_operator(first, second):
            raise self._gap(a, b)
        imports = [side.plain.imports for side in self._sides]
        found = common_form(first, imports[0], second, imports[1])
        if found is None or list(first.outputs).index(a) != list(second.outputs).index(b):
            raise self._gap(a, b)
        ours, theirs = (form.operands for form in found)
        commutes = len(ours) == 2 and is_commutative(found[0].label)
        if commutes and not self._fit(ours[0], theirs[0]):
            theirs = theirs[::-1] if self._fit(ours[0], theirs[1]) else theirs
        pairs = list(zip(ours, theirs, strict=True))
        for name, attribute in first.attributes.items():
            graphs = subgraphs(attribute), subgraphs(second.attributes[name])
            for mine, other in zip(*graphs, strict=True):
                inner = zip(mine.inputs, other.inputs, strict=True)
                axioms.update((id(x), id(y)) for x, y in inner)
                pairs += zip(mine.outputs, other.outputs, strict=True)
        return pairs

    def _fit(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether two values look as if they belonged together."""
        a, b = self._origins(a, b)
        if any((a, b) == pair for pair in self._inputs) or self._are_equal_constants(a, b):
            return True
        if (self._sides[0].form(a), self._sides[1].form(b)) in self._claimed:
            return True
        first, second = a.producer(), b.producer()
        if first is None or second is None or not self._are_one_operator(first, second):
            return False
        return str(a.name) == str(b.name)

    def _are_one_operator(self, first: ir.Node, second: ir.Node) -> bool:
        imports = [side.plain.imports for side in self._sides]
        if is_random(first, imports[0]):
            return False
        one, other = (
            [
                (name, len(graph.inputs), len(graph.outputs))
                for name, attribute in sorted(node.attributes.items())
                for graph in subgraphs(attribute)
            ]
            for node in (first, second)
        )
        return common_form(first, imports[0], second, imports[1]) is not None and one == other

    def _gap(self, a: ir.Value, b: ir.Value) -> EquivalenceError:
        return EquivalenceError(
            f"The certificate does not hold: nothing in it makes {a.name!r} equal to {b.name!r}, "
            "which the outputs rest on. Prove the models anew."
        )


def _free_inputs(side: Plain) -> list[ir.Value]:
    return [value for value in side.graph.inputs if not value.is_initializer()]


def _by_name(kind: str, ours: Sequence[ir.Value], theirs: Sequence[ir.Value]) -> list[Pair]:
    named = {str(value.name): value for value in theirs}
    names = {str(value.name) for value in ours}
    if len(names) == len(ours) == len(theirs) and names == set(named):
        return [(value, named[str(value.name)]) for value in ours]
    if len(ours) != len(theirs):
        raise ModelError(
            f"The models have {len(ours)} and {len(theirs)} {kind}s, expected as many. Name the "
            "models that were proved."
        )
    return list(zip(ours, theirs, strict=True))


def _between(end: ir.Value, start: ir.Value, side: _Side) -> list[ir.Node]:
    """Return the nodes that make ``end`` of ``start``, operands first."""
    wanted: set[ir.Node] = set()
    pending = [end]
    while pending:
        value = pending.pop()
        node = value.producer()
        if value is not start and node not in wanted:
            found = side.sources(value)
            if node is None or not found:
                raise UnsupportedError(f"{value.name!r} does not come from {start.name!r}")
            wanted.add(node)
            pending += found
    return [node for node in side.nodes if node in wanted]


def _shape(entry: Sequence[ir.Value]) -> tuple[int | None, ...] | None:
    known = [value.shape for value in entry if value.shape is not None]
    sizes = [[d if isinstance(d, int) else None for d in shape.dims] for shape in known]
    if not sizes:
        return None
    if len({len(size) for size in sizes}) > 1:
        return tuple(sizes[0])
    columns = itertools.zip_longest(*sizes)
    return tuple(next((d for d in column if d is not None), None) for column in columns)


def _check_shapes(
    statement: _Statement,
    trace: Trace,
    roots: Sequence[int],
    shape: tuple[int | None, ...] | None,
) -> None:
    """See that the parameters of both sides give the result one shape."""
    results = []
    for root in roots:
        sizes = trace.shape_of(root)
        rank = max(len(sizes), len(shape or ()))
        data = (1,) * (rank - len(shape or ())) + tuple(shape or ())
        whole = (1,) * (rank - len(sizes)) + sizes
        results.append(tuple(b if b != 1 else a for a, b in zip(data, whole, strict=True)))
        if shape is None:
            first = next((i for i, size in enumerate(sizes) if size != 1), len(sizes))
            results[-1] = tuple(sizes[first:])
    if results[0] != results[1]:
        raise statement.fails("the results have different shapes")


def _integers(text: str) -> npt.NDArray[np.int64]:
    return np.array([int(part) for part in text.split()], np.int64)


def _name(node: ir.Node) -> str:
    return node.name or str(node.outputs[0].name)
