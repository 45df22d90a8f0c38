"""Standard operators without a kernel of ours, computed by onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from qgraph.errors import UnsupportedError, where
from qgraph.graph.schema import MICROSOFT
from qgraph.ops.kernels.standard import Kernel

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

_FLATTENING = frozenset({"Softmax", "LogSoftmax", "Hardmax"})


def reference_kernel(node: ir.Node, opset_imports: Mapping[str, int]) -> Kernel:
    """Return a kernel that runs ``node`` in onnx's reference implementation for its version.

    Args:
        node: a node of a domain that onnx defines, attribute references resolved.
        opset_imports: domains and versions that apply to the node.

    Raises:
        UnsupportedError: onnx does not know the operator.
    """
    version = opset_imports.get(node.domain)
    if node.domain == MICROSOFT:
        raise UnsupportedError(
            f"{where(node)}: {node.op_type} is an operator of ONNX Runtime's own "
            f"({MICROSOFT}), and there is no kernel for it here. Expected a standard operator, or "
            "one of its own that is known here. Run the model in ONNX Runtime, with --backend ort "
            "(in Python backend='ort'), or write it in standard operators."
        )
    if version is None or not onnx.defs.has(node.op_type, version, node.domain):
        operator = f"{node.domain or 'ai.onnx'}::{node.op_type}"
        declared = "is not imported" if version is None else f"is imported at version {version}"
        raise UnsupportedError(
            f"{where(node)}: no kernel for operator {operator}; its domain {declared}. "
            "Expected a standard operator of an imported opset, an operator of a quantizer dialect "
            "or a function of the model. Correct the opset imports, or inline or remove the node."
        )
    if node.domain == "" and node.op_type in _FLATTENING and version < 13:
        return _flattening(node, version)
    return _Evaluator(node, version)


class _Evaluator:
    """A model of one node, evaluated by onnx's reference implementation.

    It is built at the first call and for each new set of input types, which the operators that
    onnx expands into functions depend on.
    """

    def __init__(self, node: ir.Node, version: int) -> None:
        self._node = node
        self._version = version
        self._names = [value.name if value else "" for value in node.inputs]
        self._built: dict[tuple[Any, ...], ReferenceEvaluator] = {}

    def __call__(self, *arrays: Any) -> list[Any]:
        kinds = tuple(_kind(array) for array in arrays)
        if kinds not in self._built:
            self._built[kinds] = self._build(kinds)
        feeds = {name: x for name, x in zip(self._names, arrays, strict=True) if name}
        return list(self._built[kinds].run(None, feeds))

    def _build(self, kinds: tuple[Any, ...]) -> ReferenceEvaluator:
        from onnx.reference import ReferenceEvaluator

        node = self._node
        graph = onnx.GraphProto(name="node", node=[ir.to_proto(node)])
        for name, kind in dict(zip(self._names, kinds, strict=True)).items():
            if name:
                entry = graph.input.add(name=name)
                if kind is not None:
                    entry.type.tensor_type.elem_type = ir.DataType.from_numpy(kind[0]).value
                    for _ in range(kind[1]):
                        entry.type.tensor_type.shape.dim.add()
        graph.output.extend(onnx.ValueInfoProto(name=y.name) for y in node.outputs if y.name)
        imports = [onnx.OperatorSetIdProto(domain=node.domain, version=self._version)]
        try:
            return ReferenceEvaluator(
                onnx.ModelProto(ir_version=10, graph=graph, opset_import=imports)
            )
        except (NotImplementedError, RuntimeError) as error:
            raise UnsupportedError(
                f"{where(node)}: neither qgraph nor onnx's reference has an implementation of "
                f"{node.op_type} at opset {self._version}. Run the model with backend 'ort'."
            ) from error


def _kind(array: Any) -> tuple[np.dtype[Any], int] | None:
    return (array.dtype, array.ndim) if isinstance(array, np.ndarray) else None


def _flattening(node: ir.Node, version: int) -> Kernel:
    # Below opset 13 these operators see a matrix, split before ``axis``, which is 1 by default;
    # the reference knows only the later meaning.
    axis = node.attributes.get_int("axis", 1)
    row_wise = ir.Node(
        "", node.op_type, [ir.val("x")], [ir.AttrInt64("axis", -1)], outputs=[ir.val("y")]
    )
    evaluator = _Evaluator(row_wise, version)

    def run(x: Any) -> list[Any]:
        split = axis if axis >= 0 else axis + x.ndim
        matrix = x.reshape(int(np.prod(x.shape[:split], dtype=np.int64)), -1)
        return [evaluator(matrix)[0].reshape(x.shape)]

    return run
