"""The inputs on which two models are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qgraph.equivalence.findings import ProbeReport
from qgraph.equivalence.inputs import make_inputs
from qgraph.equivalence.probes import make_probes
from qgraph.execution.batches import Batches
from qgraph.execution.executor import Executor
from qgraph.model import Model


class Feeding:
    """All inputs of a check: those given, random ones, then probes; each made when it is run.

    Args:
        model: the reference.
        executor: runs it, to make probes.
        given: arrays from elsewhere.
        random: number of random batches; None for one where nothing is given.
        seed: of the random batches and the probes.
        shapes: of the random inputs, by name.
        probes: how many thresholds of each quantizer are wanted.

    Attributes:
        probes: what became of the probes, once these were made.
    """

    def __init__(
        self,
        model: Model,
        executor: Executor,
        given: Batches | None,
        random: int | None,
        seed: int,
        shapes: Mapping[str, Sequence[int]] | None,
        probes: int,
    ) -> None:
        self._model = model
        self._executor = executor
        self._given = given
        self._random = random if random is not None or given is not None else 1
        self._seed = seed
        self._shapes = shapes
        self._wanted = probes
        self.probes: list[ProbeReport] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from self._given or ()
        for number in range(self._random or 0):
            yield make_inputs(self._model, seed=self._seed, number=number, shapes=self._shapes)
        if self._wanted:
            yield from self._probed()

    def few(self, most: int) -> list[dict[str, Any]]:
        """Return the first batches, up to ``most``, without probes."""
        found = []
        for number, batch in enumerate(self):
            found.append(batch)
            if number + 1 == min(most, self._plain):
                break
        return found

    @property
    def _plain(self) -> int:
        return len(self._given or ()) + (self._random or 0)

    def _probed(self) -> list[dict[str, Any]]:
        starts = None if self._given is None else next(iter(self._given))
        made = make_probes(
            self._model,
            self._executor,
            self._wanted,
            seed=self._seed,
            shapes=self._shapes,
            starts=starts,
        )
        self.probes = made.reports
        return made.batches
