"""``qgraph prove``: prove that two models are equal for every input."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qgraph.bound import Bounding
from qgraph.cli import options
from qgraph.cli.documents import advise, show_document
from qgraph.cli.files import Views, planned, view_options
from qgraph.cli.inputs import bounding_options
from qgraph.cli.output import ProgressBar, Talk, show, show_paragraph
from qgraph.cli.several import pairs_of_models
from qgraph.exactness import Exactness, ProofVerdict
from qgraph.reporting.view import Tone

if TYPE_CHECKING:
    from qgraph.certificate import Certificate
    from qgraph.exactness import Verification
    from qgraph.storage.outputs import Outputs

STATUS = {"proved": 0, "bounded": 0, "different": 1, "undecided": 4}
"""Exit status of each verdict, if all bounds are within the limits."""

_RUNS = 200
"""Maximum number of runs of each model in the search for a witness."""


def save_witness(talk: Talk, certificate: Certificate, path: Path, outputs: Outputs) -> None:
    """Write the input on which the outputs differ, if there is one."""
    from qgraph.storage.archive import write_arrays

    if not certificate.counterexample:
        if certificate.verdict == "different":
            talk.warn(
                "no input was found on which the outputs differ, so no witness was written; the "
                "regions listed above do differ"
            )
        return
    write_arrays(path, certificate.counterexample, outputs)
    talk.note(f"wrote {path}: an input on which the outputs differ")


@click.command(name="prove")
@pairs_of_models
@options.word_option(
    "--exact",
    [str(Exactness.BITS), str(Exactness.VALUES)],
    "Level of equality to prove; bits: also NaN and the sign of zero.",
    str(Exactness.VALUES),
)
@bounding_options(question=True)
@options.file_option("--certificate", text="Write the certificate (JSON).")
@options.file_option(
    "--witness", text="Search for an input on which the outputs differ and write it (.npz)."
)
@options.file_option(
    "--verify",
    text="Check a certificate of the two models. The prover runs only for parts that stay "
    "unchecked.",
    metavar="CERTIFICATE",
)
@options.table_options()
@options.timeout_option
@options.keep_inputs_option
@view_options("html", "sarif", "markdown", "junit")
@options.talk_options
@click.pass_obj
def command(
    talk: Talk,
    reference: Path,
    candidate: Path,
    exact: str,
    request: Bounding,
    certificate: Path | None,
    witness: Path | None,
    verify: Path | None,
    keep_inputs: bool,
    views: Views,
) -> int:
    """Prove that two models compute equal outputs for every input.

    REFERENCE and CANDIDATE may be folders: models of the same name are compared. Options that name
    a file then name a folder with a file for each pair.

    The graphs of REFERENCE and CANDIDATE are matched from their inputs. Where operators differ,
    they are compared on all inputs by their definitions; nothing is sampled. The result is a proof,
    or a list of differences, each with the number of differing inputs and an example.

    If sums are rounded in another order or scales differ, the difference is bounded: by how much
    codes can differ if the codes before them are equal.

    Exit status: 0 proved, or bounded within the limits; 1 different, or bounded beyond the limits,
    or bounded and no limit is given; 4 undecided. With --verify: that of the confirmed verdict, or
    1 if a statement of the certificate is refuted.
    """
    from qgraph.comparison.prove import prove
    from qgraph.reporting.pages import page_of
    from qgraph.text import json_text

    views.check()
    if verify is not None:
        if certificate is not None or witness is not None or views.are_wanted:
            raise click.UsageError(
                "--verify writes nothing. Omit --certificate, --witness and the reports."
            )
        return _verify(talk, verify, (reference, candidate))
    is_whole = certificate is not None or talk.form == "json"
    targets = (certificate, witness, *views.paths)
    with planned(targets, models=(reference, candidate)) as outputs:
        with ProgressBar(talk) as bar:
            bar.tell("proving", 0, 0)
            proof = prove(
                reference,
                candidate,
                exact=exact,
                keep_inputs=keep_inputs,
                evidence=is_whole or talk.verbosity > 0,
                runs=_RUNS if witness is not None else 0,
                hashes=is_whole or views.are_wanted,
                within=request,
            )
            document = proof.to_json()
            if certificate is not None:
                outputs.write_text(certificate, json_text(document))
            if views.are_wanted:
                bar.tell("drawing", 0, 0)
                views.write(document, (reference, candidate), outputs)
        again = () if certificate is None else ("--verify", str(certificate))
        show_document(talk, document, page_of, (reference, candidate), again)
        if witness is not None:
            save_witness(talk, proof, witness, outputs)
    return _status(proof.verdict, proof)


def _status(verdict: ProofVerdict, certificate: Certificate) -> int:
    is_beyond = verdict == "bounded" and bool(certificate.beyond)
    return 1 if is_beyond else STATUS[verdict]


def _verify(talk: Talk, path: Path, models: tuple[Path, Path]) -> int:
    """Check a certificate and return the exit status."""
    from qgraph.comparison.replay import read, replay
    from qgraph.model import load
    from qgraph.text import json_text
    from qgraph.verify.verify import verify
    from qgraph.version import SCHEMA

    with ProgressBar(talk) as bar:
        bar.tell(f"verifying {path.name}", 0, 0)
        certificate = read(path, *models)
        sides = [load(model) for model in models]
        checked = replay(certificate, verify(certificate, *(m.ir for m in sides)), *sides)
    if talk.form == "json":
        head = {"schema": SCHEMA, "command": "prove --verify", "certificate": str(path)}
        show(json_text(head | checked.to_json()).rstrip())
    else:
        _show_verification(certificate, checked)
        advise(talk, {"command": "prove --verify"}, models)
    return 1 if checked.is_refuted else _status(checked.verdict, certificate)


def _show_verification(certificate: Certificate, checked: Verification) -> None:
    """Print the findings, and why parts are unchecked."""
    counts = ", ".join(f"{number} {status}" for status, number in checked.counts.items())
    if checked.is_refuted:
        title, tone = "REFUTED: a statement of the certificate is false", Tone.BAD
    elif checked.verdict == "undecided":
        title, tone = "UNDECIDED: the certificate is not confirmed", Tone.OPEN
    else:
        tone = Tone.BAD if checked.verdict == "different" else Tone.GOOD
        title = f"VERIFIED: the models are {checked.verdict}"
    show_paragraph(f"{title}. Regions: {counts}", tone, is_bold=True)
    names = [
        f"{region.reference_value} -> {region.candidate_value}" for region in certificate.regions
    ]
    for name, part in zip((*names, "outputs", "statements"), checked.parts, strict=True):
        if part.status != "checked":
            anew = "; the prover was run again and agrees" if part.prover else ""
            reason = f"{part.reason} [{part.reason_id}]" if part.reason_id else part.reason
            show_paragraph(f"  {name}: {part.status}, {reason}{anew}")
    if checked.prover:
        show_paragraph("  The prover was run for the unchecked parts.")
