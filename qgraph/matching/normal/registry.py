"""The rules of the normal form, in the order in which they are tried on a node."""

from __future__ import annotations

from qgraph.matching.normal import (
    activations,
    axes,
    bounds,
    code_products,
    constants,
    hoisting,
    joints,
    maxima,
    signs,
)
from qgraph.matching.normal.rewriter import Rule

RULES: tuple[tuple[str, Rule], ...] = (
    ("remove Identity", signs.hand_on),
    ("write movements in one way", hoisting.write_movements),
    ("join movements", hoisting.join_movements),
    ("write constants with few dimensions", constants.trim_constants),
    ("count axes from the front", axes.count_axis),
    ("write reductions with all axes", axes.write_reduction),
    ("write Softmax over rows", axes.write_rows),
    ("write GlobalMaxPool as ReduceMax", axes.write_global_maximum),
    ("write QLinearMul by its definition", code_products.write_code_product),
    ("write QLinearGlobalAveragePool by its definition", code_products.write_code_average),
    ("write activation functions by their definitions", activations.write_activation),
    ("write Greater as Less", activations.write_comparison),
    ("write Relu as Max", bounds.write_relu),
    ("write Clip as Min and Max", bounds.write_clip),
    ("join bounds", bounds.join_bounds),
    ("write Sub as Add", signs.write_difference),
    ("write factors in one way", signs.write_factor),
    ("join negations", signs.join_negations),
    ("write Sum as Add", signs.write_sum),
    ("pad after functions of single elements", joints.sink_pad),
    ("move elements before functions of single elements", hoisting.hoist),
    ("concatenate before functions of single elements", joints.hoist_concat),
    ("take maxima before functions that never decrease", maxima.hoist_maximum),
    ("take the maximum of two data of one function", maxima.join_maximum),
)
"""Each rule by what it does, as notes of certificates name it."""
