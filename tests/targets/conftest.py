"""One quantized layer as a model, in all the forms that profiles speak of."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

SHAPES = {
    "Conv": ("[1,4,8,8]", (4, 4, 3, 3), "[1,4,6,6]"),
    "ConvTranspose": ("[1,16,8,8]", (16, 32, 3, 3), "[1,32,10,10]"),
    "MatMul": ("[2,16]", (16, 8), "[2,8]"),
    "Gemm": ("[2,16]", (16, 8), "[2,8]"),
}
PAIR = "yq = QuantizeLinear (c, ys, yz)  y = DequantizeLinear (yq, ys, yz)"


@dataclass(frozen=True)
class Net:
    """A model of one layer; fields are parts of its text.

    Attributes:
        x, w, y: types of the codes.
        x_zero, w_zero, y_zero: zero points; that of the weights None if it is not stated.
        channels: number of scales of the weights; 0 for one that is a scalar.
        axis: along which these differ.
        data: nodes that make ``d``, the data of the layer, of ``x``.
        weight: nodes that make ``v`` of the codes ``w``.
        bias: ``""``, ``", b"``, and nodes that make it.
        behind: nodes from the result ``c`` to the output ``y``.
        more: further initializers.
    """

    op: str = "Conv"
    x: str = "uint8"
    w: str = "int8"
    y: str = "uint8"
    x_zero: int = 3
    w_zero: int | None = 0
    y_zero: int = 4
    channels: int = 0
    axis: int = 0
    data: str = "q = QuantizeLinear (x, xs, xz)  d = DequantizeLinear (q, xs, xz)"
    weight: str = "v = DequantizeLinear <axis = AXIS> (w, ws ZERO)"
    bias: tuple[str, str] = ("", "")
    attributes: str = ""
    behind: str = PAIR
    more: str = ""
    opset: int = 21

    def model(self) -> ir.Model:
        """Return the model; the layer has the name ``layer``."""
        data, sizes, result = SHAPES[self.op]
        count = max(self.channels, 1)
        size = f"[{self.channels}]" if self.channels else ""
        zero = "" if self.w_zero is None else ", wz"
        listed = ", ".join([str(self.w_zero or 0)] * count)
        stored = "" if not zero else f", {self.w}{size} wz = {{{listed}}}"
        weight = self.weight.replace("AXIS", str(self.axis)).replace("ZERO", zero)
        low = 100 if self.w == "uint8" else -7
        numbers = np.random.default_rng(0).integers(low, low + 14, math.prod(sizes))
        model = ir.from_onnx_text(
            f"""<ir_version: 10, opset_import: ["": {self.opset}]>
            net (float{data} x) => (float{result} y)
            <float xs = {{0.05}}, {self.x} xz = {{{self.x_zero}}}, float ys = {{0.1}},
             {self.y} yz = {{{self.y_zero}}}, float{size} ws = {{{", ".join(["0.02"] * count)}}},
             int8[{",".join(map(str, sizes))}] w = {{{", ".join(map(str, numbers))}}}
             {stored}{self.more}> {{
                {self.data}  {weight}  {self.bias[1]}
                [layer] c = {self.op} {self.attributes} (d, v {self.bias[0]})
                {self.behind} }}"""
        )
        value = model.graph.initializers["w"]
        kind = ir.DataType[self.w.upper()]
        array = numbers.reshape(sizes).astype(kind.numpy())
        value.const_value, value.dtype = ir.Tensor(array, dtype=kind, name="w"), kind
        return model

    def but(self, **changes: object) -> Net:
        """Return the model with other fields."""
        return replace(self, **changes)  # type: ignore[arg-type]
