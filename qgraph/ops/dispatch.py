"""Computing one node: the kernel of its operator, applied to arrays.

Quantizers and some standard operators have kernels here; onnx's reference implementation computes
all other operators.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from qgraph.errors import ExecutionError, QGraphError, UnsupportedError, forms, where
from qgraph.graph.constants import array_of
from qgraph.graph.schema import MICROSOFT
from qgraph.numerics import Array
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.composite import composite_kernel, composite_of
from qgraph.ops.operator import Operator, operator_of

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

    from qgraph.ops.kernels.kernel import Kernel


Imports = Mapping[str, int]
"""Versions of operator sets, by domain."""

Environment = dict[ir.Value, Any]
"""Arrays by the values that hold them. The plan of a subgraph adds to that of the graph around it:
values are keys by identity, so equal names do no harm."""

logger = logging.getLogger(__name__)

_OPSET_OF_DEFINITIONS = 23
"""An opset above that of all operators in definitions of composite operators."""


def kernel_for(node: ir.Node, imports: Imports) -> Kernel:
    """Return the kernel of a node that neither calls a function nor runs subgraphs.

    Raises:
        UnsupportedError: there is none.
    """
    operator = operator_of(node)
    if operator is not None:
        return _quantizer(node, operator)
    from qgraph.ops.integer.kernels import integer_kernel
    from qgraph.ops.kernels.mat_mul_n_bits import is_mat_mul_n_bits, mat_mul_n_bits
    from qgraph.ops.kernels.standard import kernel_of

    if is_mat_mul_n_bits(node):
        return mat_mul_n_bits(node)
    composite = composite_of(node)
    if composite is not None:
        return composite_kernel(node, composite, _step)
    version = imports.get(node.domain)
    fast = integer_kernel(node) or (None if version is None else kernel_of(node, version))
    return fast or reference_kernel(node, imports)


def _step(node: ir.Node) -> Callable[[Environment], None]:
    """Return a function that computes a node of a definition."""
    return NodeStep(node, kernel_for(node, {"": _OPSET_OF_DEFINITIONS})).run


def _quantizer(node: ir.Node, operator: Operator) -> Kernel:
    """Return the kernel of a quantizer; it warns once if a scale is zero, infinite or NaN."""
    scales = [index for index, name in enumerate(operator.schema.inputs) if "scale" in name]
    warned = False

    def run(*arrays: Any) -> list[Any]:
        nonlocal warned
        if not warned and any(_is_odd(arrays[i]) for i in scales if i < len(arrays)):
            warned = True
            logger.warning(
                "%s: a scale is zero, infinite or NaN; computed by IEEE arithmetic", where(node)
            )
        return [operator.run(node, arrays)]

    return run


def _is_odd(scale: Array | None) -> bool:
    if scale is None:
        return False
    numbers = scale.astype(np.float32, copy=False)
    return not bool(np.all(np.isfinite(numbers) & (numbers != 0)))


class NodeStep:
    """One node and the kernel that computes it; its operands, and its outputs that have names."""

    def __init__(self, node: ir.Node, kernel: Kernel) -> None:
        self.node = node
        self.reads = [value for value in node.inputs if value is not None]
        self.outputs = [value for value in node.outputs if value.name != ""]
        self._kernel = kernel

    def run(self, environment: Environment, keep: frozenset[ir.Value] = frozenset()) -> None:
        """Add the outputs to ``known``, contiguous: sums depend on the layout of their operands."""
        arrays = [None if value is None else environment[value] for value in self.node.inputs]
        try:
            results = [_contiguous(result) for result in self._compute(environment, arrays)]
            environment.update(zip(self.outputs, results, strict=True))
        except QGraphError:
            raise
        except Exception as error:
            raise ExecutionError(
                f"{where(self.node)} failed on inputs {forms(arrays)}: {error}. Expected types and "
                "shapes that the operator accepts: check what is fed and the nodes before this one."
            ) from error

    def _compute(self, environment: Environment, arrays: Sequence[Any]) -> Sequence[Any]:
        return self._kernel(*arrays)


def _contiguous(result: Any) -> Any:
    return np.asarray(result, order="C") if isinstance(result, np.ndarray | np.generic) else result


def compute(node: ir.Node, imports: Imports, environment: Environment) -> Any:
    """Return the first output of ``node``, and add all of them to ``environment``.

    The node neither calls a function nor runs subgraphs. Infinities and NaN are ordinary results,
    so NumPy does not warn of them.

    Raises:
        UnsupportedError: there is no kernel.
        OperatorError: the node violates its operator's definition.
        ExecutionError: the kernel fails.
    """
    step = NodeStep(node, kernel_for(node, imports))
    with np.errstate(all="ignore"):
        step.run(environment)
    return environment[node.outputs[0]]


def computed(node: ir.Node, imports: Imports, operands: Iterable[Any]) -> Any:
    """Return the first output of ``node`` for its operands; None if :func:`compute` raises."""
    known = zip(node.inputs, operands, strict=True)
    try:
        return compute(node, imports, {value: x for value, x in known if value is not None})
    except QGraphError:
        return None


def evaluate(nodes: Sequence[ir.Node], x: ir.Value, y: ir.Value, data: Array) -> Array:
    """Return ``y`` for ``x`` equal to ``data``, with kernels of quantizers and primitives only.

    Raises:
        UnsupportedError: a node is neither a quantizer nor a primitive, or has an operand that is
            not constant.
        OperatorError: a node violates its operator's definition.
    """
    environment: dict[ir.Value, Array] = {x: data}

    def array(node: ir.Node, value: ir.Value | None) -> Array | None:
        if value is None or value in environment:
            return None if value is None else environment[value]
        stored = array_of(value)
        maker = value.producer()
        operator = None if maker is None else operator_of(maker)
        if stored is None and maker is not None and operator is not None:
            # A scale that is stored as codes itself.
            stored = operator.run(maker, [array(maker, each) for each in maker.inputs])
        if stored is None:
            raise UnsupportedError(f"{where(node)}: operand {value.name!r} is not constant.")
        return stored

    for index, node in enumerate(nodes):
        operands = [array(node, value) for value in node.inputs]
        needed = {y, *(value for later in nodes[index + 1 :] for value in later.inputs)}
        for value in environment.keys() - needed:
            del environment[value]
        operator = operator_of(node)
        if operator is not None:
            environment[node.outputs[0]] = operator.run(node, operands)
        elif node.domain == "" and node.op_type in NUMPY:
            attributes = {name: attribute.value for name, attribute in node.attributes.items()}
            with np.errstate(all="ignore"):
                environment[node.outputs[0]] = np.asarray(
                    NUMPY[node.op_type](*operands, **attributes)
                )
        elif node.domain == "" and node.op_type == "Reshape":
            data, sizes = (np.asarray(operand) for operand in operands)
            environment[node.outputs[0]] = data.reshape(sizes.tolist())
        else:
            raise UnsupportedError(f"{where(node)}: there is no kernel for it.")
    return environment[y]


_FLATTENING = frozenset({"Softmax", "LogSoftmax", "Hardmax"})


def reference_kernel(node: ir.Node, opset_imports: Mapping[str, int]) -> Kernel:
    """Return a kernel that runs ``node`` in onnx's reference implementation for its version.

    Attribute references are resolved.

    Raises:
        UnsupportedError: onnx does not define the operator.
    """
    version = opset_imports.get(node.domain)
    if node.domain == MICROSOFT:
        raise UnsupportedError(
            f"{where(node)}: {node.op_type} is an operator of ONNX Runtime's own "
            f"({MICROSOFT}), and there is no kernel for it here. Expected a standard operator, or "
            "one that qgraph or the installed ONNX Runtime has. Install a version of ONNX Runtime "
            "that has it, or write it in standard operators."
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
    if has_removed_mode(node):
        raise UnsupportedError(
            f"{where(node)}: opset 13 removed the mode tf_half_pixel_for_nn, expected half_pixel. "
            "Export it with another mode, or install ONNX Runtime, which computes it."
        )
    return _evaluator(node, version)


def has_removed_mode(node: ir.Node) -> bool:
    """Return whether a Resize has a mode of old opsets, which only ONNX Runtime computes."""
    mode = node.attributes.get_string("coordinate_transformation_mode", "")
    return node.op_type == "Resize" and not node.domain and mode == "tf_half_pixel_for_nn"


def _evaluator(node: ir.Node, version: int) -> Kernel:
    """Return a kernel that runs a model of one node in onnx's reference implementation.

    The model is built for each set of input types, because functions of onnx depend on the types;
    nodes that differ in names only share it.
    """
    names = [f"x{i}" if value and value.name else "" for i, value in enumerate(node.inputs)]
    built: dict[tuple[Any, ...], ReferenceEvaluator] = {}

    def run(*arrays: Any) -> list[Any]:
        kinds = tuple(_kind(array) for array in arrays)
        if kinds not in built:
            try:
                built[kinds] = _built(_form(node, names), version, kinds)
            except (NotImplementedError, RuntimeError) as error:
                raise UnsupportedError(
                    f"{where(node)}: neither qgraph nor onnx's reference has an implementation of "
                    f"{node.op_type} at opset {version}. Run the model with backend 'ort'."
                ) from error
        feeds = {name: x for name, x in zip(names, arrays, strict=True) if name}
        return list(built[kinds].run(None, feeds))

    return run


def _form(node: ir.Node, names: Sequence[str]) -> bytes:
    """Return a node with other names, as bytes."""
    proto = ir.serde.serialize_node(node)
    for field in ("input", "output", "name", "doc_string", "metadata_props"):
        proto.ClearField(field)
    proto.input.extend(names)
    proto.output.extend(f"y{i}" if y.name else "" for i, y in enumerate(node.outputs))
    form: bytes = proto.SerializeToString(deterministic=True)
    return form


@functools.lru_cache(512)
def _built(form: bytes, version: int, kinds: tuple[Any, ...]) -> ReferenceEvaluator:
    from onnx.reference import ReferenceEvaluator

    node = onnx.NodeProto.FromString(form)
    graph = onnx.GraphProto(name="node", node=[node])
    for name, array_type in zip(node.input, kinds, strict=True):
        if name:
            entry = graph.input.add(name=name)
            if array_type is not None:
                entry.type.tensor_type.elem_type = ir.DataType.from_numpy(array_type[0]).value
                for _ in range(array_type[1]):
                    entry.type.tensor_type.shape.dim.add()
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
    imports = [onnx.OperatorSetIdProto(domain=node.domain, version=version)]
    return ReferenceEvaluator(onnx.ModelProto(ir_version=10, graph=graph, opset_import=imports))


def _kind(array: Any) -> tuple[np.dtype[Any], int] | None:
    return (array.dtype, array.ndim) if isinstance(array, np.ndarray) else None


def _flattening(node: ir.Node, version: int) -> Kernel:
    # Below opset 13 these operators see a matrix, split before ``axis``, which is 1 by default;
    # the reference knows only the later meaning.
    axis = node.attributes.get_int("axis", 1)
    row_wise = ir.Node(
        "", node.op_type, [ir.val("x")], [ir.AttrInt64("axis", -1)], outputs=[ir.val("y")]
    )
    evaluator = _evaluator(row_wise, version)

    def run(x: Any) -> list[Any]:
        split = axis if axis >= 0 else axis + x.ndim
        matrix = x.reshape(int(np.prod(x.shape[:split], dtype=np.int64)), -1)
        return [evaluator(matrix)[0].reshape(x.shape)]

    return run


_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
"""Operators that sum products of two operands and add a third operand."""

SUMMING = _PRODUCTS | {"ReduceSum"}
"""Operators that :func:`is_any_order_exact` covers."""

_SUMMED_TYPES = (np.dtype(np.float32), np.dtype(np.float64))


def is_any_order_exact(node: ir.Node, kernel: Kernel, operands: Sequence[Array | None]) -> bool:
    """Return whether a node of ``SUMMING`` has the same result for every order of additions.

    A sum of floating-point numbers depends on the order of its additions, which a processor
    chooses, unless no addition rounds. All terms are multiples of a unit. If their magnitudes add
    up to less than 2**p units, p being the bits of a significand, no addition rounds:

        1.5 + 0.25 - 3      unit 0.25, magnitudes add up to 4.75 = 19 units, 19 < 2**24: exact
        1.5 + 2**-30        unit 2**-30, 1.5 is more than 2**24 units: depends
    """
    if any(node.attributes.get_float(name, 1.0) != 1.0 for name in ("alpha", "beta")):
        return False
    terms = operands[: 3 if node.op_type in _PRODUCTS else 1]
    present = [array for array in terms if array is not None]
    if any(a.dtype not in _SUMMED_TYPES or not np.isfinite(a).all() for a in present):
        return False
    units = [_unit_exponent(array) for array in present]
    unit = sum(units[:2]) if node.op_type in _PRODUCTS else units[0]
    unit = min([unit, *units[2:]])
    magnitudes = [None if array is None else np.abs(array) for array in terms]
    # Additions that round cannot bring a sum of magnitudes below the limit.
    with np.errstate(all="ignore"):
        total = np.asarray(kernel(*magnitudes, *operands[len(terms) :])[0])
    info = np.finfo(total.dtype)
    is_representable = unit >= int(info.minexp) - int(info.nmant)
    limit = float(np.ldexp(1.0, min(unit + int(info.nmant) + 1, 1023)))
    return is_representable and bool((total < limit).all())


def _unit_exponent(array: Array) -> int:
    """Return an exponent such that all elements are multiples of this power of two."""
    numbers = array[array != 0].astype(np.float64)
    if not numbers.size:
        return 0
    mantissa, exponent = np.frexp(numbers)
    whole = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    trailing = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    return int((exponent - 53 + trailing).min())
