"""Facts about operator set and file format versions, and the declaration of domains."""

from __future__ import annotations

from types import MappingProxyType

import onnx
import onnx_ir as ir

QDQ_SINCE = MappingProxyType(
    {
        "INT8": 10,
        "UINT8": 10,
        "INT32": 10,
        "FLOAT8E4M3FN": 19,
        "FLOAT8E4M3FNUZ": 19,
        "FLOAT8E5M2": 19,
        "FLOAT8E5M2FNUZ": 19,
        "INT16": 21,
        "UINT16": 21,
        "INT4": 21,
        "UINT4": 21,
        "FLOAT4E2M1": 23,
        "INT2": 25,
        "UINT2": 25,
        "FLOAT6E2M3": 28,
        "FLOAT6E3M2": 28,
    }
)
def minimum_ir_version(model): return 10
def declare_domains(model): return []
