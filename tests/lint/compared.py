"""Plant faults in real models, and ask other tools about them; write docs/lint-compared.md.

    python -m tests.lint.compared MODELS [--places 3] [--write]

MODELS is a folder of models, such as that of the tests. Each fault of ``tests.lint.faults`` that
needs no target and no data, and that a node has, is planted in up to so many models. A tool has
found it if it says anything about the model with the fault that it does not say about the model
without, whatever it says.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

import qgraph
from qgraph.lint.engine import lint
from qgraph.lint.rule import RULES
from tests.lint.faults import FAULTS, places

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "lint-compared.md"
_MOST_BYTES = 2_000_000
_NUMBER = re.compile(r"/tmp/\S+|0x[0-9a-f]+|\d{4}-\d\d-\d\d [\d:.,]+|\[[WIE]:[^\]]*\]")


class Lines(logging.Handler):
    """Gathers what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.lines.append(record.getMessage())


def checker(path: Path) -> list[str]:
    """ONNX's checker, with shape inference in strict mode."""
    onnx.checker.check_model(str(path), full_check=True)
    return []


def session(path: Path) -> list[str]:
    """ONNX Runtime, with the messages that it shows by default."""
    import onnxruntime as ort

    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        return file.read().decode("utf-8", "replace").splitlines()


def preprocess(path: Path) -> list[str]:
    """ONNX Runtime's quant_pre_process: shape inference and optimization."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    # It leaves files in the current folder where it fails.
    with logged() as lines, tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        quant_pre_process(str(path), str(Path(folder) / "out.onnx"), auto_merge=True)
        return lines.lines


def usability(path: Path) -> list[str]:
    """ONNX Runtime's check of usability on phones, its whole report."""
    from onnxruntime.tools.mobile_helpers.usability_checker import analyze_model

    logger = logging.getLogger("usability")
    logger.setLevel(logging.INFO)
    logger.handlers.clear()
    lines = Lines()
    logger.addHandler(lines)
    analyze_model(path, logger=logger)
    return [line for line in lines.lines if str(path) not in line]


class logged:  # noqa: N801 - a context
    """Gather what the root logger is given."""

    def __enter__(self) -> Lines:
        self.lines = Lines()
        logging.getLogger().addHandler(self.lines)
        return self.lines

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self.lines)


TOOLS: dict[str, Callable[[Path], list[str]]] = {
    "checker": checker,
    "session": session,
    "preprocess": preprocess,
    "usability": usability,
}


def told(tool: Callable[[Path], list[str]], path: Path) -> Counter[str] | None:
    """Return what a tool says; None if it does not take the model."""
    try:
        lines = tool(path)
    except Exception as error:
        lines = [f"{type(error).__name__}: {error}".splitlines()[0]]
        return Counter({_NUMBER.sub("", line): -1 for line in lines})
    return Counter(_NUMBER.sub("", line).strip() for line in lines)


def tidied(model: qgraph.Model) -> qgraph.Model:
    """Remove constants that planting has left without a reader: tools warn of them."""
    graph = model.ir.graph
    for node in [node for node in graph if node.op_type == "Constant"]:
        if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]
    return model


def structure(model: ir.Model) -> tuple[list[str], set[str]]:
    """Return what a viewer draws: the operators, and what it lists: attributes, types, shapes."""
    drawn, listed = [], set()
    for node in model.graph:
        if node.op_type == "Constant":
            listed.add(f"{node.outputs[0].dtype} {node.outputs[0].shape}")
            continue
        drawn.append(f"{node.op_type} {len(node.inputs)}")
        listed.update(map(str, node.attributes.values()))
    for value in model.graph.initializers.values():
        listed.add(f"{value.dtype} {value.shape}")
    return drawn, listed


def seen(before: ir.Model, after: ir.Model) -> str:
    """Say how a fault shows in a viewer."""
    drawn, listed = structure(before)
    others, attributes = structure(after)
    if drawn != others:
        return "other nodes"
    return "an attribute, type or shape" if listed != attributes else "numbers in a tensor"


def chosen(folder: Path, most: int) -> Iterator[tuple[str, Path]]:
    """Yield pairs of a rule and a model that can have its fault, spread over the models."""
    paths = sorted([*folder.glob("*.onnx"), *(folder / "field").glob("*.onnx")])
    paths = [path for path in paths if path.stat().st_size < _MOST_BYTES]
    fitting: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        model = qgraph.load(path)
        model.freeze_inputs()
        for rule, entry in FAULTS.items():
            asks_alone = entry.target is None and not entry.has_data and entry.clean is None
            if asks_alone and any(True for _ in places(model.ir, rule, 1)):
                fitting[rule].append(path)
    for rule, models in fitting.items():
        step = max(1, len(models) // most)
        yield from ((rule, path) for path in models[::step][:most])


def main() -> None:
    """Plant, ask, count, and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("--places", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the page")
    options = parser.parse_args()
    logging.disable(logging.NOTSET)
    found: dict[str, Counter[str]] = defaultdict(Counter)
    shown: dict[str, Counter[str]] = defaultdict(Counter)
    plain: dict[tuple[Path, str], Counter[str] | None] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for rule, source in chosen(options.models, options.places):
            base = qgraph.load(source)
            base.freeze_inputs()
            tidied(base)
            before = Path(scratch) / "model.onnx"
            (place,) = places(base.ir, rule, 1)
            model = base.clone()
            name = FAULTS[rule].plant(model.ir, list(model.ir.graph)[place])
            known = {node for each in lint(base, select=rule) for node in each.nodes}
            if not name or name in known:
                continue
            found[rule]["planted"] += 1
            found[rule]["lint"] += any(name in each.nodes for each in lint(model, select=rule))
            tidied(model)
            shown[rule][seen(base.ir, model.ir)] += 1
            for tool, ask in TOOLS.items():
                if (source, tool) not in plain:
                    base.save(before)
                    plain[source, tool] = told(ask, before)
                model.save(before)
                says, said = told(ask, before), plain[source, tool]
                if said is not None and -1 in said.values():
                    found[rule][f"{tool} cannot"] += 1
                else:
                    found[rule][tool] += bool(set(says or ()) - set(said or ()))
            sys.stdout.write(f"{rule} {source.name} {dict(found[rule])}\n")
            sys.stdout.flush()
    text = page(found, shown)
    if options.write:
        PAGE.write_text(text, "utf-8")
    else:
        sys.stdout.write(text)


def page(found: dict[str, Counter[str]], shown: dict[str, Counter[str]]) -> str:
    """Return the page."""
    total: Counter[str] = Counter()
    for each in found.values():
        total.update(each)
    rows = []
    for rule, count in sorted(found.items()):
        cells = [cell(count, tool) for tool in TOOLS]
        view = ", ".join(shown[rule])
        name = f"[{rule}](rules.md#{rule.lower()}-{RULES.find(rule).name}) {RULES.find(rule).name}"
        rows.append(" | ".join([name, str(count["planted"]), str(count["lint"]), *cells, view]))
    last = [cell(total, tool) for tool in TOOLS]
    rows.append(" | ".join(["**all**", str(total["planted"]), str(total["lint"]), *last, ""]))
    table = "\n".join(f"| {row} |" for row in rows)
    return _PAGE.format(table=table, planted=total["planted"])


def cell(count: Counter[str], tool: str) -> str:
    """Return how many of the faults a tool found, of those in models that it takes."""
    asked = count["planted"] - count[f"{tool} cannot"]
    return f"{count[tool]} of {asked}" if asked else "-"


_PAGE = """# What other tools say about the same faults

Each of {planted} faults was planted in a copy of a real model: an export of Brevitas, NNCF,
ONNX Runtime, QKeras or others. Five tools looked at the model with the fault and without it:

- `qgraph lint`, without a target: whether a finding of the rule names the node;
- ONNX's checker with `full_check=True`, which infers shapes in strict mode (onnx 1.23.2);
- a session of ONNX Runtime 1.32.0: whether it refuses the model, and what it prints by default;
- its `quant_pre_process`, which infers shapes symbolically and optimizes;
- its `check_onnx_model_mobile_usability`, whose whole report was compared.

A tool has found a fault if it says anything that it does not say without the fault. This favours
the report about usability, which counts nodes and partitions: it changes with most new nodes, and
names none of these faults. Models that a tool does not accept at all, such as QONNX and
FakeQuantize in ONNX Runtime, do not count for it; "-" means that it accepts none. The other tools
have other purposes: the table shows which faults a file that passes them may still have.

In the models as they are, without a target, lint reports three errors: QG604 in `TFC_1W2A`,
`kwsmlp_w3a3` and `qkeras_jettagging`, which use a domain that they do not import. Each was checked
by hand; `tests/lint/test_real_errors.py` lists them. `tests/lint/test_faults.py` plants at least
1,391 faults of 129 of the 130 rules, each at up to two places of each model that can have it, with
a target or with data if the rule needs them, and asks all rules: each fault is found at its node.
Other rules then have findings that they did not have before. Each of the 221 kinds (pairs of the
fault and the other rule) was examined, and `tests/lint/faults/consequences.py` lists it: all are
consequences of the fault, such as a bias whose scale is no longer the product of the other two.

Errors of QG601 say that a target does not load a model. Among 39 models, `onnxruntime-cpu` has them
for 15; ONNX Runtime 1.32.0 refuses these and no other. `openvino-cpu` has them for 13; OpenVINO
2026.4.1 refuses these, and three more of ONNX Runtime's quantizer, on which its converter fails.
`tensorrt` has them for 33; TensorRT was not run: each kind was compared with its list of operators
and with the code of its parser (onnx-tensorrt), which warns of UINT8 and reads INT8 instead.

Viewers such as Netron check nothing: Netron 9.3.3 opened 247 of these models, with and without
faults, and gave no message; those of QG325 to QG331, QG621 and QG622 were not tried. The last
column says what a reader could compare by eye: a drawing with
other nodes; an attribute, a type or a shape that opens with a click; or numbers in a tensor.

`python -m tests.lint.compared MODELS --write` makes this page.

| fault | planted | lint | checker | loads | `quant_pre_process` | usability | in a viewer |
|---|---:|---:|---:|---:|---:|---:|---|
{table}
"""


if __name__ == "__main__":
    main()
