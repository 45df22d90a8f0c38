"""Passes, and the functions that run them on files.

Each pass is a frozen dataclass whose fields are its options; :func:`parse_spec` makes one from text
such as ``convert{to=qdq}``, and :func:`rewrite` applies passes to a model file. Names are imported
at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qgraph.transforms.base import TRANSFORMS, Transform, describe, parse_spec
    from qgraph.transforms.canonical_operators import CanonicalOperators
    from qgraph.transforms.convert import ConvertDialect, FoldWeights
    from qgraph.transforms.fold_batch_norm import FoldBatchNorm
    from qgraph.transforms.fold_constants import FoldConstants
    from qgraph.transforms.fuse_output_scale import FuseOutputScale
    from qgraph.transforms.lowered_operators import (
        LowerIntegerOperators,
        LowerMicrosoft,
        LowerVendorOperators,
        RaiseIntegerOperators,
        RaiseMicrosoft,
    )
    from qgraph.transforms.make_portable import MakePortable, StripFunctions
    from qgraph.transforms.mat_mul_n_bits import LowerMatMulNBits, RaiseMatMulNBits
    from qgraph.transforms.merge_activation import MergeActivation
    from qgraph.transforms.move_channel_scales import MoveChannelScales
    from qgraph.transforms.move_quantizers import MoveQuantizers
    from qgraph.transforms.plain_forms import LowerPointwise, PlainPairs, SplitGemm
    from qgraph.transforms.quantize_bias import QuantizeBias
    from qgraph.transforms.quantize_weights import QuantizeWeights
    from qgraph.transforms.recoding import Repack, ShiftZeroPoints, SymmetricWeights, WidenCodes
    from qgraph.transforms.rewriting import Writing, rewrite
    from qgraph.transforms.runtime_faults import (
        FloatProducts,
        FloatSoftmax,
        FloatSums,
        SeparatePairs,
        SeparateWeights,
    )
    from qgraph.transforms.simpler_ranges import DropRounding, KeepRoundings, SplitFakeQuantize
    from qgraph.transforms.split_layers import SplitLeakyRelu, SplitZeroPoints
    from qgraph.transforms.tune_ranges import TuneRanges
    from qgraph.transforms.unit_scales import SeparateLimits, UnitScales
    from qgraph.transforms.whole_zero_points import WholeZeroPoints
    from qgraph.transforms.widen_floats import WidenFloats
    from qgraph.transforms.write_convolutions import WriteConvolutions

__all__ = [
    "TRANSFORMS",
    "CanonicalOperators",
    "ConvertDialect",
    "DropRounding",
    "FloatProducts",
    "FloatSoftmax",
    "FloatSums",
    "FoldBatchNorm",
    "FoldConstants",
    "FoldWeights",
    "FuseOutputScale",
    "KeepRoundings",
    "LowerIntegerOperators",
    "LowerMatMulNBits",
    "LowerMicrosoft",
    "LowerPointwise",
    "LowerVendorOperators",
    "MakePortable",
    "MergeActivation",
    "MoveChannelScales",
    "MoveQuantizers",
    "PlainPairs",
    "QuantizeBias",
    "QuantizeWeights",
    "RaiseIntegerOperators",
    "RaiseMatMulNBits",
    "RaiseMicrosoft",
    "Repack",
    "SeparateLimits",
    "SeparatePairs",
    "SeparateWeights",
    "ShiftZeroPoints",
    "SplitFakeQuantize",
    "SplitGemm",
    "SplitLeakyRelu",
    "SplitZeroPoints",
    "StripFunctions",
    "SymmetricWeights",
    "Transform",
    "TuneRanges",
    "UnitScales",
    "WholeZeroPoints",
    "WidenCodes",
    "WidenFloats",
    "WriteConvolutions",
    "Writing",
    "describe",
    "parse_spec",
    "rewrite",
]

_SHARED = {
    "base": ("TRANSFORMS", "Transform", "describe", "parse_spec"),
    "convert": ("ConvertDialect", "FoldWeights"),
    "lowered_operators": (
        *("LowerIntegerOperators", "LowerMicrosoft", "LowerVendorOperators"),
        *("RaiseIntegerOperators", "RaiseMicrosoft"),
    ),
    "mat_mul_n_bits": ("LowerMatMulNBits", "RaiseMatMulNBits"),
    "make_portable": ("StripFunctions",),
    "plain_forms": ("LowerPointwise", "PlainPairs", "SplitGemm"),
    "recoding": ("Repack", "ShiftZeroPoints", "SymmetricWeights", "WidenCodes"),
    "rewriting": ("Writing", "rewrite"),
    "runtime_faults": (
        "FloatProducts",
        "FloatSoftmax",
        "FloatSums",
        "SeparatePairs",
        "SeparateWeights",
    ),
    "simpler_ranges": ("DropRounding", "KeepRoundings", "SplitFakeQuantize"),
    "split_layers": ("SplitLeakyRelu", "SplitZeroPoints"),
    "unit_scales": ("SeparateLimits", "UnitScales"),
}
"""Names in modules with other names."""

_ELSEWHERE = {name: module for module, names in _SHARED.items() for name in names}


def _file(name: str) -> str:
    """Return ``fold_constants`` for ``FoldConstants``."""
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name).lstrip("_")


_HOMES = {name: _ELSEWHERE.get(name) or _file(name) for name in __all__}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'qgraph.transforms' has no attribute {name!r}")
    return getattr(importlib.import_module(f"qgraph.transforms.{_HOMES[name]}"), name)
