"""Which quantizer ruins a model: qgraph why, qdq_loss_debug of ONNX Runtime, and NNCF's ranking.

    python tests/benchmarks/compare_why.py [--factor 32]     needs nncf and onnxruntime

The float network of ``examples/digits_brevitas.onnx`` is quantized by NNCF (8 bits). Then the scale
of one quantizer of data is multiplied by the factor, for each of them in turn. Each tool gets the
float network, the spoiled model and the same images. Printed is at which place it lists the spoiled
quantizer. qdq_loss_debug knows tensors by the names that ONNX Runtime's quantization gives them, so
tensors are renamed for it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nncf
import numpy as np
import onnx
import onnxruntime
from nncf.common.factory import build_graph
from nncf.quantization.algorithms.accuracy_control.evaluator import Evaluator
from nncf.quantization.algorithms.accuracy_control.onnx_backend import (
    ONNXAccuracyControlAlgoBackend,
)
from nncf.quantization.algorithms.accuracy_control.ranker import Ranker
from onnxruntime.quantization import CalibrationDataReader, qdq_loss_debug

import qgraph
from qgraph.transforms.deployment.attempts import float_network

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
IMAGES = 256

Array = np.ndarray[Any, Any]
Tool = Callable[[Path, Path, Array, Array], list[str]]


class Images(CalibrationDataReader):  # type: ignore[misc]
    """Images one by one, as ONNX Runtime reads them."""

    def __init__(self, images: Array) -> None:
        self._left = iter([{"x": image[None]} for image in images])

    def get_next(self) -> dict[str, Array] | None:
        """Return the next image."""
        return next(self._left, None)


def quantized(folder: Path, images: Array) -> tuple[Path, Path]:
    """Write the float network and its quantized model, and return both files."""
    plain, result = folder / "float.onnx", folder / "quantized.onnx"
    float_network(qgraph.load(EXAMPLES / "digits_brevitas.onnx")).save(plain)
    data = nncf.Dataset([image[None] for image in images], lambda image: {"x": image})
    # As its accuracy control does: without quantizers of weights, NNCF cannot exchange them.
    options = nncf.AdvancedQuantizationParameters(backend_params={"compress_weights": False})
    onnx.save(nncf.quantize(onnx.load(plain), data, advanced_parameters=options), result)
    return plain, result


def sources(proto: onnx.ModelProto) -> dict[str, str]:
    """Return the tensor that each DequantizeLinear passes on, by its result."""
    made = {node.output[0]: node for node in proto.graph.node}
    pairs = [node for node in proto.graph.node if node.op_type == "DequantizeLinear"]
    return {n.output[0]: made[n.input[0]].input[0] for n in pairs if n.input[0] in made}


def spoiled(model: Path, factor: float) -> Iterator[tuple[str, Path]]:
    """Yield each tensor of data whose quantizer is spoiled, and the file of the model."""
    proto = onnx.load(model)
    constants = {each.name for each in proto.graph.initializer}
    nodes = [node for node in proto.graph.node if node.op_type == "QuantizeLinear"]
    for node in nodes:
        if node.input[0] in constants:
            continue
        copy = onnx.load(model)
        (scale,) = [i for i in copy.graph.initializer if i.name == node.input[1]]
        value = onnx.numpy_helper.to_array(scale) * np.float32(factor)
        scale.CopyFrom(onnx.numpy_helper.from_array(value, scale.name))
        path = model.with_name("spoiled.onnx")
        onnx.save(copy, path)
        yield node.input[0], path


def by_why(plain: Path, model: Path, images: Array, labels: Array) -> list[str]:
    """Return the tensors of quantizers of data, the most harmful first."""
    report = qgraph.why(plain, model, {"x": images}, labels=labels, backend="ort")
    passed = sources(onnx.load(model))
    ranked = [cost for cost in report.quantizers if cost.reason is None and not cost.is_weight]
    return [passed[cost.tensor] for cost in ranked]


def by_loss_debug(plain: Path, model: Path, images: Array, _labels: Array) -> list[str]:
    """Return the tensors by the SQNR between both models, the worst first."""
    renamed = onnx.load(model)
    names = {k: f"{v}_DequantizeLinear_Output" for k, v in sources(renamed).items()}
    for node in renamed.graph.node:
        for names_of in (node.input, node.output):
            names_of[:] = [names.get(name, name) for name in names_of]
    del renamed.graph.value_info[:]
    onnx.save(renamed, model.with_name("renamed.onnx"))
    collected = []
    for path in (model.with_name("renamed.onnx"), plain):
        augmented = path.with_suffix(".augmented.onnx")
        qdq_loss_debug.modify_model_output_intermediate_tensors(path, augmented)
        collected.append(qdq_loss_debug.collect_activations(str(augmented), Images(images)))
    errors = qdq_loss_debug.compute_activation_error(
        qdq_loss_debug.create_activation_matching(*collected)
    )
    known = {name: error["xmodel_err"] for name, error in errors.items() if "xmodel_err" in error}
    return sorted(known, key=known.__getitem__)


def validate(model: onnx.ModelProto, items: Any) -> tuple[float, list[float]]:
    """Return the share of right answers, and each of them."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    right = []
    for image, label in items:
        (scores,) = session.run(None, {"x": image})
        right.append(float(scores.argmax() == label))
    return float(np.mean(right)), right


def by_nncf(plain: Path, model: Path, images: Array, labels: Array) -> list[str]:
    """Return the tensors of NNCF's groups of quantizers, the most harmful first."""
    first, second = onnx.load(plain), onnx.load(model)
    pairs = [(image[None], label) for image, label in zip(images, labels, strict=True)]
    data = nncf.Dataset(pairs, lambda pair: {"x": pair[0]})
    evaluator = Evaluator(validate)
    results = [evaluator.collect_metric_results(each, data) for each in (first, second)]
    graph = build_graph(second)
    ranker = Ranker(len(images), data, ONNXAccuracyControlAlgoBackend(), evaluator)
    groups = ranker.find_groups_of_quantizers_to_rank(graph)
    ranked = ranker.rank_groups_of_quantizers(
        groups, second, graph, *(each.values_for_each_item for each in results)
    )
    nodes = {node.name: node for node in second.graph.node}
    members = [[nodes[q.node_name] for q in group.quantizers] for group in reversed(ranked)]
    return ["+".join(n.input[0] for n in m if n.op_type == "QuantizeLinear") for m in members]


TOOLS: dict[str, Tool] = {
    "qgraph why": by_why,
    "qdq_loss_debug": by_loss_debug,
    "NNCF ranking": by_nncf,
}


def main() -> None:
    """Print the place of the spoiled quantizer by each tool, and how often it is the first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--factor", type=float, default=32)
    options = parser.parse_args()
    nncf.set_log_level(logging.ERROR)
    with np.load(EXAMPLES / "digits_test.npz") as data:
        images, labels = data["x"][:IMAGES], data["label"][:IMAGES]
    firsts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        plain, model = quantized(Path(folder), images)
        for name, path in spoiled(model, options.factor):
            count += 1
            accuracy = validate(onnx.load(path), zip(images[:, None], labels, strict=True))[0]
            print(f"{name}: accuracy {accuracy:.1%}")
            for title, rank in TOOLS.items():
                start = time.process_time()
                with contextlib.redirect_stdout(io.StringIO()):
                    order = rank(plain, path, images, labels)
                seconds[title] += time.process_time() - start
                place = [i for i, each in enumerate(order, 1) if name in each.split("+")]
                print(f"  {title}: place {place[0] if place else '-'} of {len(order)}")
                firsts[title] += place[:1] == [1]
    for title in TOOLS:
        print(
            f"{title}: first {firsts[title]} of {count}, {seconds[title]:.1f} s of processor time"
        )


if __name__ == "__main__":
    main()
