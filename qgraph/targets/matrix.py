"""What each runtime is known to take, form by form.

A rule says what was seen with the version that its target names, or what that version's
documentation or source says. Where nothing was found out, the verdict is ``unknown``.
"""

from __future__ import annotations

from qgraph.targets.rules import Granularity, LoadRule, Loads, Target

YES, NO, UNKNOWN = Loads.YES, Loads.NO, Loads.UNKNOWN

_ENCODE, _DECODE = frozenset({"QuantizeLinear"}), frozenset({"DequantizeLinear"})
_PAIR = _ENCODE | _DECODE
_QUANT = frozenset({"Quant", "IntQuant"})
_QONNX = frozenset({"Quant", "IntQuant", "BipolarQuant", "Trunc", "FloatQuant"})
_CODED = frozenset({"QLinearConv", "QLinearMatMul"})
_INTEGER_OPERATORS = frozenset({"ConvInteger", "MatMulInteger"})
_PLAIN = frozenset({"", "ai.onnx.ml"})
_MICROSOFT = frozenset({"com.microsoft"})
_INT2 = frozenset({"INT2", "UINT2"})
_INT4 = frozenset({"INT4", "UINT4"})
_INT8 = frozenset({"INT8", "UINT8"})
_INT16 = frozenset({"INT16", "UINT16"})
_INT32 = frozenset({"INT32"})
_E4M3 = frozenset({"FLOAT8E4M3FN"})
_E5M2 = frozenset({"FLOAT8E5M2"})
_FNUZ = frozenset({"FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ"})
_FP8 = _E4M3 | _E5M2 | _FNUZ
_FP4 = frozenset({"FLOAT4E2M1"})
_FP6 = frozenset({"FLOAT6E2M3", "FLOAT6E3M2"})
_E8M0 = frozenset({"FLOAT8E8M0"})
_BFLOAT16 = frozenset({"BFLOAT16"})
_BLOCK = frozenset({Granularity.BLOCK})
_AXIS = frozenset({Granularity.AXIS})
_TENSOR = frozenset({Granularity.TENSOR})
_COMMON_CODES = _INT8 | _INT16 | _INT4

_FAKE_QUANTIZE = frozenset({"FakeQuantize"})
_MATMUL_NBITS = frozenset({"MatMulNBits"})

_ON_CODES = frozenset(
    {
        *("MatMulIntegerToFloat", "QAttention", "QGemm", "QLinearAdd", "QLinearConcat"),
        *("QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMul"),
        *("QLinearSigmoid", "QLinearSoftmax", "QLinearWhere"),
    }
)
"""Operators on integer codes of com.microsoft that tests run in ONNX Runtime."""

_FOREIGN = LoadRule(
    UNKNOWN, "whether it takes {name} of domain {domain!r} is not recorded", known=False
)

_UNDECLARED = LoadRule(
    NO, "domain {domain!r} is used, but not imported; any conversion adds the import",
    declared=False,
)  # fmt: skip

_NO_QONNX = LoadRule(NO, "it has no {name}; convert to qdq or onnx", names=_QONNX)
_NO_FAKE_QUANTIZE = LoadRule(
    NO, "it has no FakeQuantize; convert to qdq or onnx", names=_FAKE_QUANTIZE
)

_HLS4ML = frozenset(
    {
        *("MatMul", "BatchNormalization", "Add", "Sub", "Mul", "Div", "Sum", "Max", "Min"),
        *("Average", "Concat", "Transpose", "Reshape", "Flatten", "GlobalAveragePool"),
        *("GlobalMaxPool", "Relu", "Tanh", "Sigmoid", "LeakyRelu", "ThresholdedRelu", "Elu"),
        *("Selu", "PRelu", "Softmax", "Softsign", "Softplus", "Clip", "Constant", "Identity"),
    }
)

# What sessions of ONNX Runtime share, whatever computes: nodes that no provider takes stop it.
_ORT_REFUSES = (
    LoadRule(
        NO,
        "it has no {name}; convert to qdq or onnx, or apply make-portable",
        names=_QONNX | _FAKE_QUANTIZE,
        call=False,
    ),
    _UNDECLARED,
    LoadRule(YES, call=True),
    LoadRule(
        NO,
        "{name} of com.microsoft has no codes of type {codes}",
        names=_PAIR,
        domains=_MICROSOFT,
        codes=_INT2 | _FP8 | _FP4 | _FP6,
    ),
    LoadRule(
        NO,
        "it has no kernel for E8M0 scales; fold to another type or convert to onnx",
        names=_PAIR,
        scales=_E8M0,
    ),
    LoadRule(
        NO,
        "it has no kernel for {codes}; allow opset 21 only, or convert to onnx",
        names=_PAIR,
        codes=_FP4 | _FP6,
    ),
    LoadRule(
        NO,
        "it has no kernel for bfloat16 scales of {codes}",
        names=_PAIR,
        codes=_INT4,
        scales=_BFLOAT16,
    ),
    LoadRule(
        UNKNOWN,
        "whether it takes bfloat16 scales of {codes} is not recorded",
        names=_PAIR,
        scales=_BFLOAT16,
    ),
)

_ORT_LEAVES = "{name} on {codes} is left to the CPU"

_NO_BFLOAT16 = LoadRule(
    NO, "it has no kernel for bfloat16 scales of {codes}; export in float16 or float32",
    names=_PAIR, domains=_PLAIN, scales=_BFLOAT16,
)  # fmt: skip

QUANTIZES_DATA = LoadRule(
    YES,
    "its default optimizations may quantize the data of a MatMul with such weights; not at level "
    "BASIC or with session.qdq_matmulnbits_accuracy_level=1",
    names=_DECODE, codes=_INT2 | _INT4 | _INT8, weight=True, readers=frozenset({"MatMul"}),
)  # fmt: skip
"""What ONNX Runtime's CPU provider does with weights that are stored as codes."""

TARGETS: tuple[Target, ...] = (
    Target(
        "onnxruntime-cpu",
        "ONNX Runtime 1.31, run",
        (7, 26),
        13,
        (
            _NO_BFLOAT16,
            *_ORT_REFUSES,
            LoadRule(
                NO,
                "at its default optimizations and opset 21 or later it refuses zero points of INT8 "
                "before operators that move data, on processors that count codes as UINT8; allow "
                "opset 20 only, or store UINT8 codes",
                copied=True,
            ),
            LoadRule(
                YES,
                "version 1.31 loads {codes} before MatMul, Gemm and Conv only at level BASIC or "
                "below; version 1.32 at its defaults",
                names=_DECODE,
                codes=_FP8,
                readers=frozenset({"MatMul", "Gemm", "Conv"}),
            ),
            LoadRule(YES, names=_ON_CODES, domains=_MICROSOFT),
            QUANTIZES_DATA,
            LoadRule(YES, names=_PAIR | _MATMUL_NBITS),
            _FOREIGN,
        ),
    ),
    Target(
        "onnxruntime-cuda",
        "ONNX Runtime 1.31, table of kernels",
        (7, 26),
        13,
        (
            *_ORT_REFUSES,
            LoadRule(YES, _ORT_LEAVES, names=_PAIR, codes=_INT16 | _INT2 | _INT32 | _FNUZ),
            LoadRule(
                UNKNOWN,
                "whether its kernels take blocks of {codes} is not recorded",
                names=_PAIR,
                granularities=_BLOCK,
            ),
            LoadRule(YES, "{name} is left to the CPU", names=_CODED | _INTEGER_OPERATORS),
            LoadRule(YES, names=_PAIR | _MATMUL_NBITS),
            _FOREIGN,
        ),
    ),
    Target(
        "tensorrt",
        "TensorRT 11, documentation",
        (9, 25),
        None,
        (
            _NO_QONNX,
            _NO_FAKE_QUANTIZE,
            LoadRule(NO, "it has no {name}", names=_MATMUL_NBITS | _CODED | _INTEGER_OPERATORS),
            LoadRule(UNKNOWN, "whether it takes functions in a model is not recorded", call=True),
            LoadRule(
                NO,
                "zero points other than 0: it takes symmetric quantizers only",
                names=_PAIR,
                offset=True,
            ),
            LoadRule(
                NO,
                "codes of type {codes}: of integers it takes INT8, and INT4 weights",
                names=_PAIR,
                codes=frozenset({"UINT8", "UINT4"}) | _INT16 | _INT2 | _INT32,
            ),
            LoadRule(
                NO,
                "codes of type {codes}: of 8 bit floats it takes FLOAT8E4M3FN",
                names=_PAIR,
                codes=_E5M2 | _FNUZ | _FP6,
            ),
            LoadRule(
                NO,
                "INT4 codes of data: it takes INT4 weights only",
                names=_PAIR,
                codes=_INT4,
                weight=False,
            ),
            LoadRule(
                YES,
                "INT4 blocks have to lie along one of the last two axes",
                names=_PAIR,
                codes=_INT4,
                blocks=frozenset({64, 128}),
            ),
            LoadRule(
                NO, "INT4 weights: it takes blocks of 64 or 128 only", names=_PAIR, codes=_INT4
            ),
            LoadRule(
                NO,
                "blocks of INT8: it takes blocks of INT4, FP4 and FP8",
                names=_PAIR,
                codes=_INT8,
                granularities=_BLOCK,
            ),
            LoadRule(YES, names=_PAIR, codes=_E4M3, scales=_E8M0, blocks=frozenset({32})),
            LoadRule(NO, "E8M0 scales of {codes}", names=_PAIR, scales=_E8M0),
            LoadRule(
                UNKNOWN,
                "whether it takes blocks of {codes} with such scales is not recorded",
                names=_PAIR,
                codes=_E4M3,
                granularities=_BLOCK,
            ),
            LoadRule(
                YES,
                "FP4 counts in matrix products only; a convolution runs in float silently",
                names=_PAIR,
                codes=_FP4,
            ),
            LoadRule(YES, names=_PAIR, domains=_PLAIN),
            _FOREIGN,
        ),
    ),
    Target(
        "openvino-cpu",
        "OpenVINO 2026.4, run",
        (1, 28),
        14,
        (
            LoadRule(YES, names=_FAKE_QUANTIZE, domains=frozenset({"", "org.openvinotoolkit"})),
            _NO_QONNX,
            LoadRule(UNKNOWN, "whether it takes functions in a model is not recorded", call=True),
            LoadRule(NO, "{codes} stops the import", names=_PAIR, codes=_INT2 | _FNUZ),
            LoadRule(NO, "it refuses QuantizeLinear to FP4", names=_ENCODE, codes=_FP4),
            LoadRule(
                YES,
                "it removes such pairs on data: the result is that of the float model",
                names=_PAIR,
                codes=_INT16,
                granularities=_TENSOR,
                weight=False,
            ),
            LoadRule(
                YES,
                "its default quantizes the data of a MatMul with such weights; "
                "EXECUTION_MODE_HINT=ACCURACY does not",
                names=_DECODE,
                codes=_INT8 | frozenset({"UINT4"}),
                weight=True,
                readers=frozenset({"MatMul"}),
            ),
            LoadRule(
                YES,
                "its QuantizeLinear misses by one ulp beside some ties of {codes}",
                names=_ENCODE,
                codes=_E4M3 | _E5M2,
            ),
            LoadRule(
                UNKNOWN,
                "whether it takes codes of type {codes} is not recorded",
                names=_PAIR,
                codes=_FP6 | _INT32,
            ),
            LoadRule(YES, "values were not compared", names=_MATMUL_NBITS, bits=frozenset({4})),
            LoadRule(
                UNKNOWN,
                "whether it takes MatMulNBits of {bits} bits is not recorded",
                names=_MATMUL_NBITS,
            ),
            LoadRule(YES, "values of {name} were not compared", names=_CODED),
            LoadRule(UNKNOWN, "whether it takes {name} is not recorded", names=_INTEGER_OPERATORS),
            LoadRule(YES, names=_PAIR, domains=_PLAIN),
            _FOREIGN,
        ),
    ),
    Target(
        "qnn",
        "QNN provider of ONNX Runtime 1.31, source",
        (7, 26),
        13,
        (
            *(rule for rule in _ORT_REFUSES if not (rule.codes and "FLOAT4E2M1" in rule.codes)),
            LoadRule(
                UNKNOWN,
                "whether it takes codes of type {codes} is not recorded",
                names=_PAIR,
                codes=_FP8 | _FP4 | _FP6,
            ),
            LoadRule(YES, _ORT_LEAVES, names=_PAIR, codes=_INT2),
            LoadRule(
                YES,
                "blocks are left to the CPU but for the idiom of two chained scales",
                names=_PAIR,
                granularities=_BLOCK,
            ),
            LoadRule(
                YES,
                "inside full units of Q and DQ around a node; else left to the CPU",
                names=_PAIR,
                codes=_INT8,
            ),
            LoadRule(YES, names=_PAIR, codes=_INT16, weight=False),
            LoadRule(
                UNKNOWN,
                "whether it takes weights of type {codes} is not recorded",
                names=_PAIR,
                codes=_INT16 | _INT32,
            ),
            LoadRule(YES, names=_PAIR, codes=_INT4, weight=True, granularities=_AXIS, offset=False),
            LoadRule(YES, _ORT_LEAVES, names=_PAIR, codes=_INT4),
            LoadRule(YES, "{name} is left to the CPU", names=_MATMUL_NBITS | _INTEGER_OPERATORS),
            _FOREIGN,
        ),
    ),
    Target(
        "hls4ml",
        "hls4ml main, source",
        (9, 20),
        None,
        (
            LoadRule(
                YES,
                "after the cleanup of qonnx; scale, zero point and width constant, best with zero "
                "point 0 and one power of two as scale",
                names=frozenset({"Quant", "IntQuant", "BipolarQuant"}),
            ),
            LoadRule(NO, "it has no {name}", names=_QONNX | _FAKE_QUANTIZE | _MATMUL_NBITS),
            LoadRule(
                NO, "it has no {name}; convert to qonnx", names=_PAIR | _CODED | _INTEGER_OPERATORS
            ),
            LoadRule(YES, "Gemm has to be split first", names=frozenset({"Gemm"})),
            LoadRule(
                YES,
                "{name} has to be brought into channels-last form first",
                names=frozenset({"Conv", "MaxPool", "AveragePool"}),
            ),
            LoadRule(YES, names=_HLS4ML),
            LoadRule(
                UNKNOWN, "{name} is not among its operators; the cleanup of qonnx may remove it"
            ),
        ),
        by_name=True,
        beyond=UNKNOWN,
    ),
    Target(
        "finn",
        "FINN main, source",
        (9, 22),
        10,
        (
            LoadRule(NO, "zero points other than 0", names=_QUANT, offset=True),
            LoadRule(YES, "each weight may feed one node only", names=_QUANT, weight=True),
            LoadRule(
                YES,
                "quantizers of data of more than 8 bits are left in place",
                names=_QUANT,
                bits=frozenset(range(9, 65)),
            ),
            LoadRule(YES, names=_QUANT),
            LoadRule(YES, "with scale 1 only", names=frozenset({"BipolarQuant"})),
            LoadRule(YES, "Trunc behind an average pool only", names=frozenset({"Trunc"})),
            LoadRule(NO, "it has no {name}", names=_QONNX | _FAKE_QUANTIZE | _MATMUL_NBITS),
            LoadRule(
                NO, "it has no {name}; convert to qonnx", names=_PAIR | _CODED | _INTEGER_OPERATORS
            ),
            _FOREIGN,
        ),
        by_name=True,
    ),
)
"""The runtimes, in the order in which they are shown."""
