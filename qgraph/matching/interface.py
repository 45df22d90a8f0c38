"""Which inputs and outputs of two models belong together."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from qgraph.errors import ModelError


def paired_names(
    kind: str, reference: Sequence[ir.Value], candidate: Sequence[ir.Value], notes: list[str]
) -> dict[str, str]:
    """Pair names by name; by position where the sets of names differ, which is noted.

    Args:
        kind: "input" or "output", for messages.
        reference: the values of one model.
        candidate: those of the other one.
        notes: takes the remark.

    Raises:
        ModelError: their numbers differ.
    """
    ours, theirs = ([str(value.name) for value in side] for side in (reference, candidate))
    if set(ours) == set(theirs):
        return dict(zip(ours, ours, strict=True))
    if len(ours) != len(theirs):
        raise ModelError(
            f"The reference has the {kind}s {', '.join(ours) or 'none'}, the candidate "
            f"{', '.join(theirs) or 'none'}; "
            "expected as many. Compare models of one interface."
        )
    pairs = dict(zip(ours, theirs, strict=True))
    told = ", ".join(f"{a!r} with {b!r}" for a, b in pairs.items() if a != b)
    notes.append(f"{kind}s are matched by position: {told}")
    return pairs


def conflict(reference: ir.Value, candidate: ir.Value) -> str | None:
    """Return why no array can be fed to both of two inputs; None if one can."""
    types = reference.type, candidate.type
    if None not in types and type(types[0]) is not type(types[1]):
        return _told(reference, *(str(kind) for kind in types))
    kinds = reference.dtype, candidate.dtype
    if None not in kinds and kinds[0] != kinds[1]:
        return _told(reference, *(kind.name for kind in kinds if kind is not None))
    if reference.shape is None or candidate.shape is None:
        return None
    sizes = [
        [size if isinstance(size, int) else None for size in shape.dims]
        for shape in (reference.shape, candidate.shape)
    ]
    fits = len(sizes[0]) == len(sizes[1]) and all(
        None in (a, b) or a == b for a, b in zip(*sizes, strict=True)
    )
    return None if fits else _told(reference, *map(str, (reference.shape, candidate.shape)))


def _told(value: ir.Value, one: str, other: str) -> str:
    return f"input {value.name!r} is {one} in one model and {other} in the other"
