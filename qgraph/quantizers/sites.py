"""Find all quantizers of a model.

A quantizer may consist of several nodes of any operators. A search starts at every operator that
can be the core of a quantizer, and finds the largest region around it that is a quantizer: a chain
of float operators, or a quantizer of any dialect with float operators before and after it. The
readers of the dialects read single nodes, and Q/DQ pairs without operators around them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.graph.constants import constant, constant_stream, is_constant
from qgraph.graph.inference.walk import Facts, inferred
from qgraph.graph.opset.versions import only_float_type
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import PORTABLE, nodes_of
from qgraph.graph.sizes import fixed_sizes
from qgraph.proof.functions.expression import FLOAT
from qgraph.proof.functions.lowering import Forms
from qgraph.proof.functions.pair import single_scale
from qgraph.quantizers.dialects.dialect import DIALECTS, Dialect, Refusal, Site, shape_of
from qgraph.quantizers.dialects.onnx import rounding_site, wraps_around
from qgraph.quantizers.on_codes import is_dynamic
from qgraph.quantizers.quantizer import Affine, Quantizer, arrays_of
from qgraph.quantizers.recognition.regions import (
    UseDefGraph,
    connected_to_constants,
    is_elementwise,
    searched,
)
from qgraph.reasons import NO_OPERATOR
from qgraph.records import by_key

if TYPE_CHECKING:
    from qgraph.quantizers.recognition.chains import Memory
    from qgraph.quantizers.recognition.steps import Kinds, Notation, Step

PLAIN = "onnx"

_CORES = {
    **dict.fromkeys(["Round", "Floor", "Ceil", "Where", "Cast"], PLAIN),
    **dict.fromkeys(["QuantizeLinear", "DequantizeLinear"], "qdq"),
    **dict.fromkeys(["Quant", "IntQuant", "BipolarQuant", "FloatQuant", "Trunc"], "qonnx"),
    "FakeQuantize": "openvino",
}
"""Operators at which a search starts, and the dialect of a region with them."""

_KNOWN_ALONE = frozenset(name for name, dialect in _CORES.items() if dialect != PLAIN)
"""Operators of dialects, which their readers read as single nodes."""

_WRAPS = (
    "its codes wrap around at their limits (overflow: wrap, as of HGQ2), and no dialect has such a "
    "quantizer. Leave it, as its float operators compute it, or quantize with saturation "
    "(overflow_mode=SAT in HGQ2) and write QuantizeLinear, Quant or FakeQuantize"
)

_FOREIGN = (
    "the model has a function of its own for it, which may compute something else; inline it, or "
    "remove it if it does what the operator does"
)

_PAIRS = [
    ["QuantizeLinear", "DequantizeLinear"],
    ["QuantizeLinear", "Clip", "DequantizeLinear"],
    ["Clip", "DequantizeLinear"],
]
_REALS = (None, "FLOAT", "FLOAT16", "BFLOAT16")
_MOST_ROUNDINGS = 3
"""Maximum number of roundings of a quantizer: to a grid, to codes, of codes to codes."""
_CODES = ("INT2", "UINT2", "INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16", "INT32")

Readers: TypeAlias = dict[OpKey, list[Dialect]]
_Question: TypeAlias = tuple[tuple[int, ...], "Notation"]


class PatternMatcher:
    """Finds the quantizers of one graph that consist of more than a node or a pair.

    Args:
        nodes: all nodes of the graph, in topological order, those of subgraphs included.
    """

    def __init__(self, nodes: Iterable[ir.Node]) -> None:
        self._graph = UseDefGraph(searched(nodes, _KNOWN_ALONE))
        self._forms = Forms()
        self._meanings: dict[_Question, tuple[tuple[Step, ...], Quantizer | None]] = {}
        self._possible: dict[int, bool] = {}
        self._hopeless: dict[int, bool] = {}
        self._readings: dict[object, dict[bytes | None, Site]] = {}
        self._taken: set[ir.Node] = set()
        self._containing: dict[ir.Node, list[Site]] = {}
        self._search()

    # Chains and their readers are imported only for models that have float chains.

    @cached_property
    def _memory(self) -> Memory:
        from qgraph.quantizers.recognition.chains import Memory

        return Memory()

    @cached_property
    def _kinds(self) -> Kinds:
        from qgraph.quantizers.recognition.steps import Kinds

        return Kinds()

    def is_taken(self, node: ir.Node) -> bool:
        """Return whether ``node`` belongs to a quantizer that :meth:`take` was called with."""
        return node in self._taken

    def take(self, site: Site) -> None:
        """Mark the nodes of ``site`` as taken, so that no other quantizer contains them."""
        self._taken.update(site.nodes)

    def around(self, node: ir.Node) -> Site | None:
        """Return the largest quantizer with ``node`` as its core."""
        sites = reversed(self._containing.get(node, ()))
        return next((site for site in sites if self._taken.isdisjoint(site.nodes)), None)

    def alone(self, node: ir.Node, readers: Readers) -> Site | Refusal | None:
        """Return the quantizer of ``node``, alone or as the end of a pair; read equal forms once.

        A form contains everything that determines the quantizer but its scale: attributes, other
        parameters, the types of all values, and the shape of the data.
        """
        if OpKey.of(node) not in readers:
            return None
        nodes = _pair(node)
        x, y = nodes[0].inputs[0] if nodes[0].inputs else None, node.outputs[0]
        if x is None or is_constant(x):
            return _site_of(node, readers)
        scale, marks = single_scale(nodes)
        form = self._forms.of_region(nodes, x, y, marks)
        if form is None:
            return _site_of(node, readers)
        readings = self._readings.setdefault((form, fixed_sizes(x)), {})
        number = None if scale is None else scale.tobytes()
        read = readings.get(number) or _open_reading(readings)
        if read is not None:
            meaning: Any = read.meaning
            if number not in readings:
                meaning = replace(meaning, scale=scale)
            read = replace(read, x=x, y=y, nodes=nodes, root=node, meaning=meaning)
            readings.setdefault(number, read)
            return read
        site = _site_of(node, readers)
        if isinstance(site, Site) and (site.x, site.nodes) == (x, nodes):
            readings[number] = site
            if _open_reading(readings) is not None:
                site = readings[number] = replace(site, form=form)
        return site

    def _search(self) -> None:
        """Find the quantizers that contain each core, in the order of their outputs."""
        after_cores: set[ir.Value | None] = set()
        for node in self._graph.nodes:
            if node.op_type not in _CORES and after_cores.isdisjoint(node.inputs):
                continue
            after_cores.update(node.outputs)
            site = self._ending_in(node.outputs[0])
            if site is not None:
                for core in site.nodes:
                    if core.op_type in _CORES:
                        self._containing.setdefault(core, []).append(site)

    def _ending_in(self, y: ir.Value) -> Site | None:
        """Return the largest quantizer that ends in ``y``."""
        expression = self._graph.expression(y)
        if expression is None or expression.dtype != FLOAT or not _is_real(y):
            return None
        # The sign of what is rounded may be all that a result depends on.
        from qgraph.quantizers.recognition.chains import chain_of

        ends = None if self._graph.has_signs else self._are_hopeless
        chain = chain_of(expression, self._memory, most_roundings=_MOST_ROUNDINGS, ends=ends)
        kinds = self._kinds.of(chain.steps)
        for first, starts in enumerate(chain.starts):
            for start in starts:
                for x in self._graph.values(start):
                    if _is_alone(x, y):
                        continue
                    steps = chain.steps[first:]
                    if _is_real(x) and not self._may_be_quantizer(steps, kinds[first]):
                        continue
                    site = self._between(x, y, steps)
                    if site is not None:
                        return site
        return None

    def _may_be_quantizer(self, steps: tuple[Step, ...], kinds: int | None) -> bool:
        """Return whether ``steps`` on real numbers may be a quantizer."""
        from qgraph.quantizers.recognition.readers import is_ruled_out

        if kinds is None:
            return not is_ruled_out(steps)
        if kinds not in self._possible:
            self._possible[kinds] = not is_ruled_out(steps)
        return self._possible[kinds]

    def _are_hopeless(self, steps: Sequence[Step]) -> bool:
        """Return whether ``steps`` cannot be the last steps of a quantizer."""
        kinds = self._kinds.of(steps)[0]
        if kinds is None:
            return False
        if kinds not in self._hopeless:
            from qgraph.quantizers.recognition.readers import is_hopeless

            self._hopeless[kinds] = is_hopeless(steps)
        return self._hopeless[kinds]

    def _between(self, x: ir.Value, y: ir.Value, steps: tuple[Step, ...]) -> Site | None:
        """Return the quantizer from ``x`` to ``y`` with the given ``steps``."""
        nodes = self._graph.region(x, y)
        notation = None if nodes is None else _notation(nodes, x)
        if nodes is None or notation is None:
            return None
        meaning = self._meaning(steps, notation)
        return None if meaning is None else _site(x, y, nodes, notation, meaning)

    def _meaning(self, steps: tuple[Step, ...], notation: Notation) -> Quantizer | None:
        """Return the quantizer of steps; equal steps are read once."""
        key = tuple(map(id, steps)), notation
        if key not in self._meanings:
            from qgraph.quantizers.recognition.readers import quantizer_of

            self._meanings[key] = steps, quantizer_of(steps, notation)
        return self._meanings[key][1]


def _pair(node: ir.Node) -> tuple[ir.Node, ...]:
    """Return the Q/DQ pair, with Clip, that ends in ``node``, or ``node`` alone."""
    nodes: tuple[ir.Node, ...] = (node,)
    while (value := nodes[0].inputs[0] if nodes[0].inputs else None) is not None:
        producer = value.producer()
        if producer is None or [each.op_type for each in (producer, *nodes)] not in _PAIRS:
            break
        nodes = producer, *nodes
    return nodes


def _open_reading(readings: Mapping[bytes | None, Site]) -> Site | None:
    """Return a quantizer of a form of which only the scale depends on the scale; None if not so."""
    number, site = next(iter(readings.items()), (None, None))
    meaning = None if site is None or number is None else site.meaning
    if not isinstance(meaning, Affine) or meaning.decoding is not None or meaning.scale.shape:
        return None
    return site if meaning.scale.tobytes() == number else None


def _is_alone(x: ir.Value, y: ir.Value) -> bool:
    """Return whether a single node that a dialect reads computes ``y`` from ``x``."""
    node = y.producer()
    return node is not None and node.op_type in _KNOWN_ALONE and node.inputs[0] is x


def _is_real(value: ir.Value) -> bool:
    return value.dtype is None or value.dtype.name in _REALS


def _notation(nodes: tuple[ir.Node, ...], x: ir.Value) -> Notation | None:
    """Return the notation of nodes; None if a dialect reads them, or they mix dialects."""
    dialects = {_CORES[node.op_type] for node in nodes if node.op_type in _CORES} - {PLAIN}
    names = [node.op_type for node in nodes]
    if any(node.domain and node.op_type not in _CORES for node in nodes):
        return None
    if len(dialects) > 1 or (dialects and (len(nodes) == 1 or names in _PAIRS)):
        return None
    type_name = None if x.dtype is None else x.dtype.name
    decodes = names[0] in ("DequantizeLinear", "Cast") and type_name in _CODES
    codes = constant(x) if decodes else None
    # Codes without an element can be packed in no type, and no quantizer takes integers.
    if (decodes and (codes is None or not codes.size)) or (not decodes and type_name not in _REALS):
        return None
    from qgraph.quantizers.recognition.steps import Notation

    is_pair = dialects == {"qdq"} and set(names) <= {name for pair in _PAIRS for name in pair}
    return Notation(dialects.pop() if dialects else PLAIN, is_pair, type_name if decodes else None)


def _site(
    x: ir.Value, y: ir.Value, nodes: tuple[ir.Node, ...], notation: Notation, meaning: Quantizer
) -> Site:
    cores = [node for node in nodes if _CORES.get(node.op_type) == notation.dialect]
    root = nodes[-1] if notation.dialect == PLAIN else cores[-1]
    shape = shape_of(x, *arrays_of(meaning))
    return Site(x, y, nodes, root, notation.dialect, meaning, shape, constant_stream(x))


def sites(
    model: ir.Model, *, around_constants: bool = False, facts: Facts | None = None
) -> Iterator[Site | Refusal]:
    """Yield every quantizer of a model, in subgraphs and functions too, in topological order.

    A quantizer of several nodes is found as a whole; no node belongs to two different quantizers.
    The shapes and types of data are inferred unless ``facts`` has them; those stated in the model
    are not used. The model must not change during the iteration. With ``around_constants``,
    quantizers that are not connected to a quantizer of a constant are skipped.
    """
    readers = _readers()
    # The body of a function defines an operator: written in that operator it would call itself.
    functions = (
        function
        for function in model.functions.values()
        if OpKey(function.domain, function.name) not in readers
    )
    graphs = [model.graph, *(function.graph for function in functions)]
    foreign = {key for key, f in model.functions.items() if PORTABLE not in f.metadata_props}
    listed = [list(nodes_of(graph)) for graph in graphs]
    if foreign:
        calls = [node for nodes in listed for node in nodes if node.op_identifier() in foreign]
        yield from (Refusal(n, NO_OPERATOR(_FOREIGN)) for n in calls if OpKey.of(n) in readers)
        listed = [[n for n in nodes if n.op_identifier() not in foreign] for nodes in listed]
    if around_constants:

        def connects(node: ir.Node) -> bool:
            return node.op_type in _CORES or OpKey.of(node) in readers or is_elementwise(node)

        listed = [connected_to_constants(nodes, connects) for nodes in listed]
    if any(listed):
        with _inferred(model, facts):
            for nodes in listed:
                yield from _of_graph(nodes, readers)


def readable_sites(model: ir.Model) -> list[Site]:
    """Return the quantizers of a model that can be read; see :func:`sites`."""
    return [site for site in sites(model) if isinstance(site, Site)]


def _of_graph(nodes: list[ir.Node], readers: Readers) -> Iterator[Site | Refusal]:
    matcher = PatternMatcher(nodes)
    for node in nodes:
        if matcher.is_taken(node):
            continue
        site = matcher.around(node) or matcher.alone(node, readers)
        if site is None and wraps_around(node):
            site = Refusal(node, NO_OPERATOR(_WRAPS))
        if isinstance(site, Site):
            matcher.take(site)
        if site is not None:
            yield site


def site_of(node: ir.Node) -> Site | Refusal | None:
    """Return the quantizer of ``node``, alone or as the end of a pair.

    The first dialect that can read the node reads it. Larger quantizers around it are not searched.
    """
    return _site_of(node, _readers())


def site_reader() -> Callable[[ir.Node], Site | Refusal | None]:
    """Return :func:`site_of` for many nodes of a graph, which reads equal forms once."""
    return partial(PatternMatcher(()).alone, readers=_readers())


def parts(site: Site) -> tuple[Site, ...]:
    """Return the smaller quantizers that dialects read within a site of several nodes.

    The operators around them are not part of them. For standard operators, this is a Round with a
    Clip, whose scale is 1.
    """
    readers = _readers()
    candidates = [_site_of(node, readers) for node in site.nodes if len(site.nodes) > 1]
    if site.dialect == PLAIN and site.weight is None:
        candidates += [rounding_site(node) for node in site.nodes if node.op_type == "Round"]
    return tuple(f for f in candidates if isinstance(f, Site) and {*site.nodes} > {*f.nodes})


def _inferred(model: ir.Model, facts: Facts | None) -> AbstractContextManager[None]:
    """Set the inferred types and shapes of the values of the main graph."""
    values = [value for node in nodes_of(model.graph) for value in node.outputs]
    # Where the model has one floating type only, data of no stated type has that one.
    is_typed = all(value.type is not None for value in values)
    keeps_types = is_typed or only_float_type(model) is None
    return inferred(model, values, keeps_types=keeps_types, facts=facts)


def _readers() -> Readers:
    return by_key((key, entry) for entry in DIALECTS for key in entry.roots)


def _site_of(node: ir.Node, readers: Readers) -> Site | Refusal | None:
    try:
        sites = (reader.read(node) for reader in readers.get(OpKey.of(node), ()))
        return next((site for site in sites if site is not None), None)
    except OperatorError as error:
        return Refusal(node, str(error), is_dynamic=is_dynamic(node))
