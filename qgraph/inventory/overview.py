"""Contents of a model file: its interface, its quantizers, and operators without a kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import onnx_ir as ir

from qgraph.errors import OperatorError, UnsupportedError
from qgraph.execution.executor import runs_alone
from qgraph.graph.constants import freeze_inputs, overridable
from qgraph.graph.opset.versions import ceiling
from qgraph.graph.scopes import all_nodes, is_control, nodes_of, owners
from qgraph.graph.sizes import stated_shape
from qgraph.inventory.info import QuantizerInfo, coded_info, packed_bytes, quantizer_info
from qgraph.ops.composite import composite_of
from qgraph.ops.dispatch import reference_kernel
from qgraph.ops.kernels.mat_mul_n_bits import is_mat_mul_n_bits
from qgraph.ops.operator import operator_of
from qgraph.quantizers.movement import prepared
from qgraph.quantizers.on_codes import coded_tensors
from qgraph.quantizers.sites import sites
from qgraph.records import guarded, replace
from qgraph.reports import operator_name
from qgraph.storage.files import weight_bytes
from qgraph.targets.engine import RuntimeVerdict, runtimes_of
from qgraph.targets.reader import profiles
from qgraph.text import Displayed, counted

__all__ = ["Overview", "QuantizerInfo", "ValueInfo", "overview"]


_ROUNDING = ("Ceil", "Floor", "Round")


@guarded(frozen=True)
class ValueInfo:
    """An input or an output: its ONNX type and its shape; None if unknown."""

    name: str
    dtype: str | None
    shape: list[int | str | None] | None


@guarded(frozen=True, repr=False)
class Overview(Displayed):
    """Result of :func:`overview`.

    Attributes:
        ir_version, opsets, producer: from the head of the file.
        inputs, outputs: inputs that must be fed, and outputs.
        overridable: number of initializers that are also inputs.
        nodes: number of nodes, including subgraphs and functions.
        operators: number of nodes of each operator.
        weight_bytes: bytes of all initializers and constants as stored.
        packed_bytes: bytes if every constant quantizer is stored as packed codes of its format, as
            ``fold-weights`` does.
        quantizers: in topological order; then those of operators on codes.
        instead: for a model without quantizers, a description and advice; otherwise None.
        unsupported: number of nodes of each operator that neither qgraph nor ONNX defines.
        runtimes: verdicts on runtimes, with reasons.
    """

    ir_version: int
    opsets: dict[str, int]
    producer: str
    inputs: list[ValueInfo]
    outputs: list[ValueInfo]
    overridable: int
    nodes: int
    operators: dict[str, int]
    weight_bytes: int
    packed_bytes: int
    quantizers: list[QuantizerInfo]
    instead: str | None
    unsupported: dict[str, int]
    runtimes: list[RuntimeVerdict]

    @property
    def summary(self) -> str:
        """Number of nodes and quantizers, and the opset."""
        opset = self.opsets.get("", "none")
        quantizers = counted(len(self.quantizers), "quantizer")
        return f"{counted(self.nodes, 'node')}, {quantizers}, opset {opset}"

    @property
    def dialects(self) -> dict[str, int]:
        """Number of quantizers of each dialect."""
        return dict(
            Counter(quantizer.dialect for quantizer in self.quantizers if quantizer.dialect)
        )

    def to_json(self) -> dict[str, Any]:
        """Return what ``qgraph info --json`` prints."""
        # They may be many, and nothing in one of them can change.
        quantizers = [dict(vars(each)) for each in self.quantizers]
        rest = asdict(replace(self, quantizers=[]))
        return rest | {"quantizers": quantizers, "dialects": self.dialects}


def overview(model: ir.Model) -> Overview:
    """Return the contents of a model.

    Initializers that are also inputs count as constants, as for conversions.
    """
    count = len(overridable(model.graph))
    if count:
        model = model.clone()
        freeze_inputs(model)
    nodes = list(all_nodes(model))
    found_sites = list(sites(prepared(model)))
    limit = ceiling(model)
    operators = Counter(operator_name(node) for node in nodes)
    unsupported = Counter(operator_name(node) for node in _unsupported(model))
    producer = f"{model.producer_name or ''} {model.producer_version or ''}"
    quantizers = [
        *(quantizer_info(site, limit) for site in found_sites),
        *(coded_info(tensor) for node in nodes for tensor in coded_tensors(node)),
    ]
    return Overview(
        ir_version=model.ir_version,
        opsets=dict(model.opset_imports),
        producer=producer.strip(),
        inputs=[_value_info(value) for value in model.graph.inputs],
        outputs=[_value_info(value) for value in model.graph.outputs],
        overridable=count,
        nodes=len(nodes),
        operators=dict(sorted(operators.items())),
        weight_bytes=weight_bytes(model),
        packed_bytes=packed_bytes(model, found_sites, limit),
        quantizers=quantizers,
        instead=None if quantizers else _instead(nodes),
        unsupported=dict(sorted(unsupported.items())),
        runtimes=runtimes_of(model, profiles()),
    )


def _instead(nodes: list[ir.Node]) -> str:
    entries = ((node, composite_of(node)) for node in nodes)
    vendors = {node.op_type for node, entry in entries if entry is not None and entry.is_defined}
    if vendors:
        return (
            f"operators of vendors ({', '.join(sorted(vendors))}) may quantize inside: "
            "-p lower-vendor-operators, or convert, writes them in standard operators"
        )
    if number := sum(node.op_type in _ROUNDING and not node.domain for node in nodes):
        return (
            f"{number} of Round, Floor and Ceil are in no form that is read as a quantizer: fold "
            "computed scales and limits to constants, or export QuantizeLinear, Quant or "
            "FakeQuantize"
        )
    return (
        "if the exporter decoded codes to floats, -p quantize-weights makes codes again, and "
        "states the error"
    )


def _value_info(value: ir.Value) -> ValueInfo:
    shape = stated_shape(value)
    dtype = value.dtype.name if value.dtype else None
    return ValueInfo(value.name or "", dtype, None if shape is None else list(shape))


def _unsupported(model: ir.Model) -> Iterator[ir.Node]:
    for owner in owners(model):
        imports = owner.opset_imports
        for node in nodes_of(owner):
            if is_control(node) or node.op_identifier() in model.functions or _is_ours(node):
                continue
            try:
                reference_kernel(node, imports)
            except UnsupportedError:
                if not runs_alone(node):
                    yield node


def _is_ours(node: ir.Node) -> bool:
    try:
        composite = composite_of(node)
        is_written = composite is not None and composite.is_defined
        return is_mat_mul_n_bits(node) or is_written or operator_of(node) is not None
    except OperatorError:
        return True
