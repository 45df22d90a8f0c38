"""Known changes that runtimes make to quantized models, each with the option that disables it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Suspect:
    """A change that a runtime makes by default.

    Attributes:
        what: the change.
        option: the option that prevents it, as users write it.
        options: the same option for a configuration, see :mod:`qgraph.comparison.runtimes.worker`.
    """

    what: str
    option: str
    options: Options


@dataclass(frozen=True)
class RuntimeLevel:
    """A configuration of a runtime to test.

    Attributes:
        name: name in reports: plain, basic or default.
        setting: description.
        options: its options.
    """

    name: str
    setting: str
    options: Options


@dataclass(frozen=True)
class Runtime:
    """A runtime to try, with its levels and known changes.

    Attributes:
        module: name of its Python module.
        name: name in reports.
        levels: levels, from fewest changes to the defaults.
        suspects: possible causes of a difference, most specific first.
    """

    module: str
    name: str
    levels: Sequence[RuntimeLevel]
    suspects: Sequence[Suspect]


def merged(first: Options, second: Options) -> Options:
    """Return both sets of options; lists and tables of one name are joined."""
    result = dict(first)
    for key, value in second.items():
        known = result.get(key)
        if isinstance(known, Mapping):
            result[key] = {**known, **value}
        elif isinstance(known, list):
            result[key] = [*known, *value]
        else:
            result[key] = value
    return result


def _without(what: str, *optimizers: str) -> Suspect:
    named = ", ".join(optimizers)
    return Suspect(what, f"disabled_optimizers={named}", {"disabled": list(optimizers)})


def _entry(what: str, key: str, value: str) -> Suspect:
    return Suspect(what, f"{key}={value}", {"entries": {key: value}})


def _property(what: str, key: str, value: str) -> Suspect:
    return Suspect(what, f"{key}={value}", {key: value})


ONNX_RUNTIME = Runtime(
    "onnxruntime",
    "ONNX Runtime",
    (
        RuntimeLevel("plain", "without optimizations", {"level": "ORT_DISABLE_ALL"}),
        RuntimeLevel("basic", "at BASIC", {"level": "ORT_ENABLE_BASIC"}),
        RuntimeLevel("default", "by default", {"level": "ORT_ENABLE_ALL"}),
    ),
    (
        _entry("MatMulNBits with int8 activations", "session.qdq_matmulnbits_accuracy_level", "1"),
        _without("float weights and biases next to Q/DQ are quantized", "WeightBiasQuantization"),
        _without("neighbouring Q/DQ pairs are merged", "DoubleQDQPairsRemover"),
        _without("Q/DQ are moved across other operators", "QDQPropagationTransformer"),
        _without("additions of zero and similar operators are removed", "NoopElimination"),
        _without(
            "scales and shifts are folded into weights of convolutions",
            "ConvBNFusion",
            "ConvMulFusion",
            "ConvAddFusion",
        ),
        _without(
            "scales are folded into matrix products",
            "MatMul_BatchNormalization_Fusion",
            "MatMulScaleFusion",
        ),
        _without("activations are quantized for MatMulInteger", "DynamicQuantizeMatMulFusion"),
        _without("Q/DQ around operators become integer kernels", "QDQSelectorActionTransformer"),
        _without("MatMul and Add become Gemm", "MatMulAddFusion"),
        _without(
            "activations are fused into convolutions and Gemm",
            "ConvActivationFusion",
            "ConvAddActivationFusion",
            "GemmActivationFusion",
            "MatMulActivationFusion",
        ),
        _without("convolutions use another memory layout", "NchwcTransformer", "NhwcTransformer"),
        _without("constants are folded", "ConstantFolding"),
        _entry("Q/DQ are fused and removed", "session.disable_quant_qdq", "1"),
        Suspect(
            "fusions above the level EXTENDED",
            "graph_optimization_level=ORT_ENABLE_EXTENDED",
            {"level": "ORT_ENABLE_EXTENDED"},
        ),
        Suspect(
            "fusions above the level BASIC",
            "graph_optimization_level=ORT_ENABLE_BASIC",
            {"level": "ORT_ENABLE_BASIC"},
        ),
    ),
)

OPENVINO = Runtime(
    "openvino",
    "OpenVINO",
    (
        RuntimeLevel(
            "plain",
            "in its accuracy mode",
            {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_PRECISION_HINT": "f32"},
        ),
        RuntimeLevel("default", "by default", {}),
    ),
    (
        _property(
            "activations are quantized for compressed weights",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE",
            "0",
        ),
        _property("a narrower type than float32", "INFERENCE_PRECISION_HINT", "f32"),
        _property(
            "narrower types and quantized activations, for speed", "EXECUTION_MODE_HINT", "ACCURACY"
        ),
    ),
)

RUNTIMES = (ONNX_RUNTIME, OPENVINO)
