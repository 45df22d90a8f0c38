"""Malformed models, made from good ones by a seed, and commands that run on them with limits.

``python -m tests.fuzz.malformed SEED COUNT [MODEL...]`` prints what ends in another way than it
should, and how long and how large the worst runs were.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import random
import resource
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import onnx
from google.protobuf.message import Message

TEXTS = (
    """<ir_version: 10, opset_import: ["": 21]>
    net (float[N,4] x) => (float[N,3] y)
    <float s = {0.5}, int8 z = {0}, int8[4,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
     float[3] ws = {0.5, 0.25, 1}, int8[3] wz = {0, 0, 0}, float lo = {-3}, float hi = {3}> {
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        c = Clip (d, lo, hi)
        v = DequantizeLinear <axis = 1> (w, ws, wz)
        p = MatMul (c, v)
        y = Relu (p)
    }""",
    """<ir_version: 10, opset_import: ["": 21]>
    net (float[2,8] x) => (float[2,8] y) <float[2,2] s = {1, 2, 3, 4}, int8[2,2] z = {0, 0, 0, 0}> {
        q = QuantizeLinear <axis = 1, block_size = 4> (x, s, z)
        d = DequantizeLinear <axis = 1, block_size = 4> (q, s, z)
        y = Softmax <axis = -1> (d)
    }""",
    """<ir_version: 9, opset_import: ["": 17, "qonnx.custom_op.general": 2]>
    net (float[1,2,4,4] x) => (float[1,3,2,2] y)
    <float[3,2,3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7,
     8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9},
     float s = {0.5}, float z = {0}, float b = {4}, float o = {2}, float[3] t = {1, 2, 3},
     float e = {4}, float m = {3}, float bias = {7}, float top = {240}> {
        a = qonnx.custom_op.general.Quant
            <signed = 1, narrow = 0, rounding_mode = "ROUND"> (x, s, z, b)
        k = qonnx.custom_op.general.BipolarQuant (w, s)
        c = Conv <kernel_shape = [3, 3]> (a, k, t)
        r = qonnx.custom_op.general.Trunc <rounding_mode = "FLOOR"> (c, s, z, b, o, o)
        y = qonnx.custom_op.general.FloatQuant <has_inf = 0, has_nan = 1, has_subnormal = 1,
            saturation = 1, rounding_mode = "ROUND"> (r, s, e, m, bias, top)
    }""",
    """<ir_version: 8, opset_import: ["": 16, "org.openvinotoolkit": 1]>
    net (float[2,4] x) => (float[4,2] y) <float[1,4] l = {-1, -2, -3, -4}, float[1] h = {3}> {
        f = org.openvinotoolkit.FakeQuantize <levels = 256> (x, l, h, l, h)
        y = Transpose <perm = [1, 0]> (f)
    }""",
    """<ir_version: 10, opset_import: ["": 20]>
    net (float[3] x, bool c) => (float[3] y, float[3] z)
    <float s = {0.5}, uint8 o = {128}, int64 n = {2}, bool t = {1},
     int64[1] axes = {0}> {
        a = If (c) <
            then_branch = one () => (float[3] p) {
                q = QuantizeLinear (x, s, o)
                p = DequantizeLinear (q, s, o)
            },
            else_branch = two () => (float[3] p) { p = Neg (x) }
        >
        y, g = Loop (n, t, a) <body = body (int64 i, bool k, float[3] v)
            => (bool k2, float[3] v2, float[3] out) {
            k2 = Identity (k)
            v2 = Add (v, x)
            out = Mul (v, s)
        }>
        z = ReduceSum <keepdims = 0> (g, axes)
    }""",
    """<ir_version: 10, opset_import: ["": 21, "local": 1]>
    net (float[2] x) => (float[2] y) { h = local.F <levels = 2.0> (x) y = local.G (h) }
    <domain: "local", opset_import: ["": 21, "local": 1]> F <levels> (a) => (b) {
        k = Constant <value_float: float = @levels> ()
        b = Mul (a, k)
    }
    <domain: "local", opset_import: ["": 21, "local": 1]> G (a) => (b) {
        c = local.F <levels = 3.0> (a)
        b = Relu (c)
    }""",
    """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
    net (float[2,4] x, uint8[2,4] u) => (float[2,3] y, float[2,4] v)
    <uint8[4,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float s = {0.5}, uint8 z = {128},
     int32[3] bias = {1, 2, 3}> {
        q = QuantizeLinear (x, s, z)
        g = com.microsoft.QGemm (q, s, z, w, s, z, bias, s, z)
        y = DequantizeLinear (g, s, z)
        a = com.microsoft.QLinearAdd (u, s, z, q, s, z, s, z)
        v = DequantizeLinear (a, s, z)
    }""",
    """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
    net (float[1,32] x) => (float[1,2] y)
    <uint8[2,2,8] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
     22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32}, float[4] s = {1, 2, 3, 4}> {
        y = com.microsoft.MatMulNBits <K = 32, N = 2, bits = 4, block_size = 16> (x, w, s)
    }""",
)
NUMBERS = (0, 1, -1, 2, 7, 255, 2**31 - 1, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
REALS = (0.0, -1.0, 1e-45, 3e38, float("inf"), float("-inf"), float("nan"))
NAMES = (
    *("", "x", "s", "\n::error::n"),
    "\x1b[31m\0",
    "../w.bin",
    "/etc/passwd",
    "é" * 400,
    "QuantizeLinear",
)
COMMANDS = (
    ("info", "M"),
    ("info", "M", "--json", "-v"),
    ("run", "M", "--backend", "numpy", "--stats"),
    ("convert", "M", "-o", "O", "--to", "TO"),
    ("fold", "M", "-o", "O"),
    ("check", "M", "M", "--backend", "numpy"),
    ("prove", "A", "M"),
    ("prove", "M", "M"),
    ("diff", "A", "M"),
    ("lint", "M"),
    ("lint", "M", "--target", "TARGET", "--fix", "-o", "O"),
    ("deploy", "M", "-o", "O", "--target", "TARGET"),
    ("transform", "M", "-o", "O", "-p", "PASS"),
    ("lock", "M"),
    ("why", "A", "M", "--backend", "numpy"),
    ("reduce", "A", "M", "-o", "O", "--backend", "numpy"),
)
DIALECTS = ("qdq", "qonnx", "openvino", "onnx")
TARGETS = ("onnxruntime-cpu", "openvino-cpu", "tensorrt", "finn")
SECONDS, MEGABYTES = 20, 1024
MARKS = ("could not be handled", "could not handle", "Traceback", "Warning:")
"""What only unexpected errors print."""


class Run(NamedTuple):
    """How a command ended: its arguments, exit status or signal, output, seconds and memory."""

    arguments: tuple[str, ...]
    status: int
    text: str
    seconds: float
    megabytes: float

    @property
    def fault(self) -> str | None:
        """What is wrong with it."""
        if not 0 <= self.status <= 4:
            return f"status {self.status}"
        if any(mark in self.text for mark in MARKS):
            return "unexpected"
        if self.seconds > SECONDS:
            return f"{self.seconds:.0f} s"
        return f"{self.megabytes:.0f} MB" if self.megabytes > MEGABYTES else None


def mutant(original: bytes, chance: random.Random) -> bytes:
    """Return a malformed copy of a model file: one to three faults in its messages or bytes."""
    if chance.random() < 0.15:
        return _damaged(original, chance)
    proto = onnx.ModelProto.FromString(original)
    for _ in range(chance.choice((1, 1, 2, 3))):
        _mutate(proto, chance)
    content: bytes = proto.SerializePartialToString()
    return _damaged(content, chance) if chance.random() < 0.05 else content


def _damaged(content: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.3:
        return content[: chance.randrange(1, len(content))]
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 8))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def _parts(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for part in [value] if isinstance(value, Message) else value:
                yield from _parts(part)


def command_line(command: Sequence[str], chance: random.Random) -> tuple[str, ...]:
    """Return the arguments of a command, with names in the current folder for its files."""
    from qgraph.transforms import TRANSFORMS, describe

    passes = {describe(kind).name for kind in TRANSFORMS} - {"convert"}
    names = {
        "M": "model.onnx",
        "A": "original.onnx",
        "O": "out.onnx",
        "TO": chance.choice(DIALECTS),
        "TARGET": chance.choice(TARGETS),
        "PASS": chance.choice(sorted(passes)),
    }
    return tuple(names.get(word, word) for word in command)


def _mutate(proto: onnx.ModelProto, chance: random.Random) -> None:
    """Change one field of one message, chosen by kind first, so that big models change as small."""
    parts = list(_parts(proto))
    attributes = [part for part in parts if isinstance(part, onnx.AttributeProto)]
    if attributes and chance.random() < 0.15:
        attribute = chance.choice(attributes)
        value = chance.choice((1, 0.5, "ROUND", [1], [0.5], ["a"]))
        attribute.CopyFrom(onnx.helper.make_attribute(attribute.name, value))
        return
    wanted = chance.choice(sorted({type(part).__name__ for part in parts}))
    part = chance.choice([each for each in parts if type(each).__name__ == wanted])
    present = [field for field, _ in part.ListFields()]
    fields = present if present and chance.random() < 0.8 else list(part.DESCRIPTOR.fields)
    field = chance.choice(fields)
    if isinstance(part, onnx.TensorProto) and chance.random() < 0.5:
        part.CopyFrom(_other(part, chance))
        return
    value = getattr(part, field.name)
    is_many = not isinstance(value, Message | str | bytes | int | float)
    if chance.random() < 0.2:
        part.ClearField(field.name)
    elif is_many and len(value) and chance.random() < 0.6:
        _rearrange(value, chance)
    elif field.type == field.TYPE_MESSAGE:
        same = [each for each in parts if type(each).__name__ == field.message_type.name]
        copy = type(chance.choice(same))() if same else None
        if copy is not None:
            copy.CopyFrom(chance.choice(same))
            value.append(copy) if is_many else value.CopyFrom(copy)
    else:
        new = _scalar(field, parts, chance)
        try:
            value.append(new) if is_many else setattr(part, field.name, new)
        except (ValueError, TypeError):
            part.ClearField(field.name)


def _other(tensor: onnx.TensorProto, chance: random.Random) -> onnx.TensorProto:
    """Return a valid tensor of the same name, of another shape or type."""
    dims = chance.choice(((), (0,), (1,), (2,), (1, 1), (2, 2), (3, 1), tuple(tensor.dims)))
    kinds = (chance.choice((1, 2, 3, 6, 7, 9, 10, 11, 16, 17, 21, 22)), tensor.data_type)
    values = [chance.choice((0, 1, 1, 2, 7)) for _ in range(math.prod(dims))]
    return onnx.helper.make_tensor(tensor.name, chance.choice(kinds), dims, values)


def _rearrange(items: object, chance: random.Random) -> None:
    values = list(items)  # type: ignore[call-overload]
    place, other = chance.randrange(len(values)), chance.randrange(len(values))
    match chance.randrange(3):
        case 0:
            del values[place]
        case 1:
            values.insert(other, values[place])
        case 2:
            values[place], values[other] = values[other], values[place]
    copies = [type(v)() if isinstance(v, Message) else v for v in values]
    for copy, value in zip(copies, values, strict=True):
        if isinstance(value, Message):
            copy.CopyFrom(value)
    del items[:]  # type: ignore[attr-defined]
    items.extend(copies)  # type: ignore[attr-defined]


def _scalar(field: object, parts: Sequence[Message], chance: random.Random) -> object:
    kind = field.type  # type: ignore[attr-defined]
    if kind in (field.TYPE_FLOAT, field.TYPE_DOUBLE):  # type: ignore[attr-defined]
        return chance.choice(REALS)
    if kind == field.TYPE_BYTES:  # type: ignore[attr-defined]
        return bytes(chance.randrange(256) for _ in range(chance.choice((0, 1, 4, 13))))
    if kind == field.TYPE_STRING:  # type: ignore[attr-defined]
        names = [part.name for part in parts if getattr(part, "name", "")]
        operators = [part.op_type for part in parts if isinstance(part, onnx.NodeProto)]
        return chance.choice((chance.choice(NAMES), *names[:200], *operators[:20]))
    if kind == field.TYPE_ENUM:  # type: ignore[attr-defined]
        return chance.choice([*range(13), 2**31 - 1])
    return chance.choice(NUMBERS if chance.random() < 0.5 else range(28))


def run(arguments: tuple[str, ...], folder: Path, seconds: float = SECONDS) -> Run:
    """Run the command line in a forked process, which has all modules already."""
    from qgraph.cli.main import main

    reader, writer = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.chdir(folder)
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (int(3 * seconds),) * 2)
        status = 99
        try:
            status = main(arguments)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(writer)
    text, limit = b"", start + 30 * seconds  # for what waits; other work may slow this down
    while True:
        ready, _, _ = select.select([reader], [], [], max(limit - time.monotonic(), 0))
        piece = os.read(reader, 1 << 16) if ready else b""
        text += piece[: 1 << 20]
        if not piece:
            break
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.close(reader)
    _, status, usage = os.wait4(child, 0)
    took = usage.ru_utime + usage.ru_stime if ready else 30 * seconds
    code = os.waitstatus_to_exitcode(status)
    return Run(arguments, code, text.decode("utf-8", "replace"), took, usage.ru_maxrss / 1024)


def runs(
    originals: Sequence[bytes], seed: int, count: int, folder: Path, each: int = len(COMMANDS)
) -> Iterator[tuple[int, bytes, Run]]:
    """Yield what commands do with ``count`` malformed models, ``each`` commands for every one."""
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        original = chance.choice(originals)
        content = mutant(original, chance)
        for command in chance.sample(COMMANDS, each):
            with tempfile.TemporaryDirectory(dir=folder) as name:
                place = Path(name)
                (place / "model.onnx").write_bytes(content)
                (place / "original.onnx").write_bytes(original)
                yield number, content, run(command_line(command, chance), place)


def warm_up(folder: Path) -> None:
    """Run every command once in this process, so that forked ones need not load its modules."""
    from qgraph.cli.main import main

    for name in ("model.onnx", "original.onnx"):
        onnx.save(onnx.parser.parse_model(TEXTS[0]), folder / name)
    silence = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with contextlib.chdir(folder), silence[0], silence[1]:
        for command in COMMANDS:
            main(command_line(command, random.Random(0)))


def originals(paths: Sequence[str] = ()) -> list[bytes]:
    """Return the contents of the models that are made malformed."""
    files = [Path(path).read_bytes() for path in paths]
    return [*(onnx.parser.parse_model(text).SerializeToString() for text in TEXTS), *files]


def summarise(tried: Iterable[tuple[str, Run, str | None]]) -> None:
    """Print each run with a fault under its label, and the worst of all runs."""
    worst_seconds = worst_memory = faults = done = 0.0
    statuses: Counter[int] = Counter()
    for label, each, fault in tried:
        done += 1
        statuses[each.status] += 1
        worst_seconds = max(worst_seconds, each.seconds)
        worst_memory = max(worst_memory, each.megabytes)
        if fault:
            faults += 1
            lines = [x for x in each.text.splitlines() if "could not" in x or "Warning" in x]
            say = (lines or each.text.splitlines()[-1:] or [""])[-1][:300]
            sys.stdout.write(f"{label} {fault}: {' '.join(each.arguments)}: {say}\n")
    worst = f"{worst_seconds:.1f} s, {worst_memory:.0f} MB"
    sys.stdout.write(f"{done:.0f} runs, {faults:.0f} faults, {worst}\n")
    sys.stdout.write(f"exit statuses: {dict(sorted(statuses.items()))}\n")


def main() -> None:
    """Try as many models as the command line says."""
    seed, count, *paths = sys.argv[1:]
    keep = Path(os.environ.get("FUZZ_KEEP", tempfile.mkdtemp()))

    def tried(folder: Path) -> Iterator[tuple[str, Run, str | None]]:
        warm_up(folder)
        for number, content, each in runs(originals(paths), int(seed), int(count), folder, each=5):
            if each.fault:
                (keep / f"{seed}-{number}.onnx").write_bytes(content)
            yield f"{seed}-{number}", each, each.fault

    with tempfile.TemporaryDirectory() as folder:
        summarise(tried(Path(folder)))


if __name__ == "__main__":
    main()
