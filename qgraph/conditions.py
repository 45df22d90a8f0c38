"""What proofs take for granted, in the words of certificates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

BIAS_LAST = "the bias is added last, with one rounding"
"""The condition of a proof that is printed with its verdict."""

AS_WRITTEN = (
    "every operator computes as written: one IEEE 754 operation at a time in the type of its "
    "operands, rounded to nearest even, subnormals kept; a runtime may do otherwise"
)
NOT_FED = "initializers that are also graph inputs keep the values of the file ({})"
NO_NAN = "no NaN reaches regions that treat NaN differently in the two models ({})"
ZERO_SIGNS = (
    "-0 counts as equal to +0: regions may change the sign of a zero ({}), and no operator after "
    "them distinguishes -0 from +0"
)
WHOLE_SUMS = (
    "sums of products of codes that stay below 2**24 are computed without rounding, in any order "
    "of additions"
)
OPEN_BOUNDS = (
    "no infinity reaches a Clip without an upper or a lower bound; ONNX does not define whether it "
    "stays infinite or becomes the largest finite number"
)
AFTER_DIFFERENCE = "after a difference, values were assumed equal to find later differences"
EQUAL_OPERATORS = "equal operators on equal operands have equal results"
SUMMED_ALIKE = (
    "MatMulNBits and Gemm add their products in the order of MatMul, which ONNX does not define, "
    "and add the bias to the finished sum"
)
DATA_NOT_ROUNDED = (
    "MatMulNBits multiplies its data as they are; accuracy_level 4 allows a runtime to round them "
    "to 8 bits first"
)
ROUNDED_ONCE = (
    "constants computed by {} are the exact results, rounded once; ONNX does not define their last "
    "bits"
)
OPEN_SIZES = "symbolic dimensions of the inputs ({}) and their products are below 2**40"
LIMITED_SIZE = (
    "symbolic dimension {} is at most {}: with larger ones the operands of an operator of the "
    "reference do not broadcast"
)
ONE_SIZE = "dimensions of the same name are equal: {} is the size of {}"
NO_NAN_AT_MAXIMA = "no NaN reaches maxima that were exchanged with functions ({})"
ZEROS_REWRITTEN = (
    "-0 counts as equal to +0: the normal form may change the sign of a zero, and no operator "
    "after the rewritten ones distinguishes -0 from +0"
)
SUMS_OF_CODES = (
    "sums of codes that stay below 2**24 are computed without rounding, in any order of additions"
)

FUNCTION_ERROR = 2.0**-20
"""Largest error of an approximated function, absolute and relative."""
CURVES_WITHIN = (
    f"Sigmoid, Tanh, Erf, Exp and their like are computed within {FUNCTION_ERROR:.1g} of the "
    "function, absolute and relative"
)
VARIANCE_OF_DIFFERENCES = (
    "normalizations compute the variance as the mean of the squared differences from the mean"
)
LARGEST_FIRST = "Softmax and its like subtract the largest element first"
GIVEN_CODES = (
    "bounds hold for each segment by itself: given equal codes at its start, the codes at its end "
    "differ by no more than stated; they do not say how differences grow from segment to segment"
)
ANY_ORDER = (
    "sums are added in any order, with or without fused operations, but one term at a time: "
    "no Winograd, FFT or Strassen convolutions, no TF32, no 8-bit products that saturate"
)
IN_CHUNKS = "sums are added in chunks of at most {} terms in sequence, and the chunks in sequence"
ACCUMULATED = "sums of 16-bit types are added in float32"
NO_SPECIALS = "no NaN and no infinity enters a segment, and inputs lie in the ranges given"


def of_bounds(chunk: int | None, accumulate: str, others: Iterable[str] = ()) -> list[str]:
    """Return what all bounds take for granted, and what some operators add to it.

    Args:
        chunk: number of terms that are added in sequence; None for any order.
        accumulate: type in which sums of 16-bit types are added: own or float32.
        others: conditions of operators.
    """
    order = ANY_ORDER if chunk is None else IN_CHUNKS.format(chunk)
    conditions = [GIVEN_CODES, order, *sorted(others), NO_SPECIALS]
    return conditions + ([ACCUMULATED] if accumulate != "own" else [])


def of_segments(conditions: Iterable[str]) -> list[str]:
    """Return the conditions of a proof without those that count its regions.

    Segments take the place of the regions. They hold numbers, so zeros of both signs are equal.
    """
    counted = _pattern(NO_NAN), _pattern(ZERO_SIGNS)
    return [c for c in conditions if not any(each.fullmatch(c) for each in counted)]


def _pattern(template: str) -> re.Pattern[str]:
    """Return what matches a condition with its counts and names."""
    return re.compile(re.escape(template).replace(r"\{\}", "(.+)"))


_ZEROS = "zeros count as equal whatever their sign; "
_SCHEMA_1: Mapping[str, str] = {
    "{} initializers that could be fed as inputs too are not fed": NOT_FED,
    "no NaN reaches the {} regions that do not keep it": NO_NAN,
    _ZEROS + "{} regions do not keep it, and nothing after them sees it": ZERO_SIGNS,
    "sums of products of codes that stay below 2**24 are computed without rounding, in whatever "
    "order they are added": WHOLE_SUMS,
    "no infinity reaches a Clip that lacks a bound; ONNX leaves open whether it stays infinite or "
    "becomes the largest finite number": OPEN_BOUNDS,
    "after a difference the values were taken for equal": AFTER_DIFFERENCE,
    "MatMulNBits and Gemm sum their products in the order of MatMul, which ONNX leaves open, and "
    "add the bias to the finished sum": SUMMED_ALIKE,
    "constants that {} compute are the exact results, rounded once; ONNX leaves their last bits "
    "open": ROUNDED_ONCE,
    "open sizes of the inputs ({}) and their products are below 2**40": OPEN_SIZES,
    "dimensions of one name are equal: {} is the size of {}": ONE_SIZE,
    _ZEROS + "the normal form does not keep it, and nothing after the operators that it rewrote "
    "distinguishes it": ZEROS_REWRITTEN,
    "sums of codes that stay below 2**24 are computed without rounding, in whatever order they are "
    "added": SUMS_OF_CODES,
}
"""The conditions as schema 1 words them, and as they are worded now."""


def reworded(condition: object) -> object:
    """Return a condition of schema 1 in the present words."""
    for old, new in _SCHEMA_1.items():
        match = _pattern(old).fullmatch(str(condition))
        if match is not None:
            return new.format(*match.groups())
    return condition
