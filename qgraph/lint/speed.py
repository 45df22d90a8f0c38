"""Rules about models that run slower than necessary (QG4)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qgraph.graph.scopes import input_of, producer_of
from qgraph.inventory.layers import FoundLayer, product_role
from qgraph.lint.facts import DECODE, QUANTIZE, ModelFacts, nodes_of_site
from qgraph.lint.rule import Found, LintFix, LintLevel, rule
from qgraph.quantizers.movement import unmoved
from qgraph.targets.engine import KernelMatch, NoKernel
from qgraph.targets.layer import LAYERS, Granularity, ProductAxis, ZeroPoint

ERROR, WARNING, INFO = LintLevel.ERROR, LintLevel.WARNING, LintLevel.INFO
_SCALING = ("Mul", "Div", "Add", "Sub")
_PACKED = ("INT4", "UINT4", "INT2", "UINT2")
_CHAIN = ("Clip", "Identity", QUANTIZE, DECODE)
_FOLD_BN = LintFix("fold-batch-norm", "bounded")
_SLOW_CHANNELS = 2.7
_ZERO_POINTS = {
    ZeroPoint.EQUAL: "the weights have a zero point",
    ZeroPoint.DIFFER: "the zero points of the weights differ",
    ZeroPoint.FRACTION: "the zero points of the weights are no whole numbers",
}


@rule("QG401", "float-layer", WARNING, needs_target=True)
def float_layer(facts: ModelFacts) -> Iterator[Found]:
    """The target runs a quantized layer in float."""
    for layer, answer in facts.answers:
        if isinstance(answer, NoKernel):
            reasons = [f"{reason} [{reason.id}]" for reason in answer.reasons]
            text = f"{layer.node.op_type} stays in float: {'; '.join(reasons)}"
            figures = {"reasons": [reason.id for reason in answer.reasons]}
            yield Found((layer.node,), text, figures, None if answer.is_certain else INFO)


@rule("QG402", "slower-form", WARNING, needs_target=True)
def slower_form(facts: ModelFacts) -> Iterator[Found]:
    """The target has a faster kernel for another form."""
    for layer, answer in facts.answers:
        if layer.description.w.codes in _exact_weights(facts):
            continue
        for form in answer.slower if isinstance(answer, KernelMatch) else ():
            text = f"{form.text}: {form.ratio:g} times the time of {form.than}"
            yield Found((layer.node,), text, {"ratio": form.ratio})


@rule("QG403", "batch-norm-behind-layer", WARNING, fix=_FOLD_BN)
def batch_norm_behind_layer(facts: ModelFacts) -> Iterator[Found]:
    """A BatchNormalization is between a quantized layer and its quantizer."""
    answers = {layer.node: answer for layer, answer in facts.answers}
    for layer, node in _behind(facts, "BatchNormalization"):
        answer = answers.get(layer.node)
        failing = answer.reasons if isinstance(answer, NoKernel) else ()
        if answer is not None and not any(each.startswith(node.op_type) for each in failing):
            continue  # kernels of the target take it, or the layer is in float anyway
        text = "BatchNormalization keeps the layer out of integer kernels; fold it into the weights"
        yield Found((node, layer.node), text, {"measured_slowdown": _SLOW_CHANNELS})


@rule("QG404", "scaling-behind-layer", WARNING, fix=_FOLD_BN)
def scaling_behind_layer(facts: ModelFacts) -> Iterator[Found]:
    """A constant is multiplied or added between a quantized layer and its quantizer."""
    for layer, node in _behind(facts, *_SCALING):
        operands = [facts.constant(value) for value in node.inputs]
        constants = [array for array in operands if array is not None]
        is_bias = node.op_type == "Add" and layer.node.op_type == "MatMul"
        sizes = {facts.shape(value) for value in (node.outputs[0], layer.node.outputs[0])}
        if len(sizes) > 1:
            continue  # channels are repeated, which the layer cannot do
        if len(constants) == 1 and not is_bias and node in layer.follows[:1]:
            text = f"{node.op_type} by {constants[0].size} constants belongs into weights and bias"
            yield Found((node, layer.node), text, {"constants": int(constants[0].size)})


@rule("QG405", "activation-beside-range", INFO, fix=LintFix("merge-activation", "values"))
def activation_beside_range(facts: ModelFacts) -> Iterator[Found]:
    """A Relu or Clip is before a quantizer whose range exceeds it."""
    for layer in facts.layers:
        site = facts.site_of.get(layer.follows[-1]) if layer.follows else None
        scale = getattr(None if site is None else site.quantizer, "scale", None)
        if scale is not None and not np.isfinite(scale).all():
            continue  # a finding of its own
        for node, behind in zip(layer.follows, layer.description.behind, strict=False):
            is_open = layer.description.y is not None and not behind.is_redundant
            if node.op_type in ("Relu", "Clip") and is_open:
                text = f"codes reach farther than {node.op_type} lets data go: limit the codes"
                pair = [each for each in layer.follows if each.op_type == QUANTIZE]
                yield Found((node, layer.node, *pair), text, is_fixable=bool(pair))


@rule("QG406", "wrapped-quantizer", WARNING, fix=LintFix("plain-pairs", "near"))
def wrapped_quantizer(facts: ModelFacts) -> Iterator[Found]:
    """A quantizer has float operators around it that a plain pair does not need."""
    for site in facts.sites:
        names = [node.op_type for node in site.nodes]
        if site.weight is None and QUANTIZE in names and DECODE in names:
            extra = [name for name in names if name in ("Div", "Mul", "Round", "Add", "Sub")]
            if extra:
                text = f"other operators hide its codes from runtimes: {' and '.join(extra)}"
                yield Found(nodes_of_site(site), text, {"operators": extra})


@rule(
    "QG407",
    "packed-weights-of-layer",
    WARNING,
    fix=LintFix("repack{to=int8,activations=false}", "values"),
)
def packed_weights_of_layer(facts: ModelFacts) -> Iterator[Found]:
    """Weights of a layer on codes are stored in a type that its kernels do not accept."""
    for layer in facts.layers:
        decoder = facts.decoder_of(layer.node.inputs[1])
        if decoder is not None and decoder.kind in _PACKED and facts.is_stored(decoder):
            text = f"weights of {decoder.kind}: {layer.node.op_type} runs in float; store INT8"
            figures = {"type": decoder.kind, "measured_slowdown": 3.07}
            yield Found((decoder.node, layer.node), text, figures)


@rule("QG408", "unsigned-weights", WARNING, fix=LintFix("symmetric-weights", "bits"))
def unsigned_weights(facts: ModelFacts) -> Iterator[Found]:
    """Weights are unsigned codes around a zero point in the middle."""
    for layer in facts.layers:
        description = layer.description.w
        if description.zero is ZeroPoint.MIDDLE and description.codes not in _exact_weights(facts):
            decoder = facts.decoder_of(layer.node.inputs[1])
            if decoder is not None and facts.is_stored(decoder):
                text = f"weights of {decoder.kind} around the middle"
                figures = {"type": decoder.kind, "measured_slowdown": 3.3}
                nodes = decoder.node, layer.node
                yield Found(nodes, f"{text}: signed codes need no zero point", figures)


@rule("QG409", "weights-with-zero-points", WARNING)
def weights_with_zero_points(facts: ModelFacts) -> Iterator[Found]:
    """Weights of a layer have zero points."""
    for layer in facts.layers:
        zero = layer.description.w.zero
        if layer.description.w.is_constant and zero in _ZERO_POINTS:
            decoder = facts.decoder_of(layer.node.inputs[1])
            nodes = (layer.node,) if decoder is None else (decoder.node, layer.node)
            text = f"{_ZERO_POINTS[zero]}; kernels have to correct each sum"
            yield Found(nodes, text, {"zero_points": str(zero)})


@rule("QG410", "data-scaled-by-channel", WARNING, fix=LintFix("move-channel-scales", "bounded"))
def data_scaled_by_channel(facts: ModelFacts) -> Iterator[Found]:
    """Data of a layer has a scale for each channel."""
    for layer in facts.layers:
        if layer.description.x.granularity is Granularity.AXIS:
            source = unmoved(layer.node.inputs[0])
            site = None if source is None else facts.site_ending.get(source)
            nodes = (layer.node,) if site is None else nodes_of_site(site, layer.node)
            text = "no integer kernel takes scales of channels of data; weights can take them"
            yield Found(nodes, text, is_fixable=layer.description.x.is_constant_scale)


@rule("QG411", "result-not-quantized", INFO)
def result_not_quantized(facts: ModelFacts) -> Iterator[Found]:
    """The result of a quantized Conv is not quantized."""
    for layer in facts.layers:
        if layer.description.y is None and layer.node.op_type == "Conv":
            text = "no quantizer to integers after the Conv: ONNX Runtime runs it in float"
            yield Found((layer.node,), text)


@rule("QG412", "unequal-scales", INFO)
def unequal_scales(facts: ModelFacts) -> Iterator[Found]:
    """Operands of a Concat have different scales."""
    for node in facts.of("Concat"):
        decoders = filter(None, map(facts.decoder_of, node.inputs))
        scales = (decoder.scale for decoder in decoders)
        single = [scale for scale in scales if scale is not None and scale.size == 1]
        if len(single) == len(node.inputs) > 1:
            values = sorted({float(scale.flat[0]) for scale in single})
            if len(values) > 1:
                ends = f"from {values[0]:.4g} to {values[-1]:.4g}"
                text = f"{len(values)} scales {ends}: codes have to be converted"
                yield Found((node,), text, {"scales": values[:8]})


@rule("QG413", "constant-chain", WARNING, fix=LintFix("fold-constants", "bits"))
def constant_chain(facts: ModelFacts) -> Iterator[Found]:
    """Operators between stored codes and their layer are not computed in advance."""
    for decoder in facts.decoders:
        value, chain = decoder.node.inputs[0], list[ir.Node]()
        while value is not None and (node := value.producer()) is not None:
            if node.op_type not in _CHAIN or node.domain:
                break
            chain.append(node)
            value = node.inputs[0]
        dtype = None if value is None or facts.constant(value) is None else facts.dtype(value)
        is_fixed = dtype is not None and not dtype.is_floating_point()
        if chain and is_fixed and all(_has_constants(facts, node) for node in chain):
            names = "+".join(node.op_type for node in reversed(chain))
            text = f"{names} of constant codes stops integer kernels of OpenVINO"
            is_openvino = facts.target is not None and facts.target.name.startswith("openvino")
            level = None
            if is_openvino and decoder.kind == "INT32" and QUANTIZE in {n.op_type for n in chain}:
                text, level = f"{names} to INT32 stops the compiler of OpenVINO", ERROR
            yield Found((decoder.node, *chain), text, {"operators": names}, level)


@rule("QG414", "quantizer-inside-unit", INFO)
def quantizer_inside_unit(facts: ModelFacts) -> Iterator[Found]:
    """A quantizer separates a layer from the activation that kernels fuse with it."""
    for layer in facts.layers:
        reader = facts.only_reader(layer.node.outputs[0])
        site = None if reader is None else facts.site_of.get(reader)
        after = None if site is None else facts.only_reader(site.y)
        if after is not None and after.op_type in ("Relu", "Clip", "BatchNormalization"):
            again = facts.quantizer_behind(after.outputs[0])
            if again is not None and site is not None and not after.domain:
                both = f"{layer.node.op_type} and {after.op_type}"
                text = f"{both} have a quantizer between and behind"
                yield Found(nodes_of_site(site, layer.node, after), text)


@rule("QG415", "float-branch", INFO)
def float_branch(facts: ModelFacts) -> Iterator[Found]:
    """One operand of an Add is quantized, the other is float."""
    for node in facts.of("Add", "Mul"):
        if any(facts.constant(value) is not None for value in node.inputs):
            continue
        if facts.quantizer_behind(node.outputs[0]) is None:
            continue
        states = [facts.is_quantized(value) for value in node.inputs]
        if sorted(states) == [False, True]:
            text = f"{node.op_type} in float: quantize its other operand {states.index(False)}, too"
            yield Found((node,), text, {"operand": states.index(False)})


@rule(
    "QG416",
    "flatten-before-product",
    INFO,
    fix=LintFix("canonical-operators{forms=flatten}", "values"),
    targets=("onnxruntime*",),
)
def flatten_before_product(facts: ModelFacts) -> Iterator[Found]:
    """A Flatten between codes and a product hides the codes from ONNX Runtime."""
    for layer in facts.layers:
        if "Flatten" in layer.description.x.before:
            source = layer.node.inputs[0]
            node = producer_of(source)
            if node is not None and node.op_type == "Flatten":
                is_pair = facts.decoder_of(source) is not None
                text = "Flatten hides codes; Reshape does not"
                yield Found((node, layer.node), text, is_fixable=is_pair)


@rule("QG417", "product-and-sum", INFO, fix=LintFix("canonical-operators", "bounded"))
def product_and_sum(facts: ModelFacts) -> Iterator[Found]:
    """A MatMul and the Add of a constant could be a Gemm."""
    for layer in facts.layers:
        if layer.node.op_type == "MatMul" and layer.description.bias is not None:
            shape = facts.shape(layer.node.inputs[0])
            add = facts.only_reader(layer.node.outputs[0])
            if shape is not None and len(shape) == 2 and add is not None:
                yield Found((layer.node, add), "MatMul and Add of a constant can be one Gemm")


@rule("QG418", "mean-of-map", INFO, fix=LintFix("canonical-operators", "bounded"))
def mean_of_map(facts: ModelFacts) -> Iterator[Found]:
    """A ReduceMean over a whole map could be a GlobalAveragePool."""
    for node in facts.of("ReduceMean"):
        shape = facts.shape(node.inputs[0])
        axes = facts.constant(input_of(node, 1))
        attribute = node.attributes.get("axes")
        reduced = list(attribute.as_ints()) if attribute is not None else []
        reduced = reduced if axes is None else [int(axis) for axis in axes.reshape(-1)]
        if shape is None or len(shape) != 4 or not facts.is_quantized(node.inputs[0]):
            continue
        if sorted(axis % 4 for axis in reduced) == [2, 3]:
            yield Found((node,), "ReduceMean over both axes of the map stays in float")


@rule("QG419", "integer-conv", INFO)
def integer_conv(facts: ModelFacts) -> Iterator[Found]:
    """ConvInteger is slower than a float Conv."""
    for node in facts.of("ConvInteger"):
        text = "ConvInteger takes 1.5 times the time of a float Conv in ONNX Runtime"
        yield Found((node,), text, {"measured_slowdown": 1.52})


@rule("QG420", "small-blocks", WARNING)
def small_blocks(facts: ModelFacts) -> Iterator[Found]:
    """Blocks of weights are smaller than kernels accept."""
    for decoder in facts.decoders:
        if 0 < decoder.block < 16 and facts.is_stored(decoder):
            reader = next((n for n in facts.readers(decoder.node.outputs[0])), None)
            if reader is not None and reader.op_type in LAYERS:
                text = f"blocks of {decoder.block}: kernels take powers of two from 16 on"
                figures = {"block": decoder.block, "measured_slowdown": 5.28}
                yield Found((decoder.node, reader), text, figures)


@rule("QG422", "blocks-along-outputs", WARNING)
def blocks_along_outputs(facts: ModelFacts) -> Iterator[Found]:
    """Blocks of weights are along the output channels, not along the summed axis."""
    for decoder in facts.decoders:
        shape = facts.shape(decoder.node.outputs[0])
        reader = next((n for n in facts.readers(decoder.node.outputs[0])), None)
        if not decoder.block or reader is None or shape is None or reader.op_type not in LAYERS:
            continue
        if not facts.is_stored(decoder) or reader.inputs[1] is not decoder.node.outputs[0]:
            continue
        axis: int = decoder.node.attributes.get_int("axis", 1)
        if product_role(reader, axis, len(shape)) is ProductAxis.OUTPUT:
            text = f"blocks of {decoder.block} along axis {axis}, whose sums are never joined"
            yield Found((decoder.node, reader), text, {"axis": axis, "block": decoder.block})


@rule("QG421", "quantized-hard-swish", INFO)
def quantized_hard_swish(facts: ModelFacts) -> Iterator[Found]:
    """The parts of x * HardSigmoid(x) are quantized."""
    for node in facts.of("Mul"):
        sources = [unmoved(value) for value in node.inputs]
        sites = [facts.site_ending.get(value) if value is not None else None for value in sources]
        makers = [site.x.producer() if site is not None else None for site in sites]
        for maker, other in zip(makers, reversed(sources), strict=True):
            if maker is not None and maker.op_type == "HardSigmoid" and maker.inputs[0] is other:
                text = "HardSwish on codes takes 1.3 times the time of float in small networks"
                yield Found((node, maker), text, {"measured_slowdown": 1.33})


def _behind(facts: ModelFacts, *names: str) -> Iterator[tuple[FoundLayer, ir.Node]]:
    """Yield layers with the nodes of some operators between them and their quantizer."""
    for layer in facts.layers:
        if layer.description.y is None:
            continue
        number = len(layer.description.behind)
        for node in layer.follows[:number]:
            if node.op_type in names and not node.domain:
                yield layer, node


def _has_constants(facts: ModelFacts, node: ir.Node) -> bool:
    return all(value is None or facts.constant(value) is not None for value in node.inputs[1:])


def _exact_weights(facts: ModelFacts) -> set[str]:
    """Return the types of weights that are exact where those of a faster type saturate."""
    rules = () if facts.target is None else facts.target.saturating
    return {rule.instead for rule in rules if rule.instead is not None}
