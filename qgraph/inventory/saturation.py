"""Whether a runtime, on this processor, adds products of 8 bits with saturation.

x86-64 processors without VNNI add two neighbouring products of data and weights in 16 bits. Where
both weights are near 127, the sum exceeds 32767 and is cut off.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Float32

_COUNT = 64
_PROBE = f"""<ir_version: 8, opset_import: ["": 13]>
probe (float[1,{_COUNT}] x) => (float[1,1] y)
<float s = {{1}}, uint8 z = {{0}}, int8 o = {{0}},
 int8[{_COUNT},1] w = {{{", ".join(["127"] * _COUNT)}}}> {{
    c = QuantizeLinear (x, s, z)
    a = DequantizeLinear (c, s, z)
    b = DequantizeLinear (w, s, o)
    y = MatMul (a, b)
}}"""


@functools.cache
def saturates(runtime: str) -> bool | None:
    """Return whether a runtime cuts off sums of products of codes to 16 bits on this processor.

    A product of known codes is computed by ``onnxruntime`` or ``openvino`` at the default options.
    None if the runtime is not installed, or does not compute the product.
    """
    if runtime not in _RUN or importlib.util.find_spec(runtime) is None:
        return None
    model = ir.to_proto(ir.from_onnx_text(_PROBE)).SerializeToString()
    try:
        result = _RUN[runtime](model, {"x": np.full((1, _COUNT), 255, np.float32)})
    except Exception:  # the runtimes' exceptions have no common base class
        return None
    return bool(result.item() < _COUNT * 255 * 127)


def _in_onnxruntime(model: bytes, feeds: Mapping[str, Float32]) -> Float32:
    module = importlib.import_module("onnxruntime")
    options = module.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = module.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, dict(feeds))[0], np.float32)


def _in_openvino(model: bytes, feeds: Mapping[str, Float32]) -> Float32:
    core = importlib.import_module("openvino").Core()
    options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(model, b""), "CPU", options)
    return np.asarray(compiled(dict(feeds))[0], np.float32)


_RUN: dict[str, Callable[[bytes, Mapping[str, Float32]], Float32]] = {
    "onnxruntime": _in_onnxruntime,
    "openvino": _in_openvino,
}
