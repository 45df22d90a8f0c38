"""Random quantizers through every writer, against the executor at thresholds and their neighbours.

The verdict of the engine and the numbers of the executor come from different code; they must agree.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.model import Model, load
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect

DOMAIN = "qonnx.custom_op.general"
CHANNELS = 3
MODES = ["ROUND"] * 4 + ["CEIL", "FLOOR", "UP", "DOWN", "HALF_UP", "HALF_DOWN"]
FORMATS = [
    (4, 3, 7, 448),
    (5, 2, 15, 57344),
    (2, 1, 1, 6),
    (3, 2, 3, 28),
    (2, 3, 1, 7.5),
    (4, 3, 7, 60),
    (3, 0, 2, 1e6),
    (5, 10, 15, 65504),
]


def scales(random: np.random.Generator, count: int) -> np.ndarray:
    kinds = [
        np.exp2(random.integers(-12, 4, count).astype(np.float64)),
        random.uniform(0.001, 3, count),
        10.0 ** random.uniform(-30, 30, count),
    ]
    sign = -1 if random.random() < 0.1 else 1
    return (sign * kinds[random.integers(len(kinds))]).astype(np.float32)


def parameter(random: np.random.Generator, draw) -> np.ndarray:
    """One number, or one for each channel."""
    if random.random() < 0.6:
        return draw(1).reshape(())
    return draw(CHANNELS).reshape(1, CHANNELS, 1)


def quant(random: np.random.Generator) -> tuple[str, dict, dict, np.ndarray]:
    bits = int(random.choice([1, 2, 3, 4, 5, 7, 8, 8, 9, 12, 16, 17, 24]))
    signed = int(random.integers(2))
    top = min(2**bits, 300)
    points = [
        lambda n: np.zeros(n, np.float32),
        lambda n: random.integers(0, top, n).astype(np.float32) - signed * (top // 2),
        lambda n: random.uniform(-3, 3, n).astype(np.float32),
    ]
    scale = parameter(random, lambda n: scales(random, n))
    zero_point = parameter(random, points[random.integers(3)])
    attributes = {
        "signed": signed,
        "narrow": int(random.integers(2)),
        "rounding_mode": str(random.choice(MODES)),
    }
    inputs = {"s": scale, "z": zero_point, "b": np.float32(bits)}
    reach = min(2.0 ** (bits - 1), 300)
    codes = np.arange(-reach - 2, 2 * reach + 2, 0.5, dtype=np.float64)
    return "Quant", attributes, inputs, (codes[:, None] - np.ravel(zero_point)) * np.ravel(scale)


def fake_quantize(random: np.random.Generator) -> tuple[str, dict, dict, np.ndarray]:
    levels = int(random.choice([2, 3, 15, 16, 17, 255, 256, 257, 1000]))
    low = parameter(random, lambda n: -random.uniform(0, 4, n).astype(np.float32))
    low = low if random.random() < 0.7 else np.zeros_like(low)
    width = random.uniform(0, 4, np.shape(low)).astype(np.float32)
    high = np.asarray(low + width, np.float32)
    if random.random() < 0.15:
        low, high = high, low
    out = (low, high)
    if random.random() < 0.3:
        out = (np.float32(random.uniform(-3, 0)), np.float32(random.uniform(0, 300)))
    inputs = {"il": low, "ih": high, "ol": np.asarray(out[0]), "oh": np.asarray(out[1])}
    steps = np.arange(-1, levels + 1, 0.5) / (levels - 1)
    thresholds = np.ravel(low) + steps[:, None] * np.ravel(np.subtract(high, low, dtype=np.float64))
    return "FakeQuantize", {"levels": levels}, inputs, thresholds


def float_quant(random: np.random.Generator) -> tuple[str, dict, dict, np.ndarray]:
    widths = FORMATS[random.integers(len(FORMATS))]
    scale = parameter(random, lambda n: np.abs(scales(random, n)).clip(1e-20, 1e20))
    names = zip("embh", widths, strict=True)
    inputs = {"s": scale} | {name: np.float32(number) for name, number in names}
    attributes = {"rounding_mode": str(random.choice(["ROUND", "ROUND", "FLOOR", "CEIL"]))}
    exponents = np.exp2(np.arange(-18, 18))
    grid = np.unique(np.outer(exponents, 1 + np.arange(32) / 32))
    both = np.concatenate([grid, -grid])
    return "FloatQuant", attributes, inputs, both[:, None] * np.ravel(scale).astype(np.float64)


def bipolar(random: np.random.Generator) -> tuple[str, dict, dict, np.ndarray]:
    scale = parameter(random, lambda n: scales(random, n))
    return "BipolarQuant", {}, {"s": scale}, np.zeros((1, 1))


def near(thresholds: np.ndarray) -> np.ndarray:
    """The thresholds as float32, two neighbours on either side, and special inputs; [1, C, N]."""
    values = thresholds.astype(np.float32).ravel()
    around = [values]
    for direction in (np.float32(np.inf), np.float32(-np.inf)):
        step = values
        for _ in range(2):
            step = np.nextafter(step, direction)
            around.append(step)
    special = np.float32([0.0, -0.0, np.inf, -np.inf, 3e38, -3e38, 1e-45, -1e-45, 1.17549435e-38])
    x = np.concatenate([special, *around])
    return np.broadcast_to(x, (1, CHANNELS, x.size)).copy()


def build(seed: int) -> tuple[Model, np.ndarray]:
    random = np.random.default_rng(seed)
    kinds = [quant, quant, quant, fake_quantize, fake_quantize, float_quant, bipolar]
    with np.errstate(all="ignore"):
        name, attributes, inputs, thresholds = kinds[random.integers(len(kinds))](random)
        x = near(thresholds)
    domain = "org.openvinotoolkit" if name == "FakeQuantize" else DOMAIN
    data = ir.val("x", dtype=ir.DataType.FLOAT, shape=(1, CHANNELS, x.shape[-1]))
    constants = [
        ir.val(key, const_value=ir.tensor(np.asarray(value, np.float32), name=key))
        for key, value in inputs.items()
    ]
    node = ir.node(name, [data, *constants], attributes, domain=domain)
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = "y", data.type, data.shape
    graph = ir.Graph(
        [data],
        node.outputs,
        nodes=[node],
        initializers=constants,
        opset_imports={"": 13, domain: 1},
        name="g",
    )
    return load(ir.Model(graph, ir_version=8)), x


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("to", ["qdq", "onnx"])
@pytest.mark.parametrize(
    "seeds", [range(start, start + 25) for start in range(0, 250, 25)], ids=str
)
def test_converted_quantizers_compute_the_same(seeds, to):
    for seed in seeds:
        original, x = build(seed)
        converted = original.clone()
        (entry,) = converted.apply(ConvertDialect(to=to))
        assert entry.outcome is SiteStatus.CHANGED, (seed, entry)
        assert entry.verdict.exactness >= Exactness.VALUES, (seed, entry)
        expected = original.run({"x": x}, backend="numpy")["y"]
        found = converted.run({"x": x}, backend="numpy")["y"]
        wrong = ~((expected == found) | (np.isnan(expected) & np.isnan(found)))
        assert not wrong.any(), (seed, entry, x[wrong][:3], expected[wrong][:3], found[wrong][:3])


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize(
    "seeds", [range(start, start + 10) for start in range(0, 200, 10)], ids=str
)
def test_the_number_of_differing_inputs_is_never_too_small(seeds):
    """Plain pairs, accepted down to ``near``: what differs at thresholds is within the count."""
    for seed in seeds:
        original, x = build(seed)
        converted = original.clone()
        (entry,) = converted.apply(ConvertDialect(to="qdq", exact=Exactness.NEAR))
        if entry.outcome is not SiteStatus.CHANGED:
            continue
        finite = np.unique(x[np.isfinite(x)])
        data = np.broadcast_to(finite, (1, CHANNELS, finite.size)).copy()
        wide = [model.clone() for model in (original, converted)]
        for model in wide:
            model.ir.graph.inputs[0].shape = ir.Shape([1, CHANNELS, finite.size])
        expected, found = (model.run({"x": data}, backend="numpy")["y"] for model in wide)
        wrong = ~((expected == found) | (np.isnan(expected) & np.isnan(found)))
        channels = wrong.any(axis=(0, 2)).sum() if entry.verdict.differing_inputs else wrong.sum()
        if not entry.verdict.differing_inputs:
            assert not channels, (seed, entry)
        per_channel = wrong.sum() // (1 if _has_channels(original) else CHANNELS)
        assert per_channel <= entry.verdict.differing_inputs, (seed, entry)


def _has_channels(model: Model) -> bool:
    return any(value.const_value.size > 1 for value in model.ir.graph.initializers.values())
