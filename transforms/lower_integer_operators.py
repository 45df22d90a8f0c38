"""The pass ``lower-integer-operators``: operators on codes spelled in standard operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qgraph.choices import Choice
from qgraph.dialects.dialect import Refusal
from qgraph.errors import OperatorError, where
from qgraph.exactness import Exactness
from qgraph.foreign.kernels import is_on_codes, is_unknown_on_codes
from qgraph.foreign.products import read_product
from qgraph.model import Model
from qgraph.opsets.versions import ceiling
from qgraph.report import Outcome, Report
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.integers.code_pairs import lower_code_pair
from qgraph.transforms.integers.code_pools import lower_average_pool
from qgraph.transforms.integers.code_tables import lower_code_table
from qgraph.transforms.integers.integer_sums import lower_exactly
from qgraph.transforms.integers.real_sums import lower_to_reals
from qgraph.transforms.operand_shapes import inferred_operands
from qgraph.transforms.rebuilding import Found, rebuild
from qgraph.transforms.spelling import check_level


class Form(Choice):
    """How sums are spelled."""

    EXACT = "exact"
    QDQ = "qdq"


@transform("lower-integer-operators")
class LowerIntegerOperators(Transform):
    """Spell QLinearConv, QLinearMatMul, QGemm and their kin in standard operators.

    ``form=exact`` keeps the meaning bit by bit: codes less their zero points are whole numbers,
    whose sums are exact in float32 below 2**24 and in float64 up to 2**31. Where sums may be
    larger, or their depth is not known, MatMulInteger or ConvInteger stays, which wraps around. One
    multiplication and a QuantizeLinear with scale 1 follow. A function of single codes becomes the
    table of its 256 results where standard operators do not give the same.

    ``form=qdq`` writes DequantizeLinear, the operator on real numbers, and QuantizeLinear, which
    other tools understand. It is equal where all sums can be tried out, which takes scales of the
    data and the weights that are powers of two; else it is as near as float32 is, and written with
    ``exact=near`` only.
    """

    form: Form = option(Form.EXACT, help="exact, or the plain one with real numbers")
    exact: Exactness = option(Exactness.VALUES, help="lowest rung of equality that is accepted")

    preserves: ClassVar[Exactness] = Exactness.VALUES

    def check_options(self) -> None:
        """Raise an OptionError for options that do not go together."""
        check_level(self.exact)

    def apply(self, model: Model, report: Report) -> None:
        """Read every operator on codes and replace it, until no more can be.

        Types and shapes behind an operator of com.microsoft can be inferred only when it has gone.
        """
        limit = ceiling(model.ir)
        given = frozenset(model.nodes())
        while True:
            round_ = Report()
            with inferred_operands(model, is_on_codes):
                rebuild(model, list(self._found(model, given)), self.exact, round_, limit=limit)
            report.notes += round_.notes
            changed = [site for site in round_ if site.outcome is Outcome.CHANGED]
            if not changed or len(changed) == len(round_.sites):
                report.sites += round_.sites
                return
            report.sites += changed

    def _found(self, model: Model, given: frozenset[ir.Node]) -> Iterator[Found]:
        reals = self.form == Form.QDQ
        for node in model.nodes():
            if node not in given or node.op_identifier() in model.ir.functions:
                continue
            if is_unknown_on_codes(node):
                yield Refusal(
                    node,
                    f"there is no spelling of {node.op_type} in standard operators here, and no "
                    "kernel of ours; models with it run with --backend ort",
                )
                continue
            try:
                found = _lowered(node, reals=reals)
                if found is not None:
                    yield found
            except OperatorError as error:
                yield Refusal(node, str(error))
            except ValueError as error:
                yield Refusal(node, f"{where(node)}: {error}")


def _lowered(node: ir.Node, *, reals: bool) -> Found | None:
    """Return how to spell a node; None if it is no operator on codes."""
    product = read_product(node)
    if product is not None:
        return lower_to_reals(product) if reals else lower_exactly(product)
    return (
        lower_code_pair(node, reals=reals)
        or lower_code_table(node, reals=reals)
        or lower_average_pool(node, reals=reals)
    )
