"""Damaged files beside a model: reports, certificates, locks, settings, profiles, arrays.

``python -m tests.fuzz.side_files SEED COUNT`` prints what ends in another way than it should.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qgraph.cli.main import main
from tests.fuzz.malformed import Run

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "examples" / "digits_brevitas.onnx"

HOSTILE: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**31, 2**63, 10**400, 1e308, 0.5, "", "x", "\n::error::x", "\x1b[31m"),
    *("../../etc", "NaN", "9" * 5000, [], {}, [[]], [None], {"": None}, ["x"] * 3, "a.b", "\ud800"),
)
TOKENS = (
    *('""', '"x"', "-1", "0", "1e400", "nan", "inf", "[]", "{}", "true", "[[1]]", '["x"]', "'''"),
    *("2026-11-28", "9" * 30, '{ x = "y" }', "[1, 'x', {}]", '"\\u0000"', '"a*b?["', "0x7f"),
)


def prepare() -> None:
    """Write a model, its conversion, and a valid file of each kind, in the current folder."""
    Path("a.onnx").write_bytes(SOURCE.read_bytes())
    inputs = np.random.default_rng(0).normal(size=(4, 1, 8, 8)).astype(np.float32)
    np.savez("x.npz", **{_input_name(): inputs}, labels=np.arange(4))
    np.save("labels.npy", np.arange(4))
    Path("chip.toml").write_text(
        (ROOT / "qgraph" / "targets" / "stm32.toml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    Path("qgraph.toml").write_text(
        '[lint]\nselect = ["QG1"]\nignore = ["QG103"]\nfail-on = "error"\n'
        'target = "onnxruntime-cpu"\nbaseline = "base.json"\n'
    )
    for line in (
        "convert a.onnx -o b.onnx --to qdq --report convert.json",
        "prove a.onnx b.onnx --certificate proof.json",
        "check a.onnx b.onnx --inputs x.npz --report check.json",
        "lint b.onnx --report lint.json --write-baseline base.json",
        "lock b.onnx -o lock.txt",
        "deploy a.onnx -o d.onnx --target onnxruntime-cpu --report deploy.json",
    ):
        status, said = _call(line.split())
        if status not in (0, 1):
            raise AssertionError(f"{line}: {status} {said}")


def _input_name() -> str:
    import onnx

    return str(onnx.load(SOURCE).graph.input[0].name)


REPORT = tuple(f"report {{}} --{kind} out" for kind in ("html", "sarif", "markdown", "junit"))
KINDS: dict[str, tuple[str, ...]] = {
    "convert.json": REPORT,
    "check.json": REPORT,
    "lint.json": REPORT,
    "deploy.json": REPORT,
    "proof.json": (*REPORT, *["prove a.onnx b.onnx --verify {}"] * 4),
    "base.json": ("lint b.onnx --baseline {}",),
    "lock.txt": ("lock b.onnx --check {}", "diff b.onnx {}"),
    "qgraph.toml": ("lint b.onnx",),
    "chip.toml": (
        *("targets {}", "lint b.onnx --target {}", "targets {} --json"),
        "deploy a.onnx -o d.onnx --target {}",
    ),
    "x.npz": (
        *("run a.onnx --inputs {}", "check a.onnx b.onnx --inputs {} --labels labels"),
        *(
            "why a.onnx b.onnx --inputs {} --labels labels",
            "deploy a.onnx -o d.onnx --target onnxruntime-cpu --inputs {} --labels labels",
        ),
    ),
    "labels.npy": (
        "check a.onnx b.onnx --inputs x.npz --labels {}",
        "run a.onnx --input " + "NAME={}",
    ),
}


def damaged(content: bytes, name: str, chance: random.Random) -> bytes:
    """Return other content: a few bytes, or a part of what it describes, are changed."""
    if chance.random() < 0.3:
        return _bytes(content, chance)
    if name.endswith(".json"):
        tree = json.loads(content)
        for _ in range(chance.randint(1, 3)):
            tree = _tree(tree, chance)
        return json.dumps(tree).encode("utf-8", "replace")
    if name.endswith((".toml", ".txt")):
        return _toml(content.decode(), chance).encode("utf-8", "replace")
    return _array(name, chance)


def _bytes(content: bytes, chance: random.Random) -> bytes:
    found = bytearray(content)
    if chance.random() < 0.3:
        return bytes(found[: chance.randrange(len(found) + 1)])
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(found))
        found[at : at + chance.randint(0, 2)] = chance.randbytes(chance.randint(0, 2))
    return bytes(found)


def _tree(tree: Any, chance: random.Random) -> Any:
    places = list(_places(tree))
    if not places or chance.random() < 0.02:
        return copy.deepcopy(chance.choice(HOSTILE))
    holder, key = chance.choice(places)
    action = chance.random()
    if action < 0.15:
        del holder[key]
    elif action < 0.3:
        other, place = chance.choice(places)
        holder[key] = json.loads(json.dumps(other[place] if place in _keys(other) else None))
    elif action < 0.33:
        for _ in range(chance.choice((50, 200))):
            holder[key] = [holder[key]]
    else:
        holder[key] = copy.deepcopy(chance.choice(HOSTILE))
    return tree


def _keys(holder: Any) -> Any:
    return holder if isinstance(holder, dict) else range(len(holder))


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    stack = [tree]
    while stack:
        holder = stack.pop()
        if isinstance(holder, dict | list):
            for key in list(_keys(holder)):
                yield holder, key
                stack.append(holder[key])


def _toml(text: str, chance: random.Random) -> str:
    lines = text.splitlines()
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(lines))
        action = chance.random()
        key, equals, _ = lines[at].partition("=")
        if action < 0.5 and equals:
            lines[at] = f"{key}= {chance.choice(TOKENS)}"
        elif action < 0.7:
            del lines[at]
        elif action < 0.85:
            lines.insert(chance.randrange(len(lines)), lines[at])
        else:
            lines[at] = f"{chance.choice(('x', 'name', '[x]', '[[rule]]', '[lint]'))} {equals} 1"
        lines = lines or [""]
    return "\n".join(lines)


def _array(name: str, chance: random.Random) -> bytes:
    kinds = ("float32", "float64", "int8", "bool", "complex64", "U3", "object", "float16", "S2")
    shapes = ((), (0,), (4,), (4, 1, 8, 8), (4, 64), (3, 1, 8, 8), (0, 1, 8, 8), (4, 1, 8, 9))
    array = np.zeros(chance.choice(shapes), np.dtype(chance.choice(kinds)))
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # 1e30 is infinite in float16
            array[...] = chance.choice((0.0, np.inf, np.nan, 1e30, -1.0))
    stream = io.BytesIO()
    if name.endswith(".npz"):
        given = {chance.choice((_input_name(), "labels", "x", "::error")): array}
        given["labels"] = np.zeros(chance.choice(((4,), (3,), (4, 2), ())), np.int64) - 1
        np.savez(stream, **given)
    else:
        np.save(stream, array)
    return stream.getvalue()


def _call(words: list[str]) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(words)
    return status, said.getvalue()


def runs(seed: int, count: int) -> Iterator[Run]:
    """Damage a file and run a command on it, in the current folder, as often as asked."""
    good = {name: Path(name).read_bytes() for name in KINDS}
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        name = chance.choice(list(KINDS))
        bad = damaged(good[name], name, chance)
        place = name if name == "qgraph.toml" else f"bad.{name}"
        Path(place).write_bytes(bad)
        line = chance.choice(KINDS[name]).format(place).replace("NAME", _input_name())
        start = time.process_time()
        status, said = _call(line.split())
        seconds = time.process_time() - start
        yield Run((str(number), *line.split()), status, said, seconds=seconds, megabytes=0)
        Path("qgraph.toml").write_bytes(good["qgraph.toml"])


def _main() -> None:
    seed, count = map(int, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        prepare()
        slowest, faults, statuses = 0.0, 0, dict[int, int]()
        for run in runs(seed, count):
            slowest = max(slowest, run.seconds)
            statuses[run.status] = statuses.get(run.status, 0) + 1
            if run.fault is not None:
                faults += 1
                sys.stdout.write(f"{run.arguments} {run.fault}\n{run.text[-700:]}\n")
        sys.stdout.write(f"{count} runs, {faults} faults, {statuses}, slowest {slowest:.1f} s\n")


if __name__ == "__main__":
    _main()
