"""Numbers that are lower bounds are not told as exact ones, by any report."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from qgraph.certificate import Certificate, Identity, ProofVerdict, RegionVerdict
from qgraph.cli.documents import show_page
from qgraph.cli.output import Talk
from qgraph.errors import EquivalenceError
from qgraph.exactness import Exactness, Method, Witness
from qgraph.reporting.findings import junit_report, sarif_log
from qgraph.reporting.pages import markdown_report, page_of

WITNESS = Witness(1.5, 3.0, 4.0)
COUNTED = RegionVerdict(
    reference_nodes=("act",),
    candidate_nodes=("mul",),
    reference_value="a",
    candidate_value="b",
    entries=(("x", "x"),),
    verdict=ProofVerdict.DIFFERENT,
    exactness=Exactness.DIFFERENT,
    method=Method.INTERVALS,
    counted=True,
    differing_inputs=4711,
    witness=WITNESS,
)


def certificate(region: RegionVerdict) -> Certificate:
    files = Identity(None, None), Identity(None, None)
    return Certificate(ProofVerdict.DIFFERENT, Exactness.DIFFERENT, *files, (region,))


@pytest.mark.parametrize(
    ("counted", "number", "told"),
    [(True, 4711, "4711"), (False, 4711, "at least 4711"), (False, 0, "some")],
)
def test_all_reports_tell_it(counted, number, told, capsys):
    method = Method.INTERVALS if counted else Method.NONE
    region = replace(COUNTED, counted=counted, method=method, differing_inputs=number)
    found = certificate(region)
    document = json.loads(json.dumps(found.to_json()))
    assert document["regions"][0]["counted"] is counted
    show_page(Talk(), page_of(document))
    with pytest.raises(EquivalenceError) as refusal:
        found.raise_if_not_proved()
    texts = {
        "terminal": capsys.readouterr().out,
        "error": str(refusal.value),
        "page": markdown_report(document),
        "junit": junit_report(document),
        "sarif": json.loads(sarif_log(document))["runs"][0]["results"][0]["message"]["text"],
    }
    for name, text in texts.items():
        plain = " ".join(text.replace(",", "").split()).lower()
        assert told in plain, name
        assert number == 0 or ("at least" in plain) is not counted, name
        assert " 0 inputs" not in plain, name


def test_what_is_undecided_has_no_number():
    region = replace(
        COUNTED,
        counted=False,
        verdict=ProofVerdict.UNDECIDED,
        exactness=None,
        method=Method.NONE,
        differing_inputs=0,
        witness=None,
    )
    assert " 0 inputs" not in markdown_report(certificate(region).to_json())
