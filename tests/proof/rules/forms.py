"""Small models of one operator each, in float32 and in float64, for tests of its rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import onnx_ir as ir

HEAD = '<ir_version: 10, opset_import: ["": {}, "com.microsoft": 1]>'

CONSTANTS = {
    "two": "KIND two = {2}",
    "low": "KIND low = {-0.625}",
    "high": "KIND high = {0.75}",
    "half": "KIND half = {0.5}",
    "quarter": "KIND quarter = {0.25}",
    "one": "int64[1] one = {1}",
    "three": "int64[1] three = {3}",
    "pads": "int64[4] pads = {0, 1, 0, 1}",
    "index": "int64[3] index = {5, 0, 2}",
    "sizes": "int64[2] sizes = {2, 9}",
    "larger": "int64[3] larger = {2, 3, 6}",
    "twice": "int64[2] twice = {1, 2}",
    "scales": "float[4] scales = {1, 1, 2, 2}",
    "places": "int64[2] places = {2, 3}",
    "none": "KIND none = {0}",
    "deep": "KIND deep = {-1e30}",
    "mask": "KIND[3,6] mask = {0, -1e9, 0, 0, -1e9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -2e4}",
    "hidden": "bool[3,6] hidden = {0, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1}",
}
"""Constants that nodes may name."""


@dataclass(frozen=True)
class Form:
    """The text of nodes, of which the last one gives y.

    Attributes:
        nodes: ``$3.4`` stands for random constants of shape [3, 4] in -1 .. 1, ``$3.4+`` for
            positive ones; names of :data:`CONSTANTS` for these.
        inputs: shapes of the inputs by name.
        meant: nodes that mean the same, of standard operators.
        opset: of the standard operators.
    """

    nodes: str
    inputs: Mapping[str, tuple[int, ...]]
    meant: str = ""
    opset: int = 22

    def model(
        self, kind: str = "float", *, nudge: float = 0.0, stored: str = "float32"
    ) -> onnx.ModelProto:
        """Return the model in a type.

        Args:
            kind: float, float16 or double.
            nudge: relative change of the random constants.
            stored: type to which these are rounded.
        """
        generator = np.random.default_rng(len(self.nodes))
        constants: list[str] = []

        def random(match: re.Match[str]) -> str:
            shape = [int(size) for size in match[1].split(".")]
            numbers = generator.uniform(0.1 if match[2] else -1.0, 1, shape) * (1 + nudge)
            flat = numbers.astype(stored).reshape(-1)
            # the text of ONNX has bits for float16
            values = flat.view(np.uint16) if kind == "float16" else flat.astype(np.float64)
            listed = ", ".join(map(str, values.tolist()))
            sizes = ",".join(map(str, shape))
            constants.append(f"{kind}[{sizes}] w{len(constants)} = {{{listed}}}")
            return f"w{len(constants) - 1}"

        text = self.meant if kind == "double" and self.meant else self.nodes
        nodes = re.sub(r"\$(\d+(?:\.\d+)*)(\+?)", random, text)
        named = [c for name, c in CONSTANTS.items() if re.search(rf"\b{name}\b", nodes)]
        listed = ", ".join([*constants, *(text.replace("KIND", kind) for text in named)])
        inputs = ", ".join(
            f"{kind}[{','.join(map(str, shape))}] {name}" for name, shape in self.inputs.items()
        )
        held = f"<{listed}>" if listed else ""
        head = HEAD.format(self.opset)
        return onnx.parser.parse_model(f"{head} net ({inputs}) => ({kind} y) {held} {{ {nodes} }}")

    def ir(self, kind: str = "float", *, nudge: float = 0.0, stored: str = "float32") -> ir.Model:
        """Return the same as a model of onnx_ir."""
        return ir.from_proto(self.model(kind, nudge=nudge, stored=stored))

    def ideal(
        self, *, nudge: float = 0.0, stored: str = "float32"
    ) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        """Return what computes in float64 what the model means."""
        model = self.model("double", nudge=nudge, stored=stored)
        evaluator = onnx.reference.ReferenceEvaluator(model)

        def run(feeds: Mapping[str, np.ndarray]) -> np.ndarray:
            wide = {name: np.asarray(array, np.float64) for name, array in feeds.items()}
            return np.asarray(evaluator.run(None, wide)[0])

        return run


IMAGE = {"x": (1, 2, 5, 5)}
MATRIX = {"x": (3, 6)}
TWO = {"x": (3, 6), "z": (3, 6)}
STACK = {"x": (2, 4, 6)}

_CONV = "t = Conv (x, $3.2.1.1)"
_SCALED = "t = Mul (x, $6)"

FORMS = {
    "Conv": Form("y = Conv <pads=[1, 1, 1, 1]> (x, $3.2.3.3, $3)", IMAGE),
    "Conv, groups": Form("y = Conv <group=2, strides=[2, 2]> (x, $4.1.3.3)", IMAGE),
    "Conv, automatic": Form('y = Conv <auto_pad="SAME_UPPER"> (x, $4.2.2.2)', IMAGE),
    "ConvTranspose": Form("y = ConvTranspose <strides=[2, 2]> (x, $2.3.3.3, $3)", IMAGE),
    "Gemm": Form("y = Gemm <transB=1, alpha=0.3, beta=0.7> (x, $5.6, $5)", MATRIX),
    "Gemm, transposed": Form("y = Gemm <transA=1> (x, $3.4)", MATRIX),
    "Gemm, matrix": Form("y = Gemm (x, $6.4, $3.4)", MATRIX),
    "Gemm, data": Form("t = Gemm <transB=1, alpha=0.5> (x, z) y = Gemm (x, $6.3, t)", TWO),
    "MatMul": Form("y = MatMul (x, $6.4)", MATRIX),
    "MatMul, left": Form("y = MatMul ($5.4, x)", STACK),
    "MatMul, stack": Form("y = MatMul (x, $2.6.5)", STACK),
    "MatMul, data": Form("t = Transpose <perm=[1, 0]> (z) y = MatMul (x, t)", TWO),
    "FusedMatMul": Form(
        "y = com.microsoft.FusedMatMul <transB=1, alpha=0.25> (x, z)",
        TWO,
        "t = Transpose <perm=[1, 0]> (z) m = MatMul (x, t) y = Mul (m, quarter)",
    ),
    "FusedGemm": Form(
        'y = com.microsoft.FusedGemm <activation="Relu"> (x, $6.4, $4)',
        MATRIX,
        "m = Gemm (x, $6.4, $4) y = Relu (m)",
    ),
    "FusedConv": Form(
        'y = com.microsoft.FusedConv <activation="LeakyRelu", activation_params=[0.25]> '
        "(x, $4.2.2.2, $4)",
        IMAGE,
        "m = Conv (x, $4.2.2.2, $4) y = LeakyRelu <alpha=0.25> (m)",
    ),
    "BatchNormalization": Form("y = BatchNormalization (x, $2, $2, $2, $2+)", IMAGE),
    "Add": Form("y = Add (x, $6)", MATRIX),
    "Sub": Form("y = Sub ($6, x)", MATRIX),
    "Mul": Form("y = Mul (x, $6)", MATRIX),
    "Div": Form("y = Div (x, $6+)", MATRIX),
    "Add, data": Form("y = Add (x, z)", TWO),
    "Mul, data": Form("y = Mul (x, z)", TWO),
    "Div, data": Form("e = Exp (z) y = Div (x, e)", TWO),
    "Mul, square": Form("y = Mul (x, x)", MATRIX),
    "Pow": Form("y = Pow (x, two)", MATRIX),
    "Clip": Form("y = Clip (x, low, high)", MATRIX),
    "LeakyRelu": Form("y = LeakyRelu <alpha=0.3> (x)", MATRIX),
    "PRelu": Form("y = PRelu (x, $6)", MATRIX),
    **{
        name: Form(f"y = {name} (x)", MATRIX)
        for name in (
            *("Abs", "Atan", "Celu", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish"),
            *("LogSoftmax", "Mish", "Neg", "Relu", "Selu", "Sigmoid", "Softmax", "Softplus"),
            *("Softsign", "Tanh"),
        )
    },
    "Gelu, tanh": Form('y = Gelu <approximate="tanh"> (x)', MATRIX),
    "Swish": Form("s = Sigmoid (x) y = Mul (x, s)", MATRIX),
    "QuickGelu": Form(
        "y = com.microsoft.QuickGelu <alpha=2.0> (x)",
        MATRIX,
        "d = Mul (x, two) s = Sigmoid (d) y = Mul (x, s)",
    ),
    "BiasGelu": Form("y = com.microsoft.BiasGelu (x, $6)", MATRIX, "t = Add (x, $6) y = Gelu (t)"),
    "FastGelu": Form(
        "y = com.microsoft.FastGelu (x, $6)",
        MATRIX,
        't = Add (x, $6) y = Gelu <approximate="tanh"> (t)',
    ),
    "Log": Form("e = Exp (x) y = Log (e)", MATRIX),
    "Sqrt": Form("e = Exp (x) y = Sqrt (e)", MATRIX),
    "Reciprocal": Form("e = Exp (x) y = Reciprocal (e)", MATRIX),
    "Min": Form("y = Min (x, z)", TWO),
    "Max": Form("y = Max (x, z, $6)", TWO),
    "Sum": Form("y = Sum (x, z, $6)", TWO),
    "Mean": Form("y = Mean (x, z, $6)", TWO),
    "Concat": Form(f"{_SCALED} a = Concat <axis=1> (x, t) y = MatMul (a, $12.4)", MATRIX),
    "Split": Form(f"{_SCALED} a, b = Split <axis=1, num_outputs=2> (t) y = Add (a, b)", MATRIX),
    "Slice": Form(f"{_SCALED} y = Slice (t, one, three, one)", MATRIX),
    "Pad": Form(f"{_SCALED} y = Pad (t, pads, half)", MATRIX),
    "Pad, zeros": Form("y = Pad (x, pads)", MATRIX),
    "Gather": Form(f"{_SCALED} y = Gather <axis=1> (t, index)", MATRIX),
    "Reshape": Form(f"{_SCALED} y = Reshape (t, sizes)", MATRIX),
    "Transpose": Form(f"{_SCALED} y = Transpose (t)", MATRIX),
    "Flatten": Form(f"{_CONV} y = Flatten (t)", IMAGE),
    "Expand": Form(f"{_SCALED} y = Expand (t, larger)", MATRIX),
    "Tile": Form("y = Tile (x, twice)", MATRIX),
    "Resize": Form(f'{_CONV} y = Resize <mode="nearest"> (t, , scales)', IMAGE),
    "DepthToSpace": Form("t = Conv (x, $4.2.1.1) y = DepthToSpace <blocksize=2> (t)", IMAGE),
    "MaxPool": Form(f"{_CONV} y = MaxPool <kernel_shape=[2, 2]> (t)", IMAGE),
    "MaxPool, sums": Form(
        "t = Conv (x, $2.2.1.1) u = Add (t, x) y = MaxPool <kernel_shape=[2, 2]> (u)", IMAGE
    ),
    "AveragePool": Form(f"{_CONV} y = AveragePool <kernel_shape=[2, 2]> (t)", IMAGE),
    "AveragePool, zeros and a bias": Form(
        "t = Conv (x, $3.2.1.1, $3) "
        "y = AveragePool <kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1> (t)",
        IMAGE,
    ),
    "AveragePool, zeros": Form(
        "y = AveragePool <kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1> (x)", IMAGE
    ),
    "GlobalAveragePool": Form(f"{_CONV} y = GlobalAveragePool (t)", IMAGE),
    "ReduceMean": Form(f"{_CONV} y = ReduceMean <keepdims=0> (t, places)", IMAGE),
    "ReduceMean, channels": Form(f"{_CONV} y = ReduceMean <keepdims=0> (t, one)", IMAGE),
    "ReduceSum": Form("y = ReduceSum (x, one)", MATRIX),
    "ReduceMax": Form(f"{_SCALED} y = ReduceMax (t, one)", MATRIX),
    "ReduceMin": Form("y = ReduceMin <keepdims=0> (x, one)", MATRIX),
    "Softmax, masked": Form(f"{_SCALED} m = Add (mask, t) y = Softmax (m)", MATRIX),
    "Softmax, chosen": Form(f"{_SCALED} m = Where (hidden, deep, t) y = Softmax (m)", MATRIX),
    "Softmax, minus infinity": Form(
        f"{_SCALED} i = Log (none) c = Where (hidden, i, none) m = Add (t, c) y = Softmax (m)",
        MATRIX,
        f"{_SCALED} m = Where (hidden, deep, t) y = Softmax (m)",
    ),
    "ReduceLogSumExp": Form("y = ReduceLogSumExp (x, one)", MATRIX),
    "LayerNormalization": Form("y = LayerNormalization (x, $6, $6)", MATRIX),
    "RMSNormalization": Form("y = RMSNormalization (x, $6)", MATRIX, opset=23),
    "InstanceNormalization": Form("y = InstanceNormalization (x, $2, $2)", IMAGE),
    "GroupNormalization": Form("y = GroupNormalization <num_groups=1> (x, $2, $2)", IMAGE),
    "SkipLayerNormalization": Form(
        "y = com.microsoft.SkipLayerNormalization <epsilon=0.0625> (x, z, $6, $6, $6)",
        TWO,
        "t = Add (x, z) g = Identity ($6) h = Identity ($6) u = Add (t, $6) "
        "y = LayerNormalization <epsilon=0.0625> (u, g, h)",
    ),
}
