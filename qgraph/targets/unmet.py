"""Conditions of kernels that a layer does not meet, each with a stable id such as ``QG201``."""

from __future__ import annotations

from typing import Final

from qgraph.reasons import Cause

UNMET: Final[dict[str, Cause]] = {}
"""All conditions by id. Ids are never given to another condition."""


def _condition(number: int, name: str, meaning: str, remedy: str) -> Cause:
    cause = Cause(f"QG{number}", name, meaning, remedy)
    UNMET[cause.id] = cause
    return cause


NO_KERNEL = _condition(
    201, "no-kernel", "The target has no kernel on codes for such a layer.",
    "Leave the layer in float, or write it in another operator.",
)  # fmt: skip
NOT_RECORDED = _condition(
    202, "not-recorded", "The profile of the target says nothing about such layers.",
    "Try it in the runtime, and state the result in a profile of your own.",
)  # fmt: skip
TYPES = _condition(
    203, "types-of-codes", "No kernel takes codes of these types together.",
    "deploy stores codes in a type that kernels take, if they fit into it; -p repack and "
    "-p shift-zero-points do it one by one. Otherwise quantize the network again with codes of a "
    "type that 'qgraph targets TARGET' lists. A kernel of INT8 without zero points, as in "
    "TensorRT, takes signed codes of 8 bits, or unsigned codes of 7 bits.",
)  # fmt: skip
INDIRECT = _condition(
    204, "indirect-pair",
    "Codes of this type are taken only straight from QuantizeLinear to one DequantizeLinear.",
    "Use unsigned codes, remove what is between, or give each reader a pair of its own.",
)  # fmt: skip
WRITTEN = _condition(
    205, "form-of-quantizer", "The target does not recognise the quantizer as it is written.",
    "Convert it to a plain pair of QuantizeLinear and DequantizeLinear.",
)  # fmt: skip
LEVELS = _condition(
    206, "levels", "The target does not take this number of levels.",
    "Write it as QuantizeLinear, Clip and DequantizeLinear.",
)  # fmt: skip
GRANULARITY = _condition(
    207, "granularity", "The kernel takes no scales of this granularity.",
    "Move scales of channels into the weights, or quantize with other scales.",
)  # fmt: skip
AXIS = _condition(
    208, "axis", "Scales of this operand may not differ along this axis.",
    "Quantize weights along the axis of output channels.",
)  # fmt: skip
BLOCKS = _condition(
    209, "blocks", "The kernel takes no blocks of this size, or along this axis.",
    "Quantize with blocks that the kernel takes.",
)  # fmt: skip
ZERO_POINT = _condition(
    210, "zero-point", "The kernel takes no such zero points.",
    "Make weights symmetric, or shift zero points, where codes allow it.",
)  # fmt: skip
ZERO_INPUT = _condition(
    211, "zero-point-input", "The zero point has to be stated, also if it is zero.",
    "Add a zero point of zero to the DequantizeLinear.",
)  # fmt: skip
SCALE = _condition(
    212, "scale", "The scales are not as the kernel needs them.",
    "Make them constant, positive, powers of two, or of another type.",
)  # fmt: skip
CONSTANT = _condition(
    213, "constant-codes", "The kernel takes constant codes only, or only data.",
    "Leave such a product in float.",
)  # fmt: skip
BEFORE = _condition(
    214, "before-layer", "An operator between quantizer and layer hides the codes.",
    "Move it before the quantizer, or onto the codes: -p move-quantizers, -p fold-constants.",
)  # fmt: skip
BIAS_TYPE = _condition(
    215, "bias-type", "The kernel does not take a bias of this type.",
    "Store the bias as int32 codes: -p quantize-bias.",
)  # fmt: skip
BIAS_SCALE = _condition(
    216, "bias-scale", "The scale of the bias is not the product of the scales of the operands.",
    "Quantize the bias anew with that scale: -p quantize-bias.",
)  # fmt: skip
BEHIND = _condition(
    217, "behind-layer", "An operator between layer and quantizer keeps it from an integer kernel.",
    "Fold it into weights and bias (-p fold-batch-norm), or into the quantizer "
    "(-p merge-activation). An operator that neither pass takes, such as Sigmoid, needs a "
    "quantizer before it, when the network is quantized.",
)  # fmt: skip
NO_QUANTIZER = _condition(
    218, "no-quantizer", "The kernel needs a quantizer behind the layer.",
    "Quantize the result, or leave the layer in float.",
)  # fmt: skip
QUANTIZED = _condition(
    219, "quantized-result", "This kernel gives float values, and a quantizer follows.",
    "Use the kernel with a quantized result.",
)  # fmt: skip
CONSUMERS = _condition(
    220, "several-readers", "Several operators read the result before it is quantized.",
    "Let all of them read the quantized result, if their quantizers are equal.",
)  # fmt: skip
GRAPH_OUTPUT = _condition(
    221, "graph-output", "The result is an output of the model before it is quantized.",
    "Let the model give the dequantized result.",
)  # fmt: skip
ATTRIBUTES = _condition(
    222, "attributes", "The kernel does not take these attributes, groups or number of axes.",
    "Write the layer in the form that the kernel takes: -p canonical-operators.",
)  # fmt: skip
PROCESSOR = _condition(
    223, "processor", "The kernel is known of other processors only.",
    "Run the model on the processor that is meant.",
)  # fmt: skip
SLOWER = _condition(
    224, "slower", "The integer form of the layer was measured to be slower than the float form.",
    "Nothing; or deploy with --tune, which measures both on your machine.",
)  # fmt: skip
PACKED = _condition(
    225, "packed", "The weights are stored in fewer bits than any integer kernel takes.",
    "Deploy with --prefer speed, which stores them in a type that integer kernels take.",
)  # fmt: skip
NOT_CODES = _condition(
    226, "operands-not-codes",
    "A kernel of the target computes such a layer, but in the result the quantizer of the data or "
    "of the weights is not a plain one: other operators stand around it, so the runtime decodes "
    "the operand and computes in float.",
    "The refusals of passes after this reason say what could not be rewritten. Without any, "
    "'qgraph info' lists the quantizers of the result; use whole zero points and one scale for all "
    "data of a layer.",
)  # fmt: skip
SATURATES = _condition(
    239, "products-saturate",
    "The processor adds two neighbouring products in 16 bits, and larger sums are cut off, so that "
    "results of the integer kernel are wrong.",
    "Quantize weights to 7 bits, or run the model on a processor with VNNI and name it: "
    "--target NAME@x86-64.",
)  # fmt: skip
PREDICTION = _condition(
    227, "not-as-predicted",
    "The runtime that is installed executes the layer in float, and the profile has a kernel.",
    "Compare its version with that of the profile ('qgraph targets NAME'), and state what it does "
    "in a profile of your own.",
)  # fmt: skip
