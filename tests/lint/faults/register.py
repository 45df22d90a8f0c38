"""The register of faults by the id of the rule that has to find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

Plant = Callable[[ir.Model, ir.Node], str | None]
"""Changes a model at a node, in place.

Returns the name of the node that has the fault: empty for the model as a whole, and None if the
node cannot have it.
"""

Fits = Callable[[ir.Node], bool]


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        fits: which nodes can have it.
        plant: how they get it.
        target: the target that the rule is asked with.
        has_data: whether the model is run, on inputs of :func:`batch`.
        clean: changes that make sure that a node does not have the fault yet.
    """

    fits: Fits
    plant: Plant
    target: str | None = None
    has_data: bool = False
    clean: Plant | None = None


FAULTS: dict[str, Fault] = {}
"""By id of the rule."""

NO_FAULT: dict[str, str] = {"QG329": "it needs a known number of rows, which all shapes depend on"}
"""Reason why a fault cannot be planted, by id of the rule."""


def fault(
    rule: str,
    fits: Fits,
    target: str | None = None,
    *,
    has_data: bool = False,
    clean: Plant | None = None,
) -> Callable[[Plant], Plant]:
    """Return a decorator that registers the fault of a rule."""

    def register(plant: Plant) -> Plant:
        assert rule not in FAULTS
        FAULTS[rule] = Fault(fits, plant, target, has_data, clean)
        return plant

    return register


def places(model: ir.Model, rule: str, most: int) -> Iterator[int]:
    """Yield the positions of a few nodes that can have a fault, spread over the model."""
    entry = FAULTS[rule]
    if entry.has_data and batch(model) is None:
        return
    found = [i for i, node in enumerate(model.graph) if entry.fits(node)]
    step = max(1, len(found) // most)
    yield from found[::step][:most]


_OPEN = 64
_ELEMENTS = range(1 << 12, 1 << 16)


def batch(model: ir.Model) -> dict[str, np.ndarray] | None:
    """Return normally distributed inputs; None for a model of other, few or many inputs."""
    generator, made = np.random.default_rng(0), {}
    for value in model.graph.inputs:
        if value.dtype is not ir.DataType.FLOAT or value.shape is None:
            return None
        sizes = [size if isinstance(size, int) else _OPEN for size in value.shape]
        if np.prod(sizes) not in _ELEMENTS:
            return None
        made[str(value.name)] = generator.standard_normal(sizes).astype(np.float32)
    return made
