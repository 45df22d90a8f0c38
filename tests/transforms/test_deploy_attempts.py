"""Which attempts of a deployment are within the limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import qgraph
from qgraph.bound import Bounding
from qgraph.certificate import ProofVerdict, RegionVerdict
from qgraph.reports import Report
from qgraph.transforms.deployment.attempts import Attempt


def test_what_is_neither_proved_nor_bounded_is_not_within_the_limits(network: Path) -> None:
    regions = tuple(
        RegionVerdict(
            reference_nodes=(),
            candidate_nodes=(),
            reference_value=each,
            candidate_value=each,
            verdict=each,
        )
        for each in ProofVerdict
    )
    certificate = replace(qgraph.prove(network, network), regions=regions)
    model = qgraph.load(network)
    attempt = Attempt(model, Report(), model, Bounding())
    vars(attempt)["certificate"] = certificate
    failing = attempt.failing
    assert {each.verdict for each in failing} == {ProofVerdict.DIFFERENT, ProofVerdict.UNDECIDED}
