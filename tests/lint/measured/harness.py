"""What the figures of the rule pages are measured with: runtimes, counts, times, sizes.

A measurement is a function that returns the sentence of the page:

    @measured("QG301")
    def double_pairs() -> str:
        return f"ONNX Runtime: {changed(...)} results changed."
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx

from qgraph.lint.rule import RULES, page_of_rule, whole_model

Array: TypeAlias = npt.NDArray[Any]
Feeds: TypeAlias = Mapping[str, Array]

F = np.float32
HEADER = (
    '<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2, '
    '"org.openvinotoolkit": 1, "com.microsoft": 1]> g '
)

MEASURED: dict[str, Callable[[], str]] = {}
"""What measures the figures of a page, by id of the rule."""

EXACT: set[str] = set()
"""Those without times and runtimes: they give the same sentence everywhere."""


def measured(rule: str, *, exact: bool = False) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Return a decorator that registers what measures the figures of a rule."""

    def register(function: Callable[[], str]) -> Callable[[], str]:
        MEASURED[rule] = function
        if exact:
            EXACT.add(rule)
        return function

    return register


# ---- models


def model(text: str, **constants: Any) -> onnx.ModelProto:
    """Return a model of ONNX text; the names in it that it does not define are constants."""
    proto = onnx.parser.parse_model(text if text.startswith("<ir_version") else HEADER + text)
    for name, value in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    return proto


def example(rule: str, which: str = "before") -> onnx.ModelProto:
    """Return a model of a page."""
    return onnx.parser.parse_model(whole_model(getattr(page_of_rule(RULES.find(rule)), which)))


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    """Return normal numbers."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(F)


def codes(*shape: int, low: int = -127, high: int = 127, seed: int = 1) -> Array:
    """Return INT8 codes."""
    return np.random.default_rng(seed).integers(low, high, shape, endpoint=True).astype(np.int8)


LAYER = "a 3 x 3 Conv of 64 channels"
"""What :func:`layer` returns by default."""

PAIR = "c = QuantizeLinear (x, s, z) d = DequantizeLinear (c, s, z)"
DATA = {"s": F(0.03), "z": np.uint8(128)}
"""The scale and the zero point of data in most measurements."""


def _form(op: str, size: int, channels: int, groups: int) -> tuple[str, tuple[int, ...], str]:
    """Return the shape of the data of a layer, that of its weights, and its call."""
    if op != "Conv":
        return f"{size},{channels}", (channels, channels), op
    call = f"Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = {groups}>"
    return f"1,{channels},{size},{size}", (channels, channels // groups, 3, 3), call


def layer(
    op: str = "Conv",
    *,
    size: int = 28,
    channels: int = 64,
    groups: int = 1,
    weights: Array | None = None,
    middle: str = "",
    bias: Any = None,
    result: bool = True,
    before: str = "",
    signed: bool = False,
    **constants: Any,
) -> onnx.ModelProto:
    """Return one quantized layer: a Conv of 3 x 3, or a product.

    Args:
        op: Conv, MatMul or Gemm.
        size: height and width of a map, or rows of a product.
        channels: of data and result.
        groups: of the convolution.
        weights: the codes; random INT8 codes by default.
        middle: nodes between layer ``f`` and ``g``, which is quantized.
        bias: what the layer adds: float numbers.
        result: whether the result is quantized.
        before: nodes from ``w``, the codes, to ``k``, which is decoded.
        signed: whether results have INT8 codes.
        constants: take the place of the scales and zero points ``s z t o u v`` or are added.
    """
    data, form, call = _form(op, size, channels, groups)
    axis = 0 if op == "Conv" else 1
    fan = np.prod(form) // form[axis]
    stored = codes(*form) if weights is None else weights
    top = max(1.0, float(np.abs(stored.astype(np.float64)).max()))
    scales = np.full(channels, 1 / (top * np.sqrt(fan)), F)
    named: dict[str, Any] = {
        **DATA, "w": stored, "t": scales,
        "o": np.zeros(channels, stored.dtype), "u": F(0.03),
        "v": np.int8(0) if signed else np.uint8(128),
    }  # fmt: skip
    if bias is not None:
        named["b"] = bias
    named |= constants
    along = f"<axis = {axis}>" if np.ndim(named["t"]) else ""
    lines = [
        "[q] c = QuantizeLinear (x, s, z)",
        "[d] d = DequantizeLinear (c, s, z)",
        *([before] if before else []),
        f"[e] e = DequantizeLinear {along} ({'k' if before else 'w'}, t, o)",
        f"[layer] f = {call} (d, e{', b' if bias is not None else ''})",
        *([middle] if middle else []),
    ]
    last = "g" if middle else "f"
    if result:
        lines += [f"[r] h = QuantizeLinear ({last}, u, v)", "y = DequantizeLinear (h, u, v)"]
    else:
        lines += [f"y = Identity ({last})"]
    text = f"(float[{data}] x) => (float[{data}] y) {{ {' '.join(lines)} }}"
    return model(text, **{k: v for k, v in named.items() if v is not None})


def float_layer(op: str = "Conv", *, size: int = 28, channels: int = 64, groups: int = 1) -> Any:
    """Return the same layer without quantizers."""
    data, form, call = _form(op, size, channels, groups)
    text = f"(float[{data}] x) => (float[{data}] y) {{ y = {call} (x, w) }}"
    return model(text, w=normal(*form, scale=0.05))


def fed(
    proto: onnx.ModelProto, seed: int = 0, rows: int = 1, scale: float = 1.0
) -> dict[str, Array]:
    """Return normal numbers for the inputs of a model."""
    constants = {each.name for each in proto.graph.initializer}
    feeds = {}
    for value in proto.graph.input:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        shape = [each.dim_value or rows for each in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        generator = np.random.default_rng(seed)
        if np.issubdtype(dtype, np.integer):
            feeds[value.name] = generator.integers(0, 256, shape).astype(dtype)
        else:
            feeds[value.name] = (generator.standard_normal(shape) * scale).astype(dtype)
    return feeds


# ---- runtimes


def session(proto: onnx.ModelProto, *, plain: bool = False, **entries: str) -> Any:
    """Return a session of ONNX Runtime with one thread; ``plain``: without optimizations."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if plain:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for key, value in entries.items():
        options.add_session_config_entry("session." + key, value)
    return ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def ort(proto: onnx.ModelProto, feeds: Feeds, *, plain: bool = False, **entries: str) -> Array:
    """Return the first result of ONNX Runtime."""
    outputs = session(proto, plain=plain, **entries).run(None, dict(feeds))
    return np.asarray(outputs[0])


def plain_and_optimized(proto: onnx.ModelProto, feeds: Feeds) -> tuple[Array, Array]:
    """Return the results of ONNX Runtime without optimizations, and with them."""
    return ort(proto, feeds, plain=True), ort(proto, feeds)


def compiled(proto: onnx.ModelProto, *, narrow: bool = False) -> Any:
    """Return a model compiled by OpenVINO, with one thread; ``narrow``: with its defaults."""
    import openvino as ov

    core = ov.Core()
    options: dict[str, Any] = {"INFERENCE_NUM_THREADS": 1}
    if not narrow:
        options["INFERENCE_PRECISION_HINT"] = "f32"
    return core.compile_model(core.read_model(proto.SerializeToString()), "CPU", options)


def openvino(proto: onnx.ModelProto, feeds: Feeds, *, narrow: bool = False) -> Array:
    """Return the first result of OpenVINO."""
    request = compiled(proto, narrow=narrow)
    results = request({port: feeds[port.get_any_name()] for port in request.inputs})
    return np.asarray(results[request.outputs[0]])


def qgraph_run(proto: onnx.ModelProto, feeds: Feeds) -> Array:
    """Return the first result of our executor in NumPy."""
    import qgraph

    outputs = qgraph.load(proto).run(dict(feeds), backend="numpy")
    return np.asarray(outputs[proto.graph.output[0].name])


# ---- kernels

INTEGER = {
    "QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat", "QLinearAdd", "QLinearMul",
    "QLinearGlobalAveragePool", "QLinearAveragePool", "QLinearConcat", "MatMulInteger",
    "DynamicQuantizeMatMul", "ConvInteger", "QLinearSigmoid", "QLinearLeakyRelu",
}  # fmt: skip


def nodes_in_ort(proto: onnx.ModelProto) -> Counter[str]:
    """Return the operators that ONNX Runtime executes."""
    import onnxruntime as ort

    with TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(Path(folder) / "model.onnx")
        ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        done = onnx.load(options.optimized_model_filepath)
    return Counter(node.op_type for node in done.graph.node)


def nodes_in_openvino(proto: onnx.ModelProto) -> Counter[tuple[str, str]]:
    """Return the kinds of kernels that OpenVINO executes, each with its precision."""
    infos = [op.get_rt_info() for op in compiled(proto).get_runtime_model().get_ordered_ops()]
    both = ((info["layerType"], info["runtimePrecision"]) for info in infos)
    return Counter((str(kind.astype(str)), str(runs.astype(str))) for kind, runs in both)


def is_integer_in_ort(proto: onnx.ModelProto) -> bool:
    """Return whether a layer runs on codes in ONNX Runtime."""
    return bool(set(nodes_in_ort(proto)) & INTEGER)


def is_integer_in_openvino(proto: onnx.ModelProto) -> bool:
    """Return whether the convolution or product of a model runs on codes in OpenVINO."""
    kinds = ("Convolution", "FullyConnected", "MatMul")
    precisions = {precision for kind, precision in nodes_in_openvino(proto) if kind in kinds}
    return bool(precisions & {"u8", "i8"})


def where(proto: onnx.ModelProto) -> str:
    """Say how both runtimes execute the layer of a model."""
    named = {True: "on codes", False: "in float"}
    return (
        f"ONNX Runtime {named[is_integer_in_ort(proto)]}, "
        f"OpenVINO {named[is_integer_in_openvino(proto)]}"
    )


# ---- what is counted


def differ(one: Array, other: Array) -> str:
    """Say how many results differ."""
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    return f"{np.count_nonzero(~same):,} of {one.size:,}"


def farthest(one: Array, other: Array, step: float = 1.0) -> str:
    """Return the largest difference in steps."""
    return f"{np.nanmax(np.abs(one.astype(float) - other.astype(float))) / step:.3g}"


def rounded(x: Array, scale: float, low: int = -128, high: int = 127) -> Array:
    """Return numbers behind a quantizer with a zero point of 0."""
    return np.asarray(np.clip(np.rint(x / scale), low, high) * scale)


def sqnr(reference: Array, other: Array) -> float:
    """Return the ratio of signal to error in dB."""
    error = reference.astype(float) - other.astype(float)
    return float(10 * np.log10(np.sum(reference.astype(float) ** 2) / np.sum(error**2)))


def _times(call: Callable[[], object], other: Callable[[], object]) -> float:
    def seconds(each: Callable[[], object], repeats: int = 1) -> float:
        start = time.process_time()
        for _ in range(repeats):
            each()
        return time.process_time() - start

    seconds(call)
    seconds(other)
    repeats = max(1, int(0.02 / max(1e-6, seconds(call))))
    return statistics.median(seconds(call, repeats) / seconds(other, repeats) for _ in range(15))


def slower(proto: onnx.ModelProto, other: onnx.ModelProto, **feeds: Array) -> str:
    """Return the time of a model in that of another one, in ONNX Runtime."""
    calls = []
    for each in (proto, other):
        running, data = session(each), fed(each) | feeds
        calls.append(lambda running=running, data=data: running.run(None, data))
    return f"{_times(*calls):.2g}"


def slower_in_openvino(proto: onnx.ModelProto, other: onnx.ModelProto) -> str:
    """Return the time of a model in that of another one, in OpenVINO."""
    calls = []
    for each in (proto, other):
        running, feeds = compiled(each), fed(each)
        request = running.create_infer_request()
        data = {port: feeds[port.get_any_name()] for port in running.inputs}
        calls.append(lambda request=request, data=data: request.infer(data))
    return f"{_times(*calls):.2g}"


def size(proto: onnx.ModelProto) -> int:
    """Return the bytes of the file."""
    return len(proto.SerializeToString())


# ---- who refuses a file


def readers(proto: onnx.ModelProto) -> str:
    """Say which of ONNX's checker, ONNX Runtime and OpenVINO take a file."""

    def checked() -> None:
        onnx.checker.check_model(proto, full_check=True)

    def run_by_ort() -> None:
        session(proto).run(None, fed(proto))

    def run_by_openvino() -> None:
        openvino(proto, fed(proto))

    takes = {
        "ONNX's checker": taken(checked), "ONNX Runtime": taken(run_by_ort),
        "OpenVINO": taken(run_by_openvino),
    }  # fmt: skip
    yes, no = (
        [name for name, is_taken in takes.items() if is_taken is each] for each in (True, False)
    )
    if not no:
        return f"{joined(yes)} accept the example without a message."
    if not yes:
        return f"{joined(no)} refuse the example."
    plural = "s" if len(no) == 1 else ""
    return (
        f"{joined(no)} refuse{plural} the example, {joined(yes)} "
        f"accept{'s' if len(yes) == 1 else ''} it."
    )


def taken(call: Callable[[], object]) -> bool:
    """Return whether a call ends without an error."""
    try:
        call()
    except Exception:
        return False
    return True


def joined(names: list[str]) -> str:
    """Return names in a sentence."""
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
