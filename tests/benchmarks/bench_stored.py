"""Time what qgraph does with the weights of a big model, each command in a process of its own.

Processor time and peak memory are those of whole processes. The column "s/GB" is processor time,
less that of the same command on a model without weights, for each GB of weights that are read. The
column "ratio" compares it with the first line of the block, the reference:

- packed: MatMulNBits. The reference copies: it reads, writes, reads back, and computes checksums.
- coded: DequantizeLinear on INT4 in blocks, described, compared, and written as Quant.
- fold: weights in each form of a quantizer. The reference is a Quant of 4 bits for each channel.
- describe: ``lock`` and ``diff`` of the same weights. The reference is ``fold``.
- quantize: ``quantize-weights``, by range and with a search for scales.
- deploy: a model of pairs over 2 GB, for ONNX Runtime.
- sharded: a sparse model in files of 4 GB.

    python tests/benchmarks/bench_stored.py [--gigabytes 1] [--folder FOLDER] [--only fold ...]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench_quantize_weights import Cost, run

TOOL = "import sys; from qgraph.cli.main import main; sys.argv[0] = 'qgraph'; main()"
HERE = Path(__file__).parent

FOLDED = (
    *("quant4", "fakequantize", "bipolar", "pair4", "pair8"),
    *("quant4block", "mxfp4", "nvfp4", "fp4block"),
)
DESCRIBED = ("quant4", "fakequantize", "pair8", "quant4block", "mxfp4")
SEARCHED = (
    *("format=int4,scale=minmax", "format=int4,scale=mse", "format=int2,scale=mse"),
    *("format=nvfp4,scale=mse", "format=int4,granularity=axis,scale=mse"),
)
SHARD = 4


class Bench:
    """Models in a folder, and a table of what commands take on them."""

    def __init__(self, folder: Path, gigabytes: float) -> None:
        self.folder, self.gigabytes = folder, gigabytes
        self.source, self.out = folder / "source.onnx", folder / "out.onnx"
        self._reference: float | None = None
        self._small = folder / "small"
        self._starts: dict[str, float] = {}
        print(f"{'':30} {'GB':>6} {'cpu s':>7} {'MB':>6} {'s/GB':>6} {'ratio':>6}")

    def block(self, title: str) -> None:
        """Begin a block of lines; its first one is the reference."""
        self._reference = None
        self.clear()
        print(title)

    def clear(self) -> None:
        """Remove all models."""
        for path in self.folder.iterdir():
            if path != self._small:
                path.unlink()

    def make(self, script: str, *arguments: object) -> None:
        """Write a model in a process of its own: its memory would count as that of commands."""
        subprocess.run(
            [sys.executable, str(HERE / script), *map(str, arguments)],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def show(
        self, what: str, size: float, command: str, inputs: Sequence[Path], *options: object
    ) -> None:
        """Run a command on models with ``size`` GB of weights, and print its cost."""
        cost = _run(command, *inputs, *options)
        each = (cost.processor - self._start(command, len(inputs), *options)) / size
        self._reference = self._reference or each
        print(
            f"  {what:28} {size:6.2f} {cost.processor:7.2f} {cost.resident / 1e6:6.0f} "
            f"{each:6.2f} {each / self._reference:6.2f}",
            flush=True,
        )

    def _start(self, command: str, count: int, *options: object) -> float:
        """Return the time of a command for a model whose weights are small."""
        if command not in self._starts:
            self._small.mkdir()
            small, out = self._small / "small.onnx", self._small / "out.onnx"
            sizes = ("--gigabytes", 1e-3, "--width", 64)
            self.make("make_decoder.py", small, *sizes, "--quantizer", "pair8")
            given = [out if isinstance(each, Path) else each for each in options]
            self._starts[command] = _run(command, *[small] * count, *given).processor
            shutil.rmtree(self._small)
        return self._starts[command]

    def copy(self, path: Path, name: str) -> Path:
        """Write a copy of a model whose weights are in the same data files."""
        other = self.folder / name
        shutil.copy(path, other)
        return other


def _run(*arguments: object) -> Cost:
    return run(TOOL, *map(str, arguments), "--quiet")


def packed(bench: Bench) -> None:
    """Lower, raise, convert and prove MatMulNBits."""
    size = bench.gigabytes
    bench.make("make_packed.py", bench.source, "--gigabytes", size)
    bench.show("copy", size, "fold", [bench.source], "-o", bench.folder / "copy.onnx")
    lowering = ("-p", "lower-mat-mul-n-bits")
    bench.show("lower", size, "transform", [bench.source], "-o", bench.out, *lowering)
    bench.show("prove lowered", size, "prove", [bench.source, bench.out])
    bench.show("lock lowered", size, "lock", [bench.out], "-o", bench.folder / "lock")
    other = bench.folder / "other.onnx"
    raising = ("-p", "raise-mat-mul-n-bits")
    bench.show("raise", size, "transform", [bench.out], "-o", other, *raising)
    bench.show("prove raised", size, "prove", [bench.out, other])
    bench.show("convert to qonnx", size, "convert", [bench.source], "-o", other, "--to", "qonnx")
    bench.show("prove qonnx", size, "prove", [bench.source, other])


def coded(bench: Bench) -> None:
    """Describe, compare and convert codes in blocks; the result has eight times their bytes."""
    size = bench.gigabytes / 4
    bench.make("make_decoder.py", bench.source, "--gigabytes", size, "--quantizer", "coded4block")
    bench.show("copy", size, "fold", [bench.source], "-o", bench.folder / "copy.onnx")
    bench.show("lock", size, "lock", [bench.source], "-o", bench.folder / "lock")
    other = bench.copy(bench.source, "other.onnx")
    bench.show("diff", 2 * size, "diff", [bench.source, other])
    bench.show(
        "convert to qonnx", size, "convert", [bench.source], "-o", bench.out, "--to", "qonnx"
    )


def fold(bench: Bench) -> None:
    """Fold weights in all forms."""
    for kind in FOLDED:
        bench.clear()
        bench.make(
            "make_decoder.py", bench.source, "--gigabytes", bench.gigabytes, "--quantizer", kind
        )
        target = ("-o", bench.out, "--opset", 24)
        bench.show(kind, bench.gigabytes, "fold", [bench.source], *target)


def describe(bench: Bench) -> None:
    """Prove, describe and compare weights in all forms."""
    size = bench.gigabytes
    for kind in DESCRIBED:
        bench.clear()
        bench.make("make_decoder.py", bench.source, "--gigabytes", size, "--quantizer", kind)
        if kind == DESCRIBED[0]:
            bench.show(f"fold {kind}", size, "fold", [bench.source], "-o", bench.out)
            bench.show(f"prove {kind}", size, "prove", [bench.source, bench.out])
        bench.show(f"lock {kind}", size, "lock", [bench.source], "-o", bench.folder / "lock")
        other = bench.copy(bench.source, "other.onnx")
        bench.show(f"diff {kind}", 2 * size, "diff", [bench.source, other])


def quantize(bench: Bench) -> None:
    """Quantize float weights."""
    bench.make(
        "make_decoder.py", bench.source, "--gigabytes", bench.gigabytes, "--quantizer", "float"
    )
    for options in SEARCHED:
        spec = f"quantize-weights{{{options},opset=25}}"
        given = ("transform", [bench.source], "-o", bench.out, "-p", spec)
        bench.show(options.replace(",scale=", " "), bench.gigabytes, *given)


def deploy(bench: Bench) -> None:
    """Deploy a model over 2 GB."""
    size = max(2.2 * bench.gigabytes, 2.2)
    bench.make("make_decoder.py", bench.source, "--gigabytes", size, "--quantizer", "pair8")
    bench.show("fold", size, "fold", [bench.source], "-o", bench.folder / "folded.onnx")
    target = ("--target", "onnxruntime-cpu")
    bench.show("deploy", size, "deploy", [bench.source], "-o", bench.out, *target)


def sharded(bench: Bench) -> None:
    """Convert, fold and prove a model in several files."""
    size = 20 * bench.gigabytes
    parts = ("--shard", SHARD * bench.gigabytes, "--sparse")
    bench.make("make_decoder.py", bench.source, "--gigabytes", size, *parts)
    limit = ("--shard-size", "1GB")
    bench.show("fold", size, "fold", [bench.source], "-o", bench.out, *limit)
    bench.show("prove", size, "prove", [bench.source, bench.out])
    target = ("-o", bench.folder / "converted.onnx", "--to", "qdq", *limit)
    bench.show("convert", size, "convert", [bench.source], *target)


BLOCKS: dict[str, Callable[[Bench], None]] = {
    each.__name__: each for each in (packed, coded, fold, describe, quantize, deploy, sharded)
}


def main() -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1, help="of weights of each model")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    usual = [name for name in BLOCKS if name != sharded.__name__]
    parser.add_argument("--only", nargs="+", choices=BLOCKS, default=usual)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        bench = Bench(Path(name), given.gigabytes)
        for name in given.only:
            bench.block(name)
            BLOCKS[name](bench)


if __name__ == "__main__":
    main()
