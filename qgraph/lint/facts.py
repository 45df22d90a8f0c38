"""Facts about a model for the rules: nodes, quantizers, layers, types, shapes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import onnx_ir as ir

from qgraph.graph.constants import (
    constant_expression,
    constant_stream,
    freeze_inputs,
    is_constant,
    overridable,
)
from qgraph.graph.inference.dimensions import Dim
from qgraph.graph.inference.rules import UNKNOWN
from qgraph.graph.inference.walk import Facts, infer
from qgraph.graph.opset.versions import declare_domains
from qgraph.graph.schema import MICROSOFT, QONNX_DOMAINS
from qgraph.graph.scopes import all_nodes, input_of, inputs_of, nodes_of, owners, producer_of
from qgraph.graph.streaming import Stream
from qgraph.inventory.layers import FoundLayer, product_role, quantized_layers
from qgraph.lint.seen import CodeCounts, Observation, count_codes
from qgraph.numerics import Array
from qgraph.ops.static_parameters import freeze_static_parameters, static_parameters
from qgraph.quantizers.dialects.dialect import Refusal, Site
from qgraph.quantizers.dialects.qonnx import NAMES
from qgraph.quantizers.movement import unmoved
from qgraph.quantizers.sites import sites
from qgraph.records import by_key, dataclass
from qgraph.targets.engine import KernelMatch, NoKernel, kernel_of
from qgraph.targets.layer import LAYERS, ProductAxis
from qgraph.targets.profile import Profile
from qgraph.targets.rules import type_of_codes

QUANTIZE, DECODE = "QuantizeLinear", "DequantizeLinear"
_DOMAINS = ("", "ai.onnx", MICROSOFT)


@dataclass(frozen=True, eq=False)
class Coder:
    """A QuantizeLinear or DequantizeLinear.

    Attributes:
        scale: its scales; None if they are computed, or if their array is empty.
        zero: its zero points; None if there are none, or they are computed.
        has_zero: whether an input states zero points.
        kind: ONNX type of the codes.
        axis: axis along which one-dimensional scales differ; None if they do not.
        block: elements of a block; 0 without blocks.
    """

    node: ir.Node
    scale: Array | None
    zero: Array | None
    has_zero: bool
    kind: str
    axis: int | None
    block: int

    def is_like(self, other: Coder) -> bool:
        """Return whether both have the same constant parameters."""
        return (
            self.kind == other.kind
            and (self.axis, self.block) == (other.axis, other.block)
            and _is_same(self.scale, other.scale, 1)
            and _is_same(self.zero, other.zero, 0)
        )


def _is_same(one: Array | None, other: Array | None, absent: int) -> bool:
    if one is None or other is None:
        array = other if one is None else one
        if array is None:
            return absent == 0  # neither has a zero point; scales are computed
        return absent == 0 and not array.any()
    return one.size == other.size and bool((one.reshape(-1) == other.reshape(-1)).all())


class ModelFacts:
    """Facts about one model; each is computed once, when it is first needed.

    Args:
        model: the model; it is not changed.
        target: the target; None for none.
        observation: statistics of a run of the model; None if it is not run.
    """

    def __init__(
        self, model: ir.Model, target: Profile | None = None, observation: Observation | None = None
    ) -> None:
        self.original = model
        self.target = target
        self.observation = observation
        self.overridable = [str(value.name) for value in overridable(model.graph)]
        self.undeclared = _undeclared(model)
        self.model = _readable(model, bool(self.overridable or self.undeclared))
        self.opset = self.model.opset_imports.get("", self.model.opset_imports.get("ai.onnx", 0))
        self.nodes = list(all_nodes(self.model))
        self._by_operator = by_key((node.op_type, node) for node in self.nodes)
        self._coders: dict[ir.Node, Coder] = {}
        self._constants: dict[ir.Value, Array | None] = {}
        self._counts: dict[ir.Node, CodeCounts | None] = {}
        self._stored: dict[ir.Node, bool] = {}

    # Nodes and values

    def of(self, *names: str) -> Iterator[ir.Node]:
        """Yield the nodes of some operators, in the standard domain or that of ONNX Runtime.

        :meth:`in_domain` yields those of other domains.
        """
        for name in names:
            for node in self._by_operator.get(name, ()):
                if node.domain in _DOMAINS:
                    yield node

    def in_domain(self, name: str, *domains: str) -> Iterator[ir.Node]:
        """Yield the nodes of an operator in some domains."""
        return (node for node in self._by_operator.get(name, ()) if node.domain in domains)

    def of_qonnx(self, *names: str) -> Iterator[ir.Node]:
        """Yield the nodes of some operators of QONNX, by default of all quantizers."""
        return (n for name in names or NAMES for n in self.in_domain(name, *QONNX_DOMAINS))

    @property
    def fake_quantizes(self) -> Iterator[ir.Node]:
        """All FakeQuantize."""
        return self.in_domain("FakeQuantize", "", "org.openvinotoolkit")

    def constant(self, value: ir.Value | None) -> Array | None:
        """Return the array of a constant; None if the value is computed or absent."""
        if value is None:
            return None
        if value not in self._constants:
            self._constants[value] = constant_expression(value)
        return self._constants[value]

    def shape(self, value: ir.Value | None) -> tuple[Dim, ...] | None:
        """Return the inferred shape of a value; None if its rank is not known."""
        return None if value is None else self._inferred.get(value, UNKNOWN).shape

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """Return the inferred type of a value, or else the stated one."""
        if value is None:
            return None
        return self._inferred.get(value, UNKNOWN).dtype or value.dtype

    @cached_property
    def _inferred(self) -> Facts:
        return infer(self.model)

    @staticmethod
    def readers(value: ir.Value) -> list[ir.Node]:
        """Return the nodes that read a value, once for each use."""
        return [use.node for use in value.uses()]

    def only_reader(self, value: ir.Value) -> ir.Node | None:
        """Return the only reader of a value; None if there are others, or it is an output."""
        uses = self.readers(value)
        return uses[0] if len(uses) == 1 and not value.is_graph_output() else None

    # Quantizers

    @cached_property
    def found(self) -> list[Site | Refusal]:
        """All quantizers, and the nodes that could not be read as quantizers."""
        return list(sites(self.model, facts=self._inferred))

    @cached_property
    def sites(self) -> list[Site]:
        """All quantizers."""
        return [site for site in self.found if isinstance(site, Site)]

    @cached_property
    def site_of(self) -> dict[ir.Node, Site]:
        """The quantizer that each node belongs to."""
        return {node: site for site in self.sites for node in site.nodes}

    @cached_property
    def site_ending(self) -> dict[ir.Value, Site]:
        """The quantizer that computes each value."""
        return {site.y: site for site in self.sites}

    @cached_property
    def scaled(self) -> list[tuple[ir.Node, Array]]:
        """Each node with constant scales, and the scales.

        A pair with one scale counts as its QuantizeLinear.
        """
        return list(_scaled(self))

    @cached_property
    def encoders(self) -> list[Coder]:
        """All QuantizeLinear."""
        return [self.coder(node) for node in self.of(QUANTIZE)]

    @cached_property
    def decoders(self) -> list[Coder]:
        """All DequantizeLinear."""
        return [self.coder(node) for node in self.of(DECODE)]

    @property
    def coders(self) -> list[Coder]:
        """All QuantizeLinear, then all DequantizeLinear."""
        return self.encoders + self.decoders

    def coder(self, node: ir.Node) -> Coder:
        """Return the parameters of a QuantizeLinear or DequantizeLinear."""
        if node not in self._coders:
            scale, zero = inputs_of(node, 3)[1:]
            steps, points = (
                None if array is None or not array.size else array
                for array in (self.constant(scale), self.constant(zero))
            )
            spread = self.shape(scale) != () if steps is None else 1 == steps.ndim < steps.size
            self._coders[node] = Coder(
                node,
                steps,
                points,
                zero is not None,
                type_of_codes(node),
                node.attributes.get_int("axis", 1) if spread else None,
                node.attributes.get_int("block_size", 0) or 0,
            )
        return self._coders[node]

    def decoder_of(self, value: ir.Value | None) -> Coder | None:
        """Return the DequantizeLinear whose result, possibly moved, is a value, or None."""
        return self._coder_before(unmoved(value), DECODE)

    def encoder_of(self, decoder: Coder) -> Coder | None:
        """Return the QuantizeLinear whose codes a DequantizeLinear reads directly, or None."""
        return self._coder_before(decoder.node.inputs[0], QUANTIZE)

    def _coder_before(self, value: ir.Value | None, name: str) -> Coder | None:
        node = producer_of(value)
        is_coder = node is not None and node.op_type == name and node.domain in _DOMAINS
        return self.coder(node) if is_coder and node is not None else None

    @cached_property
    def pairs(self) -> list[tuple[Coder, Coder]]:
        """Each QuantizeLinear with the DequantizeLinear that follows it directly."""
        pairs = ((self.encoder_of(decoder), decoder) for decoder in self.decoders)
        return [(encoder, decoder) for encoder, decoder in pairs if encoder is not None]

    def is_quantized(self, value: ir.Value | None) -> bool:
        """Return whether the elements of a value come from a quantizer, through movements."""
        source = unmoved(value)
        return source is not None and (
            source in self.site_ending or self.decoder_of(source) is not None
        )

    def quantizer_behind(self, value: ir.Value) -> ir.Node | None:
        """Return a node of a quantizer that reads a value directly, or None."""
        return next((n for n in self.readers(value) if self.begins_quantizer(n)), None)

    def begins_quantizer(self, node: ir.Node) -> bool:
        """Return whether a node is the first of a quantizer of data."""
        site = self.site_of.get(node)
        return node.op_type == QUANTIZE or (site is not None and node is site.nodes[0])

    # Constant codes

    def stored(self, decoder: Coder) -> Stream | None:
        """Return the constant codes of a DequantizeLinear as a stream, or None."""
        return constant_stream(decoder.node.inputs[0])

    def is_stored(self, decoder: Coder) -> bool:
        """Return whether the codes of a DequantizeLinear are constants."""
        if decoder.node not in self._stored:
            self._stored[decoder.node] = is_constant(decoder.node.inputs[0])
        return self._stored[decoder.node]

    def counts(self, decoder: Coder) -> CodeCounts | None:
        """Return the counts of constant codes of a DequantizeLinear; None if not integers.

        Channels are those of the operator that reads the result, otherwise those of the scales.
        """
        node = decoder.node
        if node not in self._counts:
            codes = self.stored(decoder)
            axis = None if codes is None else self._output_axis(decoder, len(codes.shape))
            counts = None if codes is None else count_codes(codes, decoder.zero, axis)
            self._counts[node] = counts
        return self._counts[node]

    def _output_axis(self, decoder: Coder, rank: int) -> int | None:
        """Return the axis of constant codes with the output channels of their reader."""
        value = decoder.node.outputs[0]
        reader = next((n for n in self.readers(value) if n.op_type in LAYERS), None)
        roles = [] if reader is None else [product_role(reader, i, rank) for i in range(rank)]
        if ProductAxis.OUTPUT in roles:
            return roles.index(ProductAxis.OUTPUT)
        return None if decoder.axis is None or not rank else decoder.axis % rank

    @staticmethod
    def stream(value: ir.Value | None) -> Stream | None:
        """Return the elements of a constant as a stream, or None."""
        return constant_stream(value)

    # Layers

    @cached_property
    def layers(self) -> list[FoundLayer]:
        """Convolutions and matrix products whose operands are codes of 16 bits or fewer."""
        return list(quantized_layers(self.model, self.sites, self._inferred))

    @cached_property
    def answers(self) -> list[tuple[FoundLayer, KernelMatch | NoKernel]]:
        """Each layer with its kernel in the target, or the reason why there is none."""
        target = self.target
        if target is None:
            return []
        return [(layer, kernel_of(layer.description, target)) for layer in self.layers]

    @cached_property
    def products(self) -> list[ir.Node]:
        """All convolutions and matrix products."""
        return [node for node in self.of(*sorted(LAYERS)) if len(node.inputs) > 1]

    def bias_of(self, node: ir.Node) -> ir.Value | None:
        """Return the bias of a Conv, ConvTranspose or Gemm."""
        return node.inputs[2] if node.op_type != "MatMul" and len(node.inputs) > 2 else None


def nodes_of_site(site: Site, *others: ir.Node) -> tuple[ir.Node, ...]:
    """Return the nodes of a quantizer, beginning with the one that reports name."""
    return tuple(dict.fromkeys((site.root, *site.nodes, *others)))


def _scaled(facts: ModelFacts) -> Iterator[tuple[ir.Node, Array]]:
    decoders = {d.node for e, d in facts.pairs if d.node.inputs[1] is e.node.inputs[1]}
    for node in [*facts.of(QUANTIZE, DECODE), *facts.of_qonnx()]:
        has_second = node.op_type == "Trunc" and len(node.inputs) > 5
        for index in () if node in decoders else (1, 4) if has_second else (1,):
            scale = facts.constant(input_of(node, index))
            if scale is not None and scale.size and scale.dtype.kind not in "OSUc":
                yield node, scale


def _undeclared(model: ir.Model) -> dict[str, list[ir.Node]]:
    """Return the domains that nodes use and the model does not import, with their nodes."""
    return by_key(
        (domain, node)
        for owner in owners(model)
        for node in nodes_of(owner)
        for domain in ["" if node.domain == "ai.onnx" else node.domain]
        if domain not in owner.opset_imports
        if not (domain == "" and "ai.onnx" in owner.opset_imports)
    )


def _readable(model: ir.Model, is_changed: bool) -> ir.Model:
    """Return the model in the form that passes read: the model itself, or a copy."""
    if not is_changed and not static_parameters(model):
        return model
    copy = model.clone()
    declare_domains(copy)
    freeze_inputs(copy)
    freeze_static_parameters(copy)
    return copy
