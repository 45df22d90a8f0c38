"""Figures of the rules about portability: who takes the example of the page, and what it costs."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx

from tests.lint.measured.harness import (
    PAIR,
    F,
    codes,
    compiled,
    differ,
    example,
    fed,
    joined,
    layer,
    measured,
    model,
    normal,
    ort,
    qgraph_run,
    readers,
    session,
    slower,
    taken,
    where,
)  # fmt: skip

_READ = (
    "QG109",
    "QG116",
    "QG603",
    "QG604",
    "QG606",
    "QG609",
    "QG611",
    "QG612",
    "QG613",
    "QG618",
    "QG708",
    "QG710",
    "QG713",
)
"""Rules whose figure is who refuses the example."""

for _rule in _READ:
    measured(_rule)(lambda rule=_rule: readers(example(rule)))


@measured("QG601")
def not_loaded() -> str:
    import qgraph

    proto = layer()
    taking = [taken(partial(session, proto)), taken(partial(compiled, proto))]
    quant = qgraph.load(proto)
    qgraph.convert(quant, to="qonnx")
    other = quant.to_proto()
    now = [taken(lambda: session(other)), taken(lambda: compiled(other))]
    count = lambda found: f"{sum(found)} of 2"  # noqa: E731
    return (
        f"{count(taking)} runtimes (ONNX Runtime, OpenVINO) load a quantized Conv in "
        f"Q/DQ, {count(now)} with the quantizers of QONNX."
    )


@measured("QG602")
def version_not_read() -> str:
    def most(runs, values, made):  # type: ignore[no-untyped-def]
        return max((each for each in values if taken(partial(runs, made(each)))), default=0)

    text = (
        '<ir_version: {}, opset_import: ["": {}]> g (float[N,2] x) => (float[N,2] y) '
        "{{ y = Relu (x) }}"
    )
    opset = most(
        session, range(20, 40), lambda each: onnx.parser.parse_model(text.format(10, each))
    )
    version = most(
        session, range(8, 20), lambda each: onnx.parser.parse_model(text.format(each, 20))
    )
    return f"ONNX Runtime reads a Relu up to opset {opset} and IR version {version}."


@measured("QG605", exact=True)
def old_opset() -> str:
    weights = (normal(64, 64) * np.geomspace(1, 0.01, 64)).astype(F)
    one = np.abs(weights).max() / 127
    each = np.abs(weights).max(axis=0) / 127
    small = weights[:, -1]
    errors = [
        np.abs(np.rint(small / s) * s - small).max() / np.abs(small).max() for s in (one, each[-1])
    ]
    return (
        "Channels whose sizes differ up to 100 times, in INT8: the smallest one is off "
        f"by {errors[0]:.0%} of its "
        f"largest weight with one scale, by {errors[1]:.1%} with its own."
    )


@measured("QG607", exact=True)
def other_rounding() -> str:
    text = """(float[1000,4] x) => (float[1000,4] y) {
        y = qonnx.custom_op.general.Quant <signed = 1, narrow = 0, rounding_mode = "MODE">
        (x, s, z, b) }"""
    named, x = {"s": F(0.1), "z": F(0), "b": F(8)}, normal(1000, 4)
    one, other = (
        qgraph_run(model(text.replace("MODE", mode), **named), {"x": x})
        for mode in ("FLOOR", "ROUND")
    )
    return f"FLOOR gives {differ(one, other)} normal numbers another code than ROUND."


@measured("QG608")
def odd_width() -> str:
    clipped = layer(
        middle="m = QuantizeLinear (f, u, v) n = Clip (m, lo, hi) g = DequantizeLinear (n, u, v)",
        result=False, lo=np.uint8(96), hi=np.uint8(159), u=F(0.03),
    )  # fmt: skip
    return (
        "A 3 x 3 Conv of 64 channels with 6-bit codes after it took "
        f"{slower(clipped, layer())} times the time of 8 bits in ONNX Runtime "
        f"({where(clipped)})."
    )


@measured("QG610")
def no_zero_point() -> str:
    text = """(float[28,256] x) => (float[28,256] y) {
        c = QuantizeLinear (x, s, z) d = DequantizeLinear (c, s, z) e = DequantizeLinear (INPUTS)
        f = Gemm (d, e) h = QuantizeLinear (f, s, z) y = DequantizeLinear (h, s, z) }"""
    named = {"s": F(0.03), "z": np.uint8(128), "w": codes(256, 256), "t": F(3e-4)}
    odd, plain = (
        model(text.replace("INPUTS", "w, t"), **named),
        model(text.replace("INPUTS", "w, t, o"), o=np.int8(0), **named),
    )
    return (
        "A Gemm of 256 x 256 without a zero point of its weights took "
        f"{slower(odd, plain)} times the time in ONNX Runtime ({where(odd)})."
    )


@measured("QG614")
def shared_decoder() -> str:
    text = """(float[1,64,28,28] x) => (float[1,64,28,28] y, float[1,64,28,28] o) {
        c = QuantizeLinear (x, s, z) d = DequantizeLinear (c, s, z) g = DequantizeLinear (c, s, z)
        e = DequantizeLinear (w, t) f = Conv (d, e) h = QuantizeLinear (f, s, z)
        y = DequantizeLinear (h, s, z)
        i = Conv (OTHER, e) j = QuantizeLinear (i, s, z) o = DequantizeLinear (j, s, z) }"""
    named = {"s": F(0.03), "z": np.uint8(128), "w": codes(64, 64, 1, 1), "t": F(3e-4)}
    one, other = (
        model(text.replace("OTHER", "d"), **named),
        model(text.replace("OTHER", "g"), **named),
    )
    return (
        f"ONNX Runtime and OpenVINO copy a shared DequantizeLinear ({where(one)}; "
        f"{slower(one, other)} times the time with two in ONNX Runtime). QNN was not run."
    )


@measured("QG615")
def in_branches() -> str:
    text = """(float[64,28] x, bool k) => (float[64,28] y) {
        y = If (k) <then_branch = a () => (float[64,28] t) { BODY t = Sigmoid (d) },
                    else_branch = b () => (float[64,28] e) { e = Relu (x) }> }"""
    outer = """(float[64,28] x, bool k) => (float[64,28] y) { BODY
        y = If (k) <then_branch = a () => (float[64,28] t) { t = Sigmoid (d) },
                    else_branch = b () => (float[64,28] e) { e = Relu (d) }> }"""
    body = "c = QuantizeLinear (x, s, z) d = DequantizeLinear (c, s, z)"
    named = {"s": F(0.03), "z": np.uint8(128)}
    told = []
    for each in (text, outer):
        proto = model(each.replace("BODY", body), **named)
        loads = {
            "ONNX Runtime": taken(partial(session, proto)),
            "OpenVINO": taken(partial(compiled, proto)),
        }
        told.append(joined([name for name, is_taken in loads.items() if is_taken]) or "nobody")
    return (
        f"A quantizer within a branch of If: loaded by {told[0]}; one in front of it: by {told[1]}."
    )


@measured("QG616")
def ir_version() -> str:
    proto = example("QG616")
    takes = {
        "ONNX's checker": lambda: onnx.checker.check_model(proto, full_check=True),
        "ONNX Runtime": lambda: session(proto),
        "OpenVINO": lambda: compiled(proto),
    }
    told = [name for name, call in takes.items() if taken(call)]
    return f"{', '.join(told)} take INT4 under IR version 8: {len(told)} of 3."


@measured("QG617")
def lowest_code() -> str:
    stored = codes(64, 64, 3, 3)
    low = stored.copy()
    low[::2, 0, 0, 0] = -128
    return (
        "A 3 x 3 Conv of 64 channels took "
        f"{slower(layer(weights=low), layer(weights=stored))} times the time "
        "without -128 in ONNX Runtime, which takes the code. LiteRT and TensorRT were not run."
    )


@measured("QG619")
def channel_scales_of_data() -> str:
    bodies = {
        "Conv": "v = DequantizeLinear (w, s, o) f = Conv (d, v)",
        "GlobalAveragePool": "f = GlobalAveragePool (d)",
        "AveragePool": "f = AveragePool <kernel_shape = [2, 2]> (d)",
        "LeakyRelu": "f = LeakyRelu (d)",
        "Sigmoid": "f = Sigmoid (d)",
    }
    unmade, failed = [], []
    for name, body in bodies.items():
        proto = model(
            f"""(float[1,4,5,5] x) => (y) {{
            c = QuantizeLinear (x, s, z) d = DequantizeLinear (c, s, z) {body}
            q = QuantizeLinear <axis = 1> (f, t, p) y = DequantizeLinear <axis = 1> (q, t, p) }}""",
            s=F(0.1),
            z=np.uint8(128),
            o=np.int8(0),
            w=codes(4, 4, 3, 3),
            t=np.array([0.1, 0.2, 0.3, 0.4], F),
            p=np.full(4, 128, np.uint8),
        )
        feeds = fed(proto)
        plain = session(proto, plain=True).run(None, feeds)
        assert plain[0].shape[:2] == (1, 4)
        if not taken(partial(session, proto)):
            unmade.append(name)
        elif not taken(partial(ort, proto, feeds)):
            failed.append(name)
    count = len(unmade) + len(failed)
    return (
        f"With one scale before and four after, {count} of {len(bodies)} operators failed in ONNX "
        f"Runtime: {joined(unmade)} when the session was made, {joined(failed)} when it ran."
    )


@measured("QG620")
def wide_codes_moved() -> str:
    moves = {
        "Reshape": "y = Reshape (d, k)",
        "Transpose": "y = Transpose (d)",
        "Slice": "y = Slice (d, a, b)",
        "Flatten": "y = Flatten (d)",
    }
    refused = []
    for name, body in moves.items():
        text = f"(int32[1,4] x) => (y) {{ d = DequantizeLinear (x, s) {body} }}"
        ends = {"a": np.asarray([0]), "b": np.asarray([1])}
        proto = model(text, s=F(0.1), k=np.asarray([2, 2]), **ends)
        try:
            session(proto)
        except Exception:
            refused.append(name)
    return (
        f"After a DequantizeLinear of INT32, ONNX Runtime refuses {joined(refused)}: "
        f"{len(refused)} of 4 operators; it takes {joined([n for n in moves if n not in refused])}."
    )


@measured("QG621")
def aborted() -> str:
    ends: dict[str, list[int]] = {"uint4": [], "int4": [], "uint8": []}
    for kind, codes_of_ends in ends.items():
        for rows, size, width in product((28, 197), (64, 512), (64, 192)):
            text = f"""(float[{rows},{size}] x) => (float[{rows},{width}] y)
                <float s = {{0.1}}, {kind} z = {{3}}, float t = {{0.01}}, int8 o = {{0}}> {{ {PAIR}
                    e = DequantizeLinear (w, t, o) y = MatMul (d, e) }}"""
            proto = model(text, w=codes(size, width, low=-60, high=60))
            codes_of_ends.append(_end(proto))
    counts = [f"{sum(map(bool, ends[kind]))} of {len(ends[kind])} with" for kind in ends]
    return (
        "Products of 28 or 197 rows, each in a process of its own with `MALLOC_CHECK_=3`, that "
        f"OpenVINO ended with a signal: {counts[0]} UINT4 codes, {counts[1]} INT4, {counts[2]} "
        "UINT8."
    )


@measured("QG622")
def scales_in_lists() -> str:
    refused = []
    forms = list(product((np.uint8, np.int8), (13, 17, 21), ((1, ()), ((), 1), (1, 1))))
    for kind, opset, (before, after) in forms:
        proto = model(
            f"""<ir_version: 7, opset_import: ["": {opset}]> m (float[1,4,5,5] x) => (y) {{
            c = QuantizeLinear (x, s, z) d = DequantizeLinear (c, s, z)
            f = AveragePool <kernel_shape = [2, 2]> (d)
            q = QuantizeLinear (f, t, p) y = DequantizeLinear (q, t, p) }}""",
            s=np.full(before, 0.1, F),
            z=np.full(before, 3, kind),
            t=np.full(after, 0.2, F),
            p=np.full(after, 3, kind),
        )
        assert session(proto, plain=True).run(None, fed(proto))[0].shape == (1, 4, 4, 4)
        if not taken(partial(session, proto)):
            refused.append(opset)
    return (
        f"ONNX Runtime created no session for {len(refused)} of {len(forms)} models: INT8 and "
        "UINT8, three opsets, the scale before, after, or both in a list of one element."
    )


_RUN = """
import sys
import onnx
from tests.lint.measured.harness import fed, openvino
proto = onnx.load(sys.argv[1])
for _ in range(4):
    openvino(proto, fed(proto))
"""


def _end(proto: onnx.ModelProto) -> int:
    """Return the exit status of a process that runs a model in OpenVINO; 0 for a normal end."""
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        onnx.save(proto, path)
        command = [sys.executable, "-c", _RUN, path]
        environment = {**os.environ, "MALLOC_CHECK_": "3"}
        return subprocess.run(command, env=environment, capture_output=True, check=False).returncode
