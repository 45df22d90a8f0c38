"""Prepare two models and pair their roundings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import onnx_ir as ir

from qgraph.bound import Bounding
from qgraph.graph.constants import freeze_inputs
from qgraph.graph.inference.walk import Interface as Shapes
from qgraph.graph.inference.walk import size_limits, with_facts
from qgraph.graph.interface import common_domain, interface
from qgraph.graph.scopes import remove_unused
from qgraph.ops.static_parameters import freeze_static_parameters
from qgraph.proof.bounds.evaluate import written_out
from qgraph.proof.bounds.limited_codes import with_limited_codes
from qgraph.proof.bounds.segments import Ends, Pairing
from qgraph.proof.matching.normalise import flat


def paired(
    models: tuple[ir.Model, ir.Model],
    request: Bounding,
    *,
    keep_inputs: bool = False,
    ends: Callable[[Pairing], Ends] | None = None,
) -> Pairing:
    """Return the segments of two models, without comparison to limits.

    Args:
        models: the reference and the candidate.
        request: the options of bounds.
        keep_inputs: whether initializers that are also graph inputs stay inputs.
        ends: see :class:`Pairing`.

    Raises:
        OptionError: a range or a limit names no input or output.
    """
    copies = [flat(model) for model in models]
    for copy in copies:
        if not keep_inputs:
            freeze_inputs(copy)
        freeze_static_parameters(copy)
        remove_unused(reversed(list(copy.graph)))
    domain = common_domain(*copies)
    copies = [with_facts(copy, each) for copy, each in zip(copies, domain.interfaces, strict=True)]
    if sum(written_out(copy) for copy in copies):
        faces = domain.interfaces
        copies = [with_facts(copy, each) for copy, each in zip(copies, faces, strict=True)]
    limits = _limits(copies[0], domain.interfaces[0])
    face = interface(copies[0].graph, copies[1].graph)
    Bounding.of(request, *([a for a, _ in pairs] for pairs in (face.inputs, face.outputs)))
    limited = with_limited_codes(copies)
    segments = partial(_pairing, request=request, ends=ends, limits=limits)
    pairing = segments(copies)
    if limited is None or not _unlike(pairing):
        return pairing
    return min(pairing, segments(limited), key=_unlike)


def _limits(reference: ir.Model, shapes: Shapes) -> dict[str, int]:
    """Return upper bounds of open sizes; the reference cannot run with larger sizes."""
    if all(isinstance(size, int) for shape in shapes.values() for size in shape):
        return {}
    return size_limits(reference, shapes)


def _pairing(
    models: Sequence[ir.Model],
    *,
    request: Bounding,
    ends: Callable[[Pairing], Ends] | None,
    limits: Mapping[str, int],
) -> Pairing:
    reference, candidate = models
    face = interface(reference.graph, candidate.graph)
    return Pairing(
        reference,
        candidate,
        list(face.inputs),
        list(face.outputs),
        request.ranges,
        accumulate=None if request.accumulate == "own" else "FLOAT",
        chunk=request.chunk,
        ends=ends,
        limits=limits,
    )


def _unlike(pairing: Pairing) -> int:
    """Return the number of segments without a bound, or whose codes have different limits."""
    return sum(s.reason is not None or bool(s.extra.any()) for s in pairing.segments)
