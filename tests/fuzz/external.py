"""Models whose data files are wrong, made from good ones by a seed, and datasets that are.

``python -m tests.fuzz.external SEED COUNT [MODEL...]`` prints what ends in another way than it
should, and how long and how large the worst runs were.
"""

from __future__ import annotations

import io
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.fuzz.malformed import Run, originals, run, summarise, warm_up

COMMANDS = (
    ("info", "m.onnx", "--json"),
    ("run", "m.onnx", "--inputs", "in.npz", "--backend", "numpy", "-o", "out.npz"),
    ("convert", "m.onnx", "-o", "out.onnx", "--to", "qdq", "--external-threshold", "1"),
    ("fold", "m.onnx", "-o", "sub/w.onnx", "--report", "out.json"),
    ("fold", "m.onnx", "--in-place", "--safetensors"),
    ("check", "good.onnx", "m.onnx", "--inputs", "in.npz", "--backend", "numpy"),
    ("prove", "good.onnx", "m.onnx", "--certificate", "out.json"),
    ("diff", "good.onnx", "m.onnx"),
    ("lock", "m.onnx", "-o", "out.lock"),
)
PLACES = (
    *(
        "",
        ".",
        "..",
        "sub",
        "sub/w.bin",
        "./sub/../w.bin",
        "../outside.bin",
        "sub/../../outside.bin",
    ),
    *("/etc/passwd", "/dev/zero", "/dev/full", "/proc/self/mem", "pipe", "link.bin", "leaving.bin"),
    *("circle.bin", "hard.bin", "unreadable.bin", "m.onnx", "good.onnx", "in.npz", "a\nb", "é.bin"),
    *(
        "-",
        "w.bin ",
        "W.BIN",
        "x" * 256,
        "x/" * 3000 + "w.bin",
        "a\0b",
        "file:///etc/passwd",
        "~/w",
    ),
)
NUMBERS = ("0", "-1", "-0", "1", "7", "4096", "1e3", "0x10", " 8", "8 ", "", "many", "٣", "1_0")
HUGE = (2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64, 10**40, -(2**63))
KEYS = ("location", "offset", "length", "checksum", "basepath", "")


def lay_out(folder: Path, original: bytes, chance: random.Random) -> None:
    """Make a folder with a model whose weights are in data files, and everything around it."""
    inner = folder / "inner"
    (inner / "sub").mkdir(parents=True)
    (folder / "outside.bin").write_bytes(bytes(4096))
    proto = onnx.ModelProto.FromString(original)
    (inner / "good.onnx").write_bytes(original)
    data = {"w.bin": bytearray(), "sub/w.bin": bytearray(b"head")}
    for tensor in proto.graph.initializer:
        if chance.random() < 0.2 or tensor.data_type == onnx.TensorProto.STRING:
            continue
        name = chance.choice(list(data))
        content = numpy_helper.to_array(tensor).tobytes()
        if not tensor.HasField("raw_data"):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
        content = tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (
            ("location", name),
            ("offset", str(len(data[name]))),
            ("length", str(len(content))),
        ):
            tensor.external_data.add(key=key, value=value)
        data[name] += content
    for name, content in data.items():
        (inner / name).write_bytes(content)
    os.mkfifo(inner / "pipe")
    (inner / "link.bin").symlink_to("w.bin")
    (inner / "leaving.bin").symlink_to(folder / "outside.bin")
    (inner / "circle.bin").symlink_to("circle.bin")
    (inner / "unreadable.bin").write_bytes(bytes(4096))
    (inner / "unreadable.bin").chmod(0)
    (inner / "hard.bin").write_bytes(bytes(4096))
    os.link(inner / "hard.bin", inner / "hard2.bin")
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
        _mutate(proto, inner, chance)
    (inner / "m.onnx").write_bytes(proto.SerializeToString())
    (inner / "in.npz").write_bytes(_dataset(proto, chance))


def _mutate(proto: onnx.ModelProto, folder: Path, chance: random.Random) -> None:
    outside = [t for t in proto.graph.initializer if t.external_data]
    tensors = outside or list(proto.graph.initializer)
    if not tensors:
        return
    tensor = chance.choice(tensors)
    entry = chance.choice(tensor.external_data or [tensor.external_data.add()])
    match chance.randrange(10):
        case 0 | 1 | 2:
            entry.value = chance.choice(PLACES)
            if chance.random() < 0.5:
                entry.key = "location"
        case 3 | 4:
            entry.key = chance.choice(("offset", "length"))
            entry.value = chance.choice((*NUMBERS, *map(str, HUGE)))
        case 5:
            entry.key = chance.choice(KEYS)
        case 6:
            tensor.external_data.add(key=chance.choice(KEYS), value=chance.choice(PLACES))
        case 7:
            tensor.dims[:] = [chance.choice((0, 1, -1, 3, 2**31, 2**62)) for _ in range(2)]
        case 8:
            tensor.data_type = chance.choice([*range(28), 2**31 - 1])
        case 9:
            file = folder / chance.choice(("w.bin", "sub/w.bin"))
            if file.exists() and chance.random() < 0.5:
                os.truncate(file, chance.choice((0, 1, 5, file.stat().st_size * 2, 1 << 20)))
            else:
                file.unlink(missing_ok=True)


def _dataset(proto: onnx.ModelProto, chance: random.Random) -> bytes:
    """Return an archive of inputs, sometimes with a fault."""
    arrays: dict[str, Any] = {}
    for value in proto.graph.input:
        kind = value.type.tensor_type
        sizes = [dim.dim_value or 2 for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        arrays[value.name] = np.ones(sizes, dtype)
        match chance.randrange(12):
            case 0:
                arrays[value.name] = arrays[value.name].astype(chance.choice(("f8", "U3", "c8")))
            case 1:
                arrays[value.name] = np.ones(chance.choice([(), (0,), (1, 2, 3, 4, 5)]), dtype)
            case 2:
                arrays[value.name] = np.ones((1, *sizes), dtype)
            case 3:
                del arrays[value.name]
    file = io.BytesIO()
    chance.choice((np.savez, np.savez_compressed))(file, **arrays)
    content = bytearray(file.getvalue())
    if chance.random() < 0.3:
        for _ in range(chance.choice((1, 2, 8))):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    if chance.random() < 0.1:
        del content[chance.randrange(len(content)) :]
    return bytes(content)


def kept(folder: Path) -> dict[str, object]:
    """Return what no command may change: everything but what it is told to write."""
    files: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            files[name] = os.readlink(path)
        elif path.is_file() and path.stat().st_size < 1 << 20:
            files[name] = path.read_bytes()
        else:
            files[name] = None
    return files


def fault(found: Run, before: dict[str, object], after: dict[str, object]) -> str | None:
    """Return what is wrong with a run and with the files that it leaves."""
    if found.fault:
        return found.fault
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    if found.status in (2, 3):
        return f"status {found.status}, but changed: {sorted(changed)}" if changed else None
    in_place = "--in-place" in found.arguments
    stems = ("inner/m.onnx", "inner/w.bin", "inner/sub/w") if in_place else ("inner/sub/w.onnx",)
    spare = {name for name in changed if not name.startswith(("inner/out", *stems))}
    return f"changed {sorted(spare)}" if spare else None


def runs(
    originals: Sequence[bytes], seed: int, count: int, each: int = 4
) -> Iterator[tuple[int, Run, str | None]]:
    """Yield what commands do with ``count`` models, and what is wrong with that."""
    for number in range(count):
        chance = random.Random(f"external {seed} {number}")
        original = chance.choice(originals)
        state = chance.getstate()
        for command in chance.sample(COMMANDS, each):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                chance.setstate(state)
                lay_out(folder, original, chance)
                before = kept(folder)
                found = run(command, folder / "inner")
                yield number, found, fault(found, before, kept(folder))


def main() -> None:
    """Try as many models as the command line says."""
    seed, count, *paths = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        warm_up(Path(folder))
    tried = runs(originals(paths), int(seed), int(count))
    summarise((f"{seed}-{number}", found, what) for number, found, what in tried)


if __name__ == "__main__":
    main()
