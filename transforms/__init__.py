"""Passes, and the functions that run them on files.

Each pass is a frozen dataclass whose fields are its options; :func:`parse_spec` makes one from text
such as ``convert{to=qdq}``, and :func:`rewrite` applies passes to a model file. Names are imported
at first use.
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qgraph.transforms.base import TRANSFORMS, Transform, describe, parse_spec
    from qgraph.transforms.canonical_operators import CanonicalOperators
    from qgraph.transforms.convert import ConvertDialect, FoldWeights
    from qgraph.transforms.drop_rounding import DropRounding
    from qgraph.transforms.float_products import FloatProducts
    from qgraph.transforms.float_sums import FloatSums
    from qgraph.transforms.fold_batch_norm import FoldBatchNorm
    from qgraph.transforms.fold_constants import FoldConstants
    from qgraph.transforms.fuse_output_scale import FuseOutputScale
    from qgraph.transforms.integer_operators import LowerIntegerOperators, RaiseIntegerOperators
    from qgraph.transforms.lower_mat_mul_n_bits import LowerMatMulNBits
    from qgraph.transforms.lower_pointwise import LowerPointwise
    from qgraph.transforms.lower_vendor_operators import LowerVendorOperators
    from qgraph.transforms.make_portable import MakePortable, StripFunctions
    from qgraph.transforms.merge_activation import MergeActivation
    from qgraph.transforms.microsoft import LowerMicrosoft, RaiseMicrosoft
    from qgraph.transforms.move_channel_scales import MoveChannelScales
    from qgraph.transforms.move_quantizers import MoveQuantizers
    from qgraph.transforms.plain_pairs import PlainPairs
    from qgraph.transforms.quantize_bias import QuantizeBias
    from qgraph.transforms.quantize_weights import QuantizeWeights
    from qgraph.transforms.raise_mat_mul_n_bits import RaiseMatMulNBits
    from qgraph.transforms.repack import Repack
    from qgraph.transforms.rewriting import Writing, rewrite
    from qgraph.transforms.separate_weights import SeparateWeights
    from qgraph.transforms.shift_zero_points import ShiftZeroPoints
    from qgraph.transforms.split_fake_quantize import SplitFakeQuantize
    from qgraph.transforms.split_gemm import SplitGemm
    from qgraph.transforms.split_leaky_relu import SplitLeakyRelu
    from qgraph.transforms.split_zero_points import SplitZeroPoints
    from qgraph.transforms.symmetric_weights import SymmetricWeights
    from qgraph.transforms.tune_ranges import TuneRanges
    from qgraph.transforms.widen_codes import WidenCodes
    from qgraph.transforms.widen_floats import WidenFloats

__all__ = [
    "TRANSFORMS",
    "CanonicalOperators",
    "ConvertDialect",
    "DropRounding",
    "FloatProducts",
    "FloatSums",
    "FoldBatchNorm",
    "FoldConstants",
    "FoldWeights",
    "FuseOutputScale",
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
    "WidenCodes",
    "WidenFloats",
    "Writing",
    "describe",
    "parse_spec",
    "rewrite",
]

_ELSEWHERE = {
    "ConvertDialect": "convert",
    "FoldWeights": "convert",
    "LowerIntegerOperators": "integer_operators",
    "LowerMicrosoft": "microsoft",
    "RaiseIntegerOperators": "integer_operators",
    "RaiseMicrosoft": "microsoft",
    "StripFunctions": "make_portable",
    "TRANSFORMS": "base",
    "Transform": "base",
    "Writing": "rewriting",
    "describe": "base",
    "parse_spec": "base",
    "rewrite": "rewriting",
}
"""Modules of names that differ from those of their modules."""

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

_HOMES = {name: _ELSEWHERE.get(name) or _WORD.sub("_", name).lower() for name in __all__}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'qgraph.transforms' has no attribute {name!r}")
    return getattr(importlib.import_module(f"qgraph.transforms.{_HOMES[name]}"), name)
