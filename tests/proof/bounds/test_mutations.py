"""Random layers with a fault: bounds hold for what ONNX Runtime executes, and proofs never fail.

Each layer is executed alone, on equal codes, as random codes and those that make sums extreme. A
code stands for the real number that it is decoded to.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import qgraph

pytestmark = pytest.mark.runtime

SIZE = 4
LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}
MUTATIONS = ("none", "bias", "scale", "negated", "transposed", "exchanged", "shared")
MUTATIONS += ("renumbered", "moved", "clip", "zero")
FORMS = ("float", "gemm", "codes", "integer")
F = np.float32


@dataclass
class Layer:
    """Codes of one type times weights, with a bias, as codes of another type."""

    weights: np.ndarray
    scales: tuple[float, float, float]
    kinds: tuple[str, str]
    zeros: tuple[int, int]
    bias: np.ndarray
    limits: tuple[int, int]
    has_relu: bool
    form: str = "float"

    def text(self, k: int) -> tuple[str, str]:
        """Return nodes from the codes q{k} to q{k + 1}, and initializers."""
        s_x, s_w, s_y = map(float, map(F, self.scales))
        (kind, result), (zero, zero_y), (low, high) = self.kinds, self.zeros, self.limits
        unit = float(F(s_x) * F(s_w))
        made = [
            f"int8[{SIZE},{SIZE}] w{k} = {_list(self.weights)}",
            f"float u{k} = {{{s_x!r}}}, float v{k} = {{{s_w!r}}}, float s{k} = {{{s_y!r}}}",
            f"float t{k} = {{{unit!r}}}, float one{k} = {{1}}, int8 z{k} = {{0}}",
            f"{kind} x{k} = {{{zero}}}, {result} y{k} = {{{zero_y}}}",
            f"{result} l{k} = {{{low}}}, {result} h{k} = {{{high}}}",
            f"float[{SIZE}] b{k} = {_list(self.bias.astype(F))}",
        ]
        decoded = f"a{k} = DequantizeLinear (q{k}, u{k}, x{k})"
        weights = f"c{k} = DequantizeLinear (w{k}, v{k}, z{k})"
        added = f"n{k} = Add (m{k}, b{k})"
        nodes = {
            "float": [decoded, weights, f"m{k} = MatMul (a{k}, c{k})", added],
            "gemm": [decoded, weights, f"n{k} = Gemm (a{k}, c{k}, b{k})"],
            "codes": [
                f"a{k} = DequantizeLinear (q{k}, one{k}, x{k})",
                f"c{k} = Cast <to = 1> (w{k})",
                f"d{k} = MatMul (a{k}, c{k})",
                f"m{k} = Mul (d{k}, t{k})",
                added,
            ],
            "integer": [
                f"d{k} = MatMulInteger (q{k}, w{k}, x{k})",
                f"e{k} = Cast <to = 1> (d{k})",
                f"m{k} = Mul (e{k}, t{k})",
                added,
            ],
        }[self.form]
        nodes += [
            f"r{k} = {'Relu' if self.has_relu else 'Identity'} (n{k})",
            f"[round{k}] p{k} = QuantizeLinear (r{k}, s{k}, y{k})",
            f"q{k + 1} = Clip (p{k}, l{k}, h{k})",
        ]
        return "\n".join(nodes), ", ".join(made)


def _list(array: np.ndarray) -> str:
    return "{" + ", ".join(repr(each) for each in array.reshape(-1).tolist()) + "}"


def model(layers: list[Layer], first: int = 0, *, codes: bool = False) -> str:
    """Return layers as a model; the result is decoded, or codes."""
    last = len(layers) - 1
    parts = [layers[k].text(k) for k in range(first, last + 1)]
    nodes = [nodes for nodes, _ in parts]
    output = f"{layers[last].kinds[1]}[1,{SIZE}] q{last + 1}"
    if not codes:
        nodes.append(f"y = DequantizeLinear (q{last + 1}, s{last}, y{last})")
        output = f"float[1,{SIZE}] y"
    return f"""<ir_version: 10, opset_import: ["": 21]>
        net ({layers[first].kinds[0]}[1,{SIZE}] q{first}) => ({output})
        <{", ".join(made for _, made in parts)}> {{ {" ".join(nodes)} }}"""


def drawn(random: np.random.Generator, kind: str, zero: int, s_x: float | None) -> Layer:
    """Return a random layer whose codes have a type and a zero point."""
    is_power = random.random() < 0.4
    exponents = random.uniform((-6, -8), (-2, -3))
    drawn_x, s_w = (2.0 ** (np.rint(exponents) if is_power else exponents)).tolist()
    s_x = drawn_x if s_x is None else s_x
    # Sums of products of larger weights saturate on processors without VNNI.
    weights = random.integers(*random.choice([(-64, 65), (-2, 3)]), (SIZE, SIZE))
    reach = np.abs(weights).sum() / SIZE * s_x * s_w
    s_y = reach * 2.0 ** random.uniform(-3, 1) + 2.0**-12
    s_y = 2.0 ** np.rint(np.log2(s_y)) if is_power else s_y
    result = random.choice(["int8", "uint8"])
    low, high = LIMITS[result]
    if random.random() < 0.4:
        low, high = low + random.integers(0, 100), high - random.integers(0, 100)
    zero_y = int(random.integers(0, 200)) if result == "uint8" else int(random.choice([0, -100, 5]))
    unit = random.choice([s_x * s_w, s_y * 0.37])
    bias = random.integers(-60, 60, SIZE) * unit
    kinds, zeros = (kind, str(result)), (zero, zero_y)
    has_relu = bool(random.random() < 0.3)
    return Layer(weights, (s_x, s_w, s_y), kinds, zeros, bias, (int(low), int(high)), has_relu)


def mutated(random: np.random.Generator, layers: list[Layer], mutation: str) -> list[Layer] | None:
    """Return layers with a fault; None if codes leave their type."""
    made = copy.deepcopy(layers)
    k = int(random.integers(len(made)))
    layer, s_y = made[k], made[k].scales[2]
    step = int(random.choice([1, -1, 3, -20]))
    low, high = LIMITS[layer.kinds[1]]
    moved = max(low, layer.limits[0] + step), min(high, layer.limits[1] + step)
    match mutation:
        case "bias":
            layer.bias[random.integers(SIZE)] += s_y * random.choice([0.01, 1, -1, 3, 0.999])
        case "scale":
            share = 1 + random.choice([1e-3, -1e-3, 1e-6])
            layer.scales = (layer.scales[0], layer.scales[1] * share, s_y)
        case "negated":
            layer.weights[:, random.integers(SIZE)] *= -1
        case "transposed":
            layer.weights = layer.weights.T.copy()
        case "exchanged":
            made[0].weights, made[-1].weights = made[-1].weights, made[0].weights
        case "shared":
            made[-1].weights = made[0].weights
        case "renumbered":
            layer.limits, layer.zeros = moved, (layer.zeros[0], layer.zeros[1] + step)
            if k + 1 < len(made):
                made[k + 1].zeros = (made[k + 1].zeros[0] + step, made[k + 1].zeros[1])
        case "moved":
            layer.limits, layer.bias = moved, layer.bias + step * s_y
        case "clip":
            layer.limits = low + int(random.integers(0, 120)), high - int(random.integers(0, 120))
        case "zero":
            layer.zeros = layer.zeros[0], layer.zeros[1] + 1
    ends = [
        (zero, LIMITS[kind])
        for each in made
        for zero, kind in zip(each.zeros, each.kinds, strict=True)
    ]
    return made if all(a <= zero <= b for zero, (a, b) in ends) else None


def session(layers: list[Layer], first: int) -> ort.InferenceSession:
    """Return layers from one on, as they are executed."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    made = onnx.parser.parse_model(model(layers, first, codes=True)).SerializeToString()
    return ort.InferenceSession(made, options, providers=["CPUExecutionProvider"])


def extremes(random: np.random.Generator, layer: Layer, low: object, high: object) -> list:
    """Return codes between two ends: random ones, and those of the largest and smallest sums."""
    found = [random.integers(low, np.asarray(high) + 1, SIZE) for _ in range(24)]
    for sign in (1, -1):
        found += [np.where(sign * column > 0, high, low) for column in layer.weights.T]
    return found


def farthest(random: np.random.Generator, layers: tuple[list[Layer], list[Layer]], k: int) -> int:
    """Return the largest number of steps between results of one layer, as it is executed."""
    ours, theirs = (each[k] for each in layers)
    sides = [session(each[: k + 1], k) for each in layers]
    shift = theirs.zeros[0] - ours.zeros[0]
    (low, high), (first, last) = (LIMITS[each.kinds[0]] for each in (ours, theirs))
    low, high = max(low, first - shift), min(high, last - shift)
    if k:  # codes that the layers before give
        before, start = session(layers[0][:k], 0), layers[0][0]
        ends = LIMITS[start.kinds[0]]
        given = [x.astype(start.kinds[0])[None] for x in extremes(random, start, *ends)]
        codes = np.concatenate([before.run(None, {"q0": x})[0] for x in given]).astype(int)
        low, high = (np.clip(end, low, high) for end in (codes.min(axis=0), codes.max(axis=0)))
    worst = 0
    for x in extremes(random, ours, low, high) + extremes(random, theirs, low, high):
        results = []
        for side, layer, more in zip(sides, (ours, theirs), (0, shift), strict=True):
            (found,) = side.run(None, {f"q{k}": (x + more).astype(layer.kinds[0])[None]})
            results.append(found.astype(int) - layer.zeros[1])
        worst = max(worst, int(np.abs(results[0] - results[1]).max()))
    return worst


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize("seed", range(400))
def test_no_fault_leaves_its_bound(seed):
    random = np.random.default_rng(seed)
    mutation = MUTATIONS[seed % len(MUTATIONS)]
    kind = str(random.choice(["int8", "uint8"]))
    first = drawn(random, kind, int(random.integers(0, 100)), None)
    layers = [first, drawn(random, first.kinds[1], first.zeros[1], first.scales[2])]
    layers = layers[: int(random.integers(1, 3))]
    faulty = mutated(random, layers, mutation)
    if faulty is None or faulty[0].zeros[0] != layers[0].zeros[0]:
        return
    for layer in (*layers, *faulty):
        layer.form = str(random.choice(FORMS))
    models = [ir.from_onnx_text(model(each)) for each in (layers, faulty)]
    found = qgraph.prove(*models, within="1step", hashes=False)
    worst = [farthest(random, (layers, faulty), k) for k in range(len(layers))]
    if found.verdict == "proved":
        assert not any(worst)
    if found.verdict == "bounded" and not found.beyond:
        assert max(worst) <= 1
    for region in found.regions if found.verdict in ("bounded", "undecided") else ():
        for k, steps in enumerate(worst):
            if f"round{k}" in region.reference_nodes and region.verdict != "undecided":
                assert steps <= (0 if region.bound is None else region.bound.max_steps)
