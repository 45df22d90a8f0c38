"""``qgraph bench``: time models, and list their kernels."""

from __future__ import annotations

from pathlib import Path

import click

from qgraph.cli import options
from qgraph.cli.files import Views, deliver, planned, view_options
from qgraph.cli.output import ProgressBar, Talk

_RUNTIMES = ["onnxruntime", "openvino", "numpy"]


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise click.BadParameter(f"{text!r} is not of the form KEY=VALUE.")
    return key, value


@click.command(name="bench")
@options.models_argument
@options.word_option("--runtime", _RUNTIMES, "Runtime that runs the models.", "onnxruntime")
@click.option(
    "--threads",
    type=options.WholeNumber(1, 1 << 10),
    metavar="N",
    default=1,
    show_default=True,
    help="Number of threads of the runtime.",
)
@options.number_option("--batch", text="Batch size, if it is open in the models.", default=1)
@options.number_option("--rounds", text="Number of timed rounds.", default=21)
@options.shape_option("Shape of an input, such as NAME:1,3,224,224.")
@options.repeated(
    *("--option", "settings"),
    metavar="KEY=VALUE",
    text="Session option of ONNX Runtime, or property of OpenVINO such as "
    "INFERENCE_PRECISION_HINT=f32; repeat for others.",
    type=_setting,
)
@options.table_options()
@options.report_option
@view_options("html", "markdown")
@options.talk_options
@click.pass_obj
def command(
    talk: Talk,
    models: tuple[Path, ...],
    runtime: str,
    threads: int,
    batch: int,
    rounds: int,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    settings: tuple[tuple[str, str], ...],
    views: Views,
) -> None:
    """Time models in a runtime, each in its own process.

    The models run alternately on the same random inputs, so that the load of the machine affects
    all of them equally. The table shows medians and quartiles of the times, the ratio to the first
    model, and the kernels that the runtime executes.
    """
    from qgraph.comparison.bench import Timing, bench

    views.check()
    timing = Timing(runtime, threads, batch, rounds, dict(shapes), dict(settings))
    with planned(views.paths, models=models) as outputs:
        with ProgressBar(talk) as bar:
            bar.tell("loading", 0, 0)
            times = bench(
                models, timing, progress=lambda done, total: bar.tell("timing", done, total)
            )
        deliver(talk, times.to_json(), outputs, views)
