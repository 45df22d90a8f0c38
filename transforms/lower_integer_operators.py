"""The pass ``lower-integer-operators``: operators on codes spelled in standard operators."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import ClassVar

from qgraph.dialects.dialect import Refusal
from qgraph.errors import OperatorError, where
from qgraph.exactness import Exactness
from qgraph.foreign.products import read_product
from qgraph.model import Model
from qgraph.opset import ceiling
from qgraph.report import Report
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.code_pairs import lower_code_pair
from qgraph.transforms.integer_sums import lower_exactly
from qgraph.transforms.real_sums import lower_to_reals
from qgraph.transforms.rebuilding import Found, rebuild
from qgraph.transforms.spelling import check_level


class Form(StrEnum):
    """How sums are spelled."""

    EXACT = "exact"
    QDQ = "qdq"


@transform("lower-integer-operators")
class LowerIntegerOperators(Transform):
    """Spell QLinearConv, QLinearMatMul, QGemm and their kin in standard operators.

    ``form=exact`` keeps the meaning bit by bit: codes less their zero points are whole numbers,
    whose sums are exact in float32 below 2**24 and in float64 up to 2**31. Where sums may be
    larger, or their depth is not known, MatMulInteger or ConvInteger stays, which wraps around. One
    multiplication and a QuantizeLinear with scale 1 follow.

    ``form=qdq`` writes DequantizeLinear, the operator on real numbers, and QuantizeLinear, which
    other tools understand. It is equal where all sums can be tried out, which takes scales of the
    data and the weights that are powers of two; else it is as near as float32 is, and written with
    ``exact=near`` only.
    """

    form: Form = option(Form.EXACT, help="exact, or the plain one with real numbers")
    exact: Exactness = option(Exactness.VALUES, help="lowest rung of equality that is accepted")

    preserves: ClassVar[Exactness] = Exactness.VALUES

    def __post_init__(self) -> None:
        check_level(self.exact)

    def apply(self, model: Model, report: Report) -> None:
        """Read every operator on codes, raise the opset once as far as needed, replace."""
        limit = ceiling(model.ir)
        rebuild(model, list(self._found(model)), self.exact, report, limit=limit)

    def _found(self, model: Model) -> Iterator[Found]:
        reals = self.form == Form.QDQ
        for node in model.nodes():
            if node.op_identifier() in model.ir.functions:
                continue
            try:
                pair = lower_code_pair(node, reals=reals)
                if pair is not None:
                    yield pair
                    continue
                product = read_product(node)
                if product is not None:
                    yield lower_to_reals(product) if reals else lower_exactly(product)
            except OperatorError as error:
                yield Refusal(node, str(error))
            except ValueError as error:
                yield Refusal(node, f"{where(node)}: {error}")
