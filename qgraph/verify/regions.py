"""Decide regions of a certificate, by the definitions of their operators, and then the outputs.

Every value of both models gets a class; values of one class are equal. The same operator on
operands of the same classes gives results of the same class. Equal constants share a class. A
region puts its two values into one class if its entries are in one class each. The values of a
class may be equal except for the signs of zeros, as long as no operator distinguishes -0 from +0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.certificate import RegionVerdict
from qgraph.errors import EquivalenceError, UnsupportedError
from qgraph.exactness import Exactness, Method, PartFinding, ProofVerdict, Status
from qgraph.graph.interface import Pair
from qgraph.graph.scopes import node_name
from qgraph.numerics.float32 import to_keys
from qgraph.numerics.formats import all_values
from qgraph.numerics.values import compare_values, fingerprint
from qgraph.reasons import REWRITTEN, VERDICT_NOT_CHECKED
from qgraph.records import dataclass, replace
from qgraph.verify.functions import Both, Function
from qgraph.verify.reading import (
    FAILURES,
    SWAPPABLE,
    Reading,
    confirm,
    forgets_zero_signs,
    graphs_of,
    is_apart,
    meaning,
    merged,
    need,
    shape_of,
    tells_zeros_apart,
)

Sides = tuple[Reading, Reading]
_Recomputed = tuple[dict[str, Any], bool, bool]
"""Recomputed fields; whether -0 and +0 have different results; whether the sign of 0 may differ."""

_STATED = frozenset(
    {"reference_nodes", "candidate_nodes", "reference_value", "candidate_value", "entries"}
    | {"verdict", "witness", "witness_channel", "reason", "conditions"}
    | {"boxes", "cases", "bound"}
)
"""Fields of a region that are not recomputed: names, witness, how the prover divided inputs."""

_MOST_BITS = 16
_SPECIALS = np.array([np.inf, -np.inf, np.nan, -np.nan], np.float32)


@dataclass(frozen=True)
class Equality:
    """A pair of values that are equal if the entries are, which constants do not have.

    Entries -0 and +0 may have different results, and the values may be zeros of different signs.
    """

    values: Pair
    entries: tuple[Pair, ...]
    tells_zeros_apart: bool
    loses_signs: bool


def check(
    region: RegionVerdict, sides: Sides, *, as_written: bool
) -> tuple[PartFinding, Equality | None]:
    """Return the finding about a region, and the equality that it proves.

    It may have more nodes than it names, unless it names those of the models ``as_written``.
    """
    if region.verdict is not ProofVerdict.PROVED or region.method is Method.BOUND:
        return not_decided(region), None
    proved: list[Equality] = []
    finding = finding_of(lambda: proved.append(_check(region, sides, as_written)))
    return finding, next(iter(proved), None)


def finding_of(check: Callable[[], None]) -> PartFinding:
    """Return the finding about a region from the exception that its check raises."""
    try:
        check()
    except EquivalenceError as error:
        return PartFinding(Status.REFUTED, str(error))
    except FAILURES as error:
        return PartFinding(Status.UNCHECKED, *error.args[:1])
    return PartFinding(Status.CHECKED)


def not_decided(region: RegionVerdict) -> PartFinding:
    """Return the finding about a region that the checker cannot decide."""
    why = region.reason or f"by {region.method}"
    reason = f"the checker does not decide it: {region.verdict}, {why}"
    return PartFinding(Status.UNCHECKED, VERDICT_NOT_CHECKED(reason))


def with_defaults(region: RegionVerdict, names: Collection[str]) -> RegionVerdict:
    """Return a region with some fields of another region, and defaults for the rest."""
    return RegionVerdict(**{name: getattr(region, name) for name in names})


def _check(region: RegionVerdict, sides: Sides, as_written: bool) -> Equality:
    """Return the equality that a region states, after checking all its fields."""
    names = (region.reference_value, region.candidate_value), *region.entries
    exit_, *entries = (_named(sides, pair, as_written) for pair in names)
    need(len(entries) <= 1, "it has several inputs")
    parts, stated = [], (region.reference_nodes, region.candidate_nodes)
    for place, (side, end) in enumerate(zip(sides, exit_, strict=True)):
        nodes = side.between(end, [entries[0][place]]) if entries else [end.producer()]
        need(nodes is not None, REWRITTEN("it is not computed from its entry alone"))
        parts.append([node for node in nodes or () if node is not None])
        own = sorted(map(node_name, parts[-1]))
        is_part = not as_written and set(stated[place]) <= set(own)
        is_named = is_part or own == sorted(stated[place])
        need(is_named, REWRITTEN("it does not consist of the named nodes"))
    if entries:
        fields, tells_zeros_apart, lossy = _of_data(region, sides, exit_, entries[0], parts)
    else:
        fields, tells_zeros_apart, lossy = _of_constants(region, sides, exit_)
    exactness = Exactness.VALUES if lossy else Exactness.BITS
    expected = replace(with_defaults(region, _STATED), exactness=exactness, counted=True, **fields)
    for name, actual in vars(expected).items():
        found = getattr(region, name)
        text = f"{name.replace('_', ' ')}: {actual!s:.60} was found, not {found!s:.60}"
        confirm(actual == found, text)
    return Equality(exit_, tuple(entries), tells_zeros_apart, lossy)


def _named(sides: Sides, names: tuple[str, str], as_written: bool) -> Pair:
    found = [side.named(name) for side, name in zip(sides, names, strict=True)]
    confirm(all(found) or not as_written, f"a model has no value of the names {names}")
    need([*map(len, found)] == [1, 1], REWRITTEN(f"there are no values {names}, or several"))
    return found[0][0], found[1][0]


def _of_constants(region: RegionVerdict, sides: Sides, exit_: Pair) -> _Recomputed:
    is_known = all(side.has(value) for side, value in zip(sides, exit_, strict=True))
    need(is_known, "the checker does not know its values to be constant")
    a, b = (side.array(value) for side, value in zip(sides, exit_, strict=True))
    if a is None or b is None or a.dtype.kind in "OSU":
        raise UnsupportedError("the checker cannot compute a constant")
    is_like = (a.shape, a.dtype) == (b.shape, b.dtype)
    confirm(is_like, "the constants have different types or shapes")
    comparison = compare_values(a, b)
    confirm(not comparison.differing, f"the constants differ in {comparison.differing} elements")
    index, signs = comparison.index, comparison.zero_sign
    confirm(not region.witness_channel, "a witness among constants has no channel")
    _check_witness(region, [] if index is None else [index, a.flat[index], b.flat[index]])
    return {"method": Method.CONSTANT, "zero_sign_inputs": signs}, False, signs > 0


def _of_data(
    region: RegionVerdict, sides: Sides, exit_: Pair, entry: Pair, parts: Sequence[list[ir.Node]]
) -> _Recomputed:
    types = [{value.dtype for value in pair} for pair in (entry, exit_)]
    are_alike = all(len(pair - {None}) <= 1 for pair in types)
    confirm(are_alike, "values that should be equal have different types")
    dtype = entry[0].dtype
    if dtype is None or None in types[0] | types[1]:
        raise UnsupportedError("the checker does not know a type")
    shape = merged(*map(shape_of, entry))
    of_sides = zip(sides, parts, entry, exit_, strict=True)
    both = Both(*(Function(side, part, x, y, shape) for side, part, x, y in of_sides))
    is_float = dtype is ir.DataType.FLOAT
    is_tried = is_float and region.method is Method.EXHAUSTIVE
    need(not is_tried, "its proof tries all inputs one by one, which the checker does not do")
    is_narrow = dtype.name not in ("BOOL", "STRING") and dtype.bitwidth <= _MOST_BITS
    need(is_float or is_narrow, f"the checker does not decide data of type {dtype.name}")
    inputs = _SPECIALS if is_float else all_values(dtype.name).astype(np.float32)
    found = both.compare(to_keys(inputs)[None])
    nan = np.isnan(found.x)
    found.expect_equal(~nan)
    nan_differs = bool((found.is_unequal & nan).any())
    signs = tried = int((found.signs & ~nan).sum())
    if is_float:
        signs = both.count_signs([key for boxes in region.boxes for key in boxes.starts])
    need(is_float or not found.tied.any(), "ONNX does not define the sign of a zero result")
    lossy = signs + tried > 0
    _check_shown(region, both, is_needed=lossy or (is_float and nan_differs))
    method = Method.INTERVALS if is_float else Method.EXHAUSTIVE
    fields = {
        "method": Method.CONGRUENCE if region.method is Method.CONGRUENCE else method,
        "zero_sign_inputs": signs,
        "nan_differs": nan_differs,
    }
    zeros = both.compare(to_keys(np.array([[0, -0.0]], np.float32)))
    plus, minus = np.stack([zeros.reference, zeros.candidate]).reshape(2, 2, -1).swapaxes(0, 1)
    tells_zeros_apart = not np.array_equal(plus, minus, equal_nan=True)
    return fields, tells_zeros_apart, lossy or nan_differs


def _check_shown(region: RegionVerdict, both: Both, *, is_needed: bool) -> None:
    """Check that there is a witness if one is needed, and that its results are as stated."""
    witness = region.witness
    shown: list[float] = []
    if witness is not None and is_needed:
        confirm(not region.witness_channel, "its witness names no channel of the region")
        found = both.compare(to_keys(np.array([[witness.input]], np.float32)))
        confirm(found.is_unequal.any(), "the sides do not differ on its witness")
        shown = [float(column[0]) for column in found[:3]]
    confirm(shown or not is_needed, "it has no witness")
    _check_witness(region, shown)


def _check_witness(region: RegionVerdict, shown: Sequence[float]) -> None:
    witness = region.witness
    stated = [] if witness is None else [witness.input, witness.reference, witness.candidate]
    texts = [", ".join(repr(float(number)) for number in numbers) for numbers in (stated, shown)]
    # as texts, NaN equals NaN, and -0 differs from +0
    confirm(texts[0] == texts[1], f"its witness is [{texts[0]}], but [{texts[1]}] was found")


class EqualValues:
    """The classes of the values of two models, by the equalities of regions and of inputs."""

    def __init__(
        self, sides: tuple[Reading, Reading], claims: Sequence[Equality], inputs: Sequence[Pair]
    ) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._classes: dict[ir.Value, int] = {}
        self._merged: dict[int, int] = {}
        self._claims: dict[ir.Value, list[Equality]] = {}
        self._of_reference: set[int | None] = set()
        self._lossy: set[int] = set()
        self._loses_signs = any(claim.loses_signs for claim in claims)
        for index, pair in enumerate(inputs):
            self._classes |= dict.fromkeys(pair, self._number(("input", index)))
        self._read(sides[0], sides[0].graph)
        for claim in claims:
            self._claims.setdefault(claim.values[1], []).append(claim)
        self._of_reference = {None, *self._classes.values()}
        self._read(sides[1], sides[1].graph)

    def difference(self, outputs: Sequence[Pair]) -> str | None:
        """Return why the outputs are not proved equal; None if they are."""
        apart = (a.name for a, b in outputs if self._class(a) != self._class(b))
        text = "no region proves output {!r} equal in both models"
        return next((text.format(name) for name in apart), None)

    def are_equal(self, one: ir.Value | None, other: ir.Value | None) -> bool:
        """Return whether a value of the reference and one of the candidate are in one class."""
        return one is not None and other is not None and self._class(one) == self._class(other)

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _class(self, value: ir.Value) -> int:
        if value not in self._classes:
            self._classes[value] = self._number(id(value))
        return self._classes[value]

    def _read(self, side: Reading, graph: ir.Graph) -> None:
        for value in graph.initializers.values():
            array = None if value.is_graph_input() else side.array(value)
            if array is not None:
                self._classes[value] = self._number(fingerprint(array))
        for node in graph:
            values = [value for value in node.inputs if value is not None]
            lossy = self._lossy.intersection(map(self._class, values))
            lossy = set() if forgets_zero_signs(node) else lossy
            lossy |= {0} if self._loses_signs and graphs_of(node) else set()
            key = self._key(side, node)
            for index, value in enumerate(node.outputs):
                array, natural = side.array(value), self._number((*key, index))
                if (node.domain, node.op_type) == ("", "Identity") and node.inputs[0] is not None:
                    natural = self._class(node.inputs[0])
                own = natural if array is None else self._number(fingerprint(array))
                if array is not None and (not self._of_reference or own in self._of_reference):
                    self._merged.setdefault(natural, own)  # the class of the constant it computes
                else:
                    own = self._merged.get(natural, natural)
                    is_real = value.dtype is None or value.dtype.is_floating_point()
                    self._lossy |= {own} if lossy and is_real else set()
                self._classes[value] = own
                for claim in self._claims.get(value, ()):
                    entries = self._lossy.intersection(self._class(a) for a, _ in claim.entries)
                    is_equal = all(self.are_equal(*entry) for entry in claim.entries)
                    if is_equal and not (claim.tells_zeros_apart and entries):
                        self._merged[natural] = own = self._class(claim.values[0])
                        self._lossy |= {own} if claim.loses_signs or entries else set()
                        self._classes[value] = own

    def _key(self, side: Reading, node: ir.Node) -> tuple[Hashable, ...]:
        """Return a key that determines the results of a node, after reading its subgraphs."""
        graphs = graphs_of(node)
        operands = [None if value is None else self._class(value) for value in node.inputs]
        lossy = [index for index, number in enumerate(operands) if number in self._lossy]
        is_open = any(tells_zeros_apart(node, index) for index in lossy)
        if is_open or (is_apart(node, side.imports) and not graphs):
            return ("apart", id(node))
        if node.domain == "" and node.op_type in SWAPPABLE:
            operands = sorted(operands, key=str)
        key: tuple[Hashable, ...] = (meaning(node, side.imports), *operands)
        for number, graph in enumerate(graphs):
            for index, value in enumerate(graph.inputs):
                self._classes[value] = self._number((*key, "inner", number, index))
                self._lossy |= {self._classes[value]} if self._loses_signs else set()
            self._read(side, graph)
            key = (*key, len(graph.inputs), *map(self._class, graph.outputs))
        return key
