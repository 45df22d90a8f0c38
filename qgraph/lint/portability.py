"""Rules about models that some runtimes, or a target, do not accept (QG6)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.schema import MICROSOFT
from qgraph.inventory.info import format_of
from qgraph.inventory.openvino_traps import narrow_products
from qgraph.lint.facts import DECODE, QUANTIZE, ModelFacts, nodes_of_site
from qgraph.lint.layers import PROPAGATED
from qgraph.lint.rule import Found, LintFix, LintLevel, rule
from qgraph.numerics.rounding import Rounding
from qgraph.ops.operator import is_defined
from qgraph.quantizers.quantizer import Affine
from qgraph.records import by_key
from qgraph.targets.engine import unloaded, version_reasons
from qgraph.targets.layer import Loads
from qgraph.targets.rules import node_forms
from qgraph.text import counted

ERROR, WARNING, INFO = LintLevel.ERROR, LintLevel.WARNING, LintLevel.INFO
_LEVEL = {Loads.NO: ERROR, Loads.UNKNOWN: INFO}
_PER_AXIS_SINCE, _BLOCKS_SINCE = 13, 21
_IR_OF_OPSET = {28: 14, 25: 13, 24: 12, 23: 11, 21: 10, 19: 9, 15: 8, 13: 7, 10: 5}
_BITS = (2, 4, 8, 16, 32)
_PUBLIC_DOMAINS = ("ai.onnx", MICROSOFT)


@rule("QG601", "not-loaded", ERROR, needs_target=True)
def not_loaded(facts: ModelFacts) -> Iterator[Found]:
    """The target does not load a node."""
    if facts.target is None:
        return
    for (loads, text), forms in unloaded(facts.target, node_forms(facts.model)).items():
        if loads in _LEVEL:
            labels = tuple(form.label for form in forms)
            figures = {"nodes": len(labels)}
            yield Found(labels, f"{facts.target.name}: {text}", figures, _LEVEL[loads])


@rule("QG602", "version-not-read", ERROR, needs_target=True)
def version_not_read(facts: ModelFacts) -> Iterator[Found]:
    """The target does not read this version of ONNX."""
    if facts.target is not None:
        version = facts.original.ir_version or 0
        for reason in version_reasons(facts.target, version, facts.model.opset_imports):
            figures = {"opset": facts.opset, "ir_version": version}
            text = f"{facts.target.name}: {reason.text}"
            yield Found((), text, figures, _LEVEL.get(reason.loads))


@rule("QG603", "type-needs-opset", ERROR)
def type_needs_opset(facts: ModelFacts) -> Iterator[Found]:
    """Codes have a type that the opset of the model lacks."""
    for coder in facts.coders:
        needed = QDQ_SINCE.get(coder.kind, 0)
        what = f"codes of {coder.kind}"
        if coder.block and needed <= _BLOCKS_SINCE:
            needed, what = _BLOCKS_SINCE, "blocks"
        elif coder.axis is not None and needed <= _PER_AXIS_SINCE:
            needed, what = _PER_AXIS_SINCE, "scales along an axis"
        if coder.node.domain != MICROSOFT and 0 < facts.opset < needed:
            text = f"{what} need opset {needed}, the model imports {facts.opset}"
            yield Found((coder.node,), text, {"opset": facts.opset, "needed": needed})


@rule("QG604", "undeclared-domain", ERROR)
def undeclared_domain(facts: ModelFacts) -> Iterator[Found]:
    """A domain that nodes use is not imported."""
    for domain, nodes in facts.undeclared.items():
        text = f"{domain or 'ai.onnx'} is not imported: checkers and runtimes refuse the file"
        figures = {"nodes": len(nodes), "domain": domain}
        # Tools that go by names of operators read such files.
        is_read = facts.target is not None and facts.target.by_name
        yield Found(tuple(nodes), text, figures, WARNING if is_read else None)


@rule("QG605", "old-opset", WARNING)
def old_opset(facts: ModelFacts) -> Iterator[Found]:
    """The opset lacks scales along an axis."""
    if 0 < facts.opset < _PER_AXIS_SINCE and (facts.encoders or facts.sites):
        text = f"opset {facts.opset}: QuantizeLinear has one scale per tensor before opset 13"
        yield Found((), text, {"opset": facts.opset})


@rule("QG606", "foreign-quantizers", INFO)
def foreign_quantizers(facts: ModelFacts) -> Iterator[Found]:
    """Quantizers use operators that few runtimes support."""
    foreign = [(node.domain, node) for node in facts.of_qonnx()]
    foreign += [("org.openvinotoolkit", node) for node in facts.fake_quantizes]
    for domain, nodes in by_key(foreign).items():
        quantizers = counted(len(nodes), "quantizer")
        text = f"{quantizers} of {domain}: only tools made for them read the file"
        yield Found(tuple(nodes), text, {"nodes": len(nodes), "domain": domain})


@rule("QG607", "other-rounding", INFO)
def other_rounding(facts: ModelFacts) -> Iterator[Found]:
    """A quantizer has a rounding mode that QuantizeLinear lacks."""
    for site in facts.sites:
        quantizer = site.quantizer
        if site.weight is not None or not isinstance(quantizer, Affine):
            continue
        if quantizer.rounding is not Rounding.ROUND:
            text = f"it rounds {quantizer.rounding}: QuantizeLinear rounds half to even"
            yield Found(nodes_of_site(site), text, {"rounding": str(quantizer.rounding)})


@rule("QG608", "odd-bit-width", INFO)
def odd_bit_width(facts: ModelFacts) -> Iterator[Found]:
    """No ONNX type has the number of bits of the codes."""
    for site in facts.sites:
        quantizer = site.quantizer if site.dialect == "qonnx" else None
        if not isinstance(quantizer, Affine):
            continue
        bits = format_of(quantizer)[1] or 0
        if bits > 1 and bits not in _BITS:
            text = f"codes of {bits} bits are stored in the next wider type, and need a Clip"
            yield Found(nodes_of_site(site), text, {"bits": bits})


@rule("QG609", "vendor-pairs", INFO, fix=LintFix("lower-microsoft", "bits"))
def vendor_pairs(facts: ModelFacts) -> Iterator[Found]:
    """Pairs of com.microsoft have a form in standard operators."""
    nodes = [node for name in (QUANTIZE, DECODE) for node in facts.in_domain(name, MICROSOFT)]
    if nodes:
        text = f"{counted(len(nodes), 'node')} of com.microsoft, which only ONNX Runtime reads"
        yield Found(tuple(nodes), text, {"nodes": len(nodes)})


@rule("QG610", "no-zero-point", INFO, fix=LintFix("canonical-operators{forms=points}", "bits"))
def no_zero_point(facts: ModelFacts) -> Iterator[Found]:
    """A QuantizeLinear or DequantizeLinear states no zero point."""
    for decoder in facts.decoders:
        reads = {n.op_type for n in facts.readers(decoder.node.outputs[0])}
        if not decoder.has_zero and decoder.kind in ("INT8", "UINT8") and "Gemm" in reads:
            text = "ONNX Runtime has an integer Gemm only with a zero point, even if it is 0"
            yield Found((decoder.node,), text)
    for encoder in facts.encoders:
        if not encoder.has_zero and encoder.kind == "INT8":
            text = "INT8 by output_dtype: ONNX Runtime leaves the layer after it in float"
            yield Found((encoder.node,), text)


@rule("QG611", "scale-type-of-result", ERROR)
def scale_type_of_result(facts: ModelFacts) -> Iterator[Found]:
    """DequantizeLinear with FLOAT8E8M0 scales does not state its output type."""
    for decoder in facts.decoders:
        dtype = facts.dtype(decoder.node.inputs[1])
        is_stated = decoder.node.attributes.get_int("output_dtype", 0)
        if dtype is not None and dtype.name == "FLOAT8E8M0" and not is_stated:
            text = "output_dtype is missing: the result would be FLOAT8E8M0 as the scale"
            yield Found((decoder.node,), text)


@rule("QG612", "float8-zero-point", ERROR)
def float8_zero_point(facts: ModelFacts) -> Iterator[Found]:
    """Codes of FP8 have a zero point other than 0."""
    for coder in facts.coders:
        if not coder.kind.startswith("FLOAT8") or coder.zero is None:
            continue
        if np.count_nonzero(np.asarray(coder.zero).astype(np.float32)):
            text = f"{coder.kind} with a zero point: one operator ignores it, the other refuses it"
            yield Found((coder.node,), text)


@rule("QG613", "one-block", WARNING)
def one_block(facts: ModelFacts) -> Iterator[Found]:
    """block_size is set, but there is only one scale."""
    for coder in facts.coders:
        scale = coder.scale
        if coder.block and scale is not None and scale.size == 1 and scale.ndim < 2:
            text = f"block_size is {coder.block}, with one scale: ONNX Runtime fails to run it"
            yield Found((coder.node,), text, {"block": coder.block})


@rule(
    "QG614",
    "shared-decoder",
    INFO,
    fix=LintFix("move-quantizers{dedicated=true}", "values"),
    targets=("qnn*",),
    needs_target=True,
)
def shared_decoder(facts: ModelFacts) -> Iterator[Found]:
    """Several operators read one DequantizeLinear of data."""
    for _, decoder in facts.pairs:
        count = len({*facts.readers(decoder.node.outputs[0])})
        if count > 1:
            text = f"{count} operators read it: each needs a DequantizeLinear of its own"
            yield Found((decoder.node,), text, {"readers": count})


@rule("QG615", "quantizers-in-branches", INFO)
def quantizers_in_branches(facts: ModelFacts) -> Iterator[Found]:
    """Quantizers are in graphs of If, Loop or Scan."""
    inner = [coder.node for coder in facts.encoders if coder.node.graph is not facts.model.graph]
    functions = {id(function.graph) for function in facts.model.functions.values()}
    inside = [node for node in inner if id(node.graph) not in functions]
    if inside:
        quantizers = counted(len(inside), "quantizer")
        text = f"{quantizers}: runtimes optimize such graphs apart, or not at all"
        yield Found(tuple(inside), text, {"nodes": len(inside)})


@rule("QG616", "ir-version-too-low", WARNING)
def ir_version_too_low(facts: ModelFacts) -> Iterator[Found]:
    """The IR version is older than a type of the codes."""
    version = facts.original.ir_version or 0
    needed = next((ir_ for opset, ir_ in _IR_OF_OPSET.items() if facts.opset >= opset), 0)
    used = {coder.kind for coder in facts.coders}
    since = max((QDQ_SINCE.get(dtype, 0) for dtype in used), default=0)
    types = next((ir_ for opset, ir_ in _IR_OF_OPSET.items() if since >= opset), 0)
    if 0 < version < types:
        text = f"IR version {version} lacks a type of the codes, which came with {types}"
        figures = {"ir_version": version, "needed": types, "of_opset": needed}
        yield Found((), text, figures)


@rule("QG617", "lowest-code-of-weights", INFO, targets=("litert", "hls4ml", "tensorrt"))
def lowest_code_of_weights(facts: ModelFacts) -> Iterator[Found]:
    """Weights use the lowest code, which symmetric kernels do not accept."""
    for layer in facts.layers:
        decoder = facts.decoder_of(layer.node.inputs[1])
        counts = None if decoder is None else facts.counts(decoder)
        if decoder is None or counts is None or counts.histogram is None:
            continue
        is_symmetric = decoder.zero is None or not decoder.zero.any()
        if decoder.kind == "INT8" and counts.low == -128 and is_symmetric:
            number = int(counts.histogram[0])
            weights = counted(number, "weight")
            text = f"code -128 in {weights}: LiteRT and older TensorRT take -127 to 127"
            yield Found((decoder.node, layer.node), text, {"count": number})


@rule("QG618", "unknown-operator", INFO)
def unknown_operator(facts: ModelFacts) -> Iterator[Found]:
    """An operator has no known definition."""
    names = {(domain, name) for domain, name, _ in facts.model.functions}
    unknown = (
        (f"{node.domain}.{node.op_type}", node)
        for node in facts.nodes
        if not (node.domain.startswith(_PUBLIC_DOMAINS) or not node.domain)
        if not is_defined(node) and (node.domain, node.op_type) not in names
    )
    for name, nodes in by_key(unknown).items():
        text = f"{counted(len(nodes), 'node')} of {name}: no rule looks into them, and `run` cannot"
        yield Found(tuple(nodes), text, {"nodes": len(nodes), "operator": name})


@rule("QG619", "channel-scales-of-data", ERROR, targets=("onnxruntime*",))
def channel_scales_of_data(facts: ModelFacts) -> Iterator[Found]:
    """ONNX Runtime uses a kernel for one scale although data have one per channel, and fails."""
    for node in facts.of(*_ONE_SCALE):
        data = node.inputs[1:] if node.op_type == "Where" else node.inputs[:1]
        reader = facts.only_reader(node.outputs[0])
        coders = [facts.decoder_of(value) for value in data]
        if None in coders or reader is None or reader.op_type != QUANTIZE:
            continue
        if node.op_type == "Conv" and not _has_weights_of_8_bits(facts, node):
            continue
        around = [*(coder for coder in coders if coder is not None), facts.coder(reader)]
        sizes = [1 if coder.scale is None else coder.scale.size for coder in around]
        if max(sizes) > 1 and all(coder.kind in _BYTES for coder in around):
            text = f"{max(sizes)} scales beside {node.op_type}: {_ONE_SCALE[node.op_type]}"
            yield Found((node,), text, {"scales": max(sizes)})


@rule("QG620", "wide-codes-moved", ERROR, targets=("onnxruntime*",))
def wide_codes_moved(facts: ModelFacts) -> Iterator[Found]:
    """ONNX Runtime moves a DequantizeLinear of INT32 data, and refuses what it has written."""
    for decoder in facts.decoders:
        if decoder.kind != "INT32" or facts.is_stored(decoder):
            continue
        for reader in facts.readers(decoder.node.outputs[0]):
            last: ir.Node | None = reader
            while last is not None and last.op_type in PROPAGATED:
                last = facts.only_reader(last.outputs[0])
            is_quantized = last is not None and last.op_type == QUANTIZE
            if reader.op_type in PROPAGATED and not reader.domain and not is_quantized:
                text = f"{reader.op_type} moves decoded INT32 codes: no session can be made"
                yield Found((decoder.node, reader), text)


@rule("QG621", "narrow-data-of-products", ERROR, targets=("openvino*",))
def narrow_data_of_products(facts: ModelFacts) -> Iterator[Found]:
    """OpenVINO writes beyond its memory in matrix products of data of 4 bits."""
    for layer in narrow_products(facts.layers):
        kind = layer.description.x.codes
        text = f"data of {kind}: it writes beyond its memory, so that the process is aborted"
        yield Found((layer.node,), text, {"type": kind})


@rule(
    "QG622",
    "scale-in-a-list",
    ERROR,
    fix=LintFix("canonical-operators{forms=scalars}", "bits"),
    targets=("onnxruntime*",),
)
def scale_in_a_list(facts: ModelFacts) -> Iterator[Found]:
    """ONNX Runtime uses a kernel for scalars although a scale has the shape [1], and fails."""
    for node in facts.of("AveragePool"):
        reader = facts.only_reader(node.outputs[0])
        decoder = facts.decoder_of(node.inputs[0])
        if decoder is None or reader is None or reader.op_type != QUANTIZE:
            continue
        around = (decoder, facts.coder(reader))
        is_listed = any(each.scale is not None and each.scale.shape == (1,) for each in around)
        if is_listed and all(coder.kind in _BYTES for coder in around):
            yield Found((node,), f"a scale of shape [1] beside AveragePool: {_EARLY}")


def _has_weights_of_8_bits(facts: ModelFacts, node: ir.Node) -> bool:
    """Return whether weights are 8-bit codes, or floats that the runtime quantizes to 8 bits."""
    weights = facts.decoder_of(node.inputs[1])
    return weights.kind in _BYTES if weights else facts.constant(node.inputs[1]) is not None


_BYTES = ("INT8", "UINT8")
_LATE, _EARLY = "the model fails when it runs", "no session can be made"
_ONE_SCALE = {
    "Conv": _LATE,
    "GlobalAveragePool": _LATE,
    "AveragePool": _EARLY,
    "LeakyRelu": _EARLY,
    "Sigmoid": _EARLY,
    "Where": _EARLY,
}
"""Operators whose kernels accept one scale, and the effect of several scales."""
