"""What convert, fold and transform have in common: they rewrite a file and show what was done."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from qgraph.cli.options import Rewrite
from qgraph.cli.output import Talk, show_page, show_paragraph
from qgraph.cli.progress import ProgressBar, planned
from qgraph.cli.views import Views
from qgraph.reporting.view import Tone, counted
from qgraph.version import head

if TYPE_CHECKING:
    from qgraph.transforms.base import Transform


def run(talk: Talk, command: str, files: Rewrite, steps: Sequence[Transform], views: Views) -> None:
    """Apply passes to a model file and show what they did."""
    from qgraph.reporting.pages import page_of
    from qgraph.transforms import rewrite

    views.check()
    with _report_file(files, views) as written, planned(views.paths) as outputs:
        with ProgressBar(talk) as bar:
            report = rewrite(
                files.model,
                files.out,
                *steps,
                report=written,
                command=command,
                keep_inputs=files.keep_inputs,
                in_place=files.in_place,
                prove=files.prove,
                external_data=True if files.size_threshold is not None else None,
                shard_bytes=files.shard_bytes,
                safetensors=files.safetensors,
                size_threshold=files.size_threshold,
                progress=bar.tell_bytes,
                outputs=outputs,
            )
            if views.are_wanted and written is not None:
                bar.tell("drawing", 0, 0)
                document = json.loads(outputs.written(written).read_text("utf-8"))
                views.write(document, (files.model, outputs.written(files.out)), outputs)
        if talk.quiet:
            if refused := report.count("refused"):
                talk.warn(f"{counted(refused, 'quantizer')} left unchanged; the report says why")
            return
        show_page(talk, page_of(head(command) | report.to_json()))
        if files.prove:
            show_paragraph("proved equal for every input", Tone.GOOD)
        show_paragraph(f"wrote {files.out}")


@contextmanager
def _report_file(files: Rewrite, views: Views) -> Iterator[Path | None]:
    """Give the file of the JSON report: that of the user, or one for the views alone."""
    if files.report is not None or not views.are_wanted:
        yield files.report
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "report.json")
