"""How good the outputs of a model are where the right answers are known."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.choices import shown
from qgraph.errors import ExecutionError, OptionError

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]
Score = Callable[[Outputs, Array], float]
"""``score(outputs, labels)``: outputs by name, joined over the batches; larger is better."""

TOP1 = "top1"


@dataclass(frozen=True)
class Metric:
    """A way to measure outputs by labels.

    Attributes:
        name: ``top1``, or ``module:function``.
        score: what computes it.
    """

    name: str
    score: Score

    def of(self, outputs: Outputs, labels: Array) -> float:
        """Return the score.

        Raises:
            OptionError: labels and outputs do not fit.
            ExecutionError: a function of the user fails, or returns no number.
        """
        try:
            return float(self.score(outputs, labels))
        except OptionError:
            raise
        except Exception as error:  # a function of the user may raise anything
            forms = ", ".join(f"{name!r} {x.dtype}{list(x.shape)}" for name, x in outputs.items())
            raise ExecutionError(
                f"Metric {self.name!r} failed ({type(error).__name__}: {error}) on the outputs "
                f"{forms} and labels {labels.dtype}{list(labels.shape)}, expected a number. "
                "Mend the function."
            ) from error


def metric_of(given: str | Score) -> Metric:
    """Return the metric of a name, or of a function.

    Args:
        given: ``top1``, ``module:function``, or a function.

    Raises:
        OptionError: there is none of this name, or it is neither a name nor a function.
    """
    if not isinstance(given, str):
        if not callable(given):
            raise OptionError(
                f"metric is {shown(given)}, expected {TOP1!r}, a function, or its name as "
                "module:function."
            )
        return Metric(getattr(given, "__name__", "metric"), given)
    if given.casefold() == TOP1:
        return Metric(TOP1, top1)
    module, colon, name = given.partition(":")
    if not (module and colon and name):
        raise OptionError(
            f"There is no metric {given!r}, expected {TOP1!r} or a function as module:function."
        )
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"The metric {given!r} cannot be imported ({error}), expected a function "
            "score(outputs, labels). Correct the name, or put its folder on PYTHONPATH."
        ) from error
    return Metric(given, found)


def top1(outputs: Outputs, labels: Array) -> float:
    """Return the share of rows whose largest score is that of the label.

    The first output with a row of scores for each label counts, ``[samples, classes]``.

    Raises:
        OptionError: there is none.
    """
    flat = np.asarray(labels).reshape(-1)
    for scores in outputs.values():
        if scores.ndim == 2 and scores.shape[1] > 1 and len(scores) == flat.size:
            return float(np.mean(np.argmax(scores, axis=1) == flat))
    forms = ", ".join(f"{name!r} {list(x.shape)}" for name, x in outputs.items())
    raise OptionError(
        f"There are {flat.size} labels, but the outputs are {forms}; expected one with a row of "
        "scores for each label. Give as many labels as samples, or a metric of your own as "
        "module:function."
    )
