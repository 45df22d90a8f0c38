"""``qgraph prove``: whether two models are equal for every input."""

from __future__ import annotations

from pathlib import Path

import click

from qgraph.cli import options, proofs
from qgraph.cli.output import Talk, show_paragraph
from qgraph.cli.progress import ProgressBar
from qgraph.cli.targets import planned
from qgraph.cli.views import Views, view_options
from qgraph.exactness import Exactness

_RUNS = 200
"""Runs of each model that a witness is worth."""


@click.command(name="prove")
@click.argument("reference", type=options.file_path)
@click.argument("candidate", type=options.file_path)
@click.option(
    "--exact",
    type=options.Word([str(Exactness.BITS), str(Exactness.VALUES)]),
    default=str(Exactness.VALUES),
    show_default=True,
    help="What counts as equal: values, or also the bits of NaN and the sign of zero.",
)
@click.option(
    "--certificate", type=options.file_path, metavar="FILE", help="Write the certificate (JSON)."
)
@click.option(
    "--witness",
    type=options.file_path,
    metavar="FILE",
    help="Search for an input on which the outputs differ and write it (.npz).",
)
@click.option(
    "--verify",
    type=options.file_path,
    metavar="CERTIFICATE",
    help="Check what a certificate says about the two models, and search for nothing.",
)
@options.keep_inputs_option
@view_options("html", "sarif", "markdown", "junit")
@options.talk_options
@click.pass_obj
def command(
    talk: Talk,
    reference: Path,
    candidate: Path,
    exact: str,
    certificate: Path | None,
    witness: Path | None,
    verify: Path | None,
    keep_inputs: bool,
    views: Views,
) -> int:
    """Prove that two models compute equal outputs for every input.

    REFERENCE and CANDIDATE are matched from their inputs; where they differ in form, all inputs
    are compared, by the definitions of the operators. Nothing is sampled: they are proved equal, or
    each place is named where they differ, with the number of inputs and one of them.

    Exit status: 0 proved, 1 different, 4 undecided; with --verify the same of the certificate, and
    1 if it does not hold.
    """
    from qgraph import prove
    from qgraph.files import json_text, write_text

    views.check()
    if verify is not None:
        if certificate is not None or witness is not None or views.are_wanted:
            raise click.UsageError(
                "--verify writes nothing; leave out --certificate, --witness and the reports."
            )
        from qgraph.verification.verify import verify_file

        with ProgressBar(talk) as bar:
            bar.tell(f"verifying {verify.name}", 0, 0)
            verdict = verify_file(verify, reference, candidate)
        text = f"VERIFIED: every statement of {verify} holds, its verdict is {verdict}"
        show_paragraph(text, "bold green" if verdict == "proved" else "bold yellow")
        return proofs.STATUS[verdict]
    targets = (certificate, witness, *views.paths)
    with planned(targets, models=(reference, candidate)) as outputs:
        with ProgressBar(talk) as bar:
            bar.tell("proving", 0, 0)
            found = prove(
                reference,
                candidate,
                exact=exact,
                keep_inputs=keep_inputs,
                evidence=certificate is not None,
                runs=_RUNS if witness is not None else 0,
            )
            if certificate is not None:
                write_text(certificate, json_text(found.to_json()), outputs)
            if views.are_wanted:
                bar.tell("drawing", 0, 0)
                views.write(found.to_json(), (reference, candidate), outputs)
        proofs.show_certificate(talk, found)
        if witness is not None:
            proofs.save_witness(talk, found, witness, outputs)
    return proofs.STATUS[found.verdict]
