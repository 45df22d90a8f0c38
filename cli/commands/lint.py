"""``qgraph lint``: apply rules about quantized models."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qgraph.cli import options
from qgraph.cli.documents import show_document
from qgraph.cli.files import Views, planned, view_options
from qgraph.cli.inputs import InputOptions, input_options, within_option
from qgraph.cli.output import DIFFERENT, UNUSABLE, ProgressBar, Talk, print_failure, show
from qgraph.cli.several import found_models, jobs_option
from qgraph.cli.tasks import Task, TaskResult, results_of
from qgraph.errors import OptionError, QGraphError, meant, plain_message, shown
from qgraph.records import dataclass

if TYPE_CHECKING:
    from qgraph.bound import Limit
    from qgraph.lint.engine import LintBaseline, LintReport
    from qgraph.storage.outputs import Outputs


LEVELS = ("error", "warning", "info", "never")
"""Severities that --fail-on takes."""


@dataclass(frozen=True)
class LintOptions:
    """Options that select rules, and the severity that is a failure.

    Attributes:
        target: name or path of a profile; None for none.
        select, ignore: ids of rules.
        fail_on: the least severity that is a failure; ``never`` for none.
        baseline, write_baseline: file with known findings, and where to write one; None for none.
    """

    target: str | None
    select: tuple[str, ...]
    ignore: tuple[str, ...]
    fail_on: str
    baseline: Path | None
    write_baseline: Path | None

    def check(self) -> None:
        """Raise an OptionError if a rule or the target is not known, before models are read."""
        from qgraph.lint.engine import chosen_rules
        from qgraph.targets.reader import profile_of

        if not chosen_rules(self.select, self.ignore):
            raise OptionError(
                "--select and --ignore, with the settings of the project, leave no rule to apply. "
                "Select others, or ignore fewer."
            )
        if self.target is not None:
            profile_of(self.target)

    @property
    def rules(self) -> dict[str, tuple[str, ...]]:
        """The chosen rules, as arguments of functions."""
        return {"select": self.select, "ignore": self.ignore}

    def fails(self, results: Sequence[LintReport]) -> bool:
        """Return whether a finding is at least as severe as ``fail_on``."""
        from qgraph.lint.rule import LintLevel

        if self.fail_on == "never" or self.write_baseline is not None:
            return False
        least = LintLevel(self.fail_on).rank
        return any(result.worst is not None and result.worst.rank <= least for result in results)


@dataclass(frozen=True)
class FixOptions:
    """Whether findings are to be fixed, and where the result goes.

    Attributes:
        diff: show what would change; nothing is written.
        out: the model to write; None for none.
        in_place: replace the models.
        within: limits of passes that are not equal.
    """

    fix: bool
    diff: bool
    out: Path | None
    in_place: bool
    within: tuple[Limit, ...]

    @property
    def is_wanted(self) -> bool:
        """Whether passes are to be tried."""
        return self.fix or self.diff

    def check(self, paths: Sequence[Path], jobs: int) -> None:
        """Raise if options contradict each other."""
        if self.is_wanted and jobs > 1:
            raise click.UsageError("--fix and --diff work in one process. Leave --jobs out.")
        if self.is_wanted and not self.diff and self.out is None and not self.in_place:
            raise click.UsageError("--fix needs an output. Add -o OUT, --in-place, or --diff.")
        if (self.out or self.in_place or self.within) and not self.is_wanted:
            raise click.UsageError("-o, --in-place and --within need --fix. Add it.")
        if self.out is not None and (self.in_place or len(paths) > 1):
            raise click.UsageError("-o names one model, expected --in-place for several.")

    def apply(
        self,
        talk: Talk,
        path: Path,
        lint: LintOptions,
        outputs: Outputs,
        known: LintBaseline | None,
    ) -> LintReport:
        """Fix the new findings of a model, show the changes, and return the remaining findings."""
        from qgraph.model import load
        from qgraph.transforms import Writing, rewrite
        from qgraph.transforms.deployment.lint_fixes import fix

        model = load(path)
        fixed = fix(model, lint.target, **lint.rules, within=self.within, known=known)
        # Programs read the other forms.
        tell = show if talk.form in ("table", "text") else talk.note
        for line in fixed.listing if self.diff else ():
            tell(line)
        for step in fixed.steps:
            talk.note(f"{path}: {step}")
        target = self.out or path
        if not self.diff and (self.out is not None or fixed.passes):
            writing = Writing(in_place=self.in_place, outputs=outputs)
            rewrite(path, target, *fixed.passes, command="lint", writing=writing)
            talk.note(f"wrote {target}")
        return fixed.before if self.diff else fixed.after


fix_options = options.gathered(
    "fixing",
    FixOptions,
    options.flag("--fix", text="Apply the passes that findings name; needs -o or --in-place."),
    options.flag("--diff", text="Show what --fix would change; write no model."),
    options.output_option,
    options.flag("--in-place", text="Replace each MODEL."),
    within_option(
        "Also apply passes whose results are bounded by LIMIT, such as 1step. Repeatable."
    ),
)


def _lint_options(
    target: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    fail_on: str | None,
    baseline: Path | None,
    write_baseline: Path | None,
) -> LintOptions:
    settings = project_settings(Path.cwd())
    return LintOptions(
        settings.get("target") if target is None else target,
        select or tuple(settings.get("select", ())),
        (*settings.get("ignore", ()), *ignore),
        fail_on or str(settings.get("fail-on", "warning")),
        baseline or (settings.get("baseline") if write_baseline is None else None),
        write_baseline,
    )


lint_options = options.gathered(
    "lint",
    _lint_options,
    click.option(
        "--target",
        metavar="TARGET",
        shell_complete=options.offering("targets"),
        help="Name of a profile, see 'qgraph targets', or a path such as ./mychip.toml.",
    ),
    options.repeated(
        "--select",
        metavar="IDS",
        text="Apply only these rules, separated by commas: ids such as QG112, prefixes such as "
        "QG4, names, or families such as speed.",
        shell_complete=options.offering("rules"),
    ),
    options.repeated(
        "--ignore",
        metavar="IDS",
        text="Leave out these rules, named as in --select.",
        shell_complete=options.offering("rules"),
    ),
    options.word_option("--fail-on", LEVELS, "Minimum severity for exit status 1 [warning].", None),
    options.file_option("--baseline", text="Ignore the findings in FILE."),
    options.file_option(
        "--write-baseline",
        text="Write all findings to FILE, for --baseline; the exit status is 0 then.",
    ),
)


@click.command(name="lint")
@options.models_argument
@jobs_option
@lint_options
@options.table_options("text", "github")
@options.report_option
@fix_options
@view_options("html", "sarif", "markdown", "junit")
@input_options
@options.talk_options
@click.pass_obj
def command(
    talk: Talk,
    models: tuple[Path, ...],
    jobs: int,
    lint: LintOptions,
    fixing: FixOptions,
    views: Views,
    inputs: InputOptions,
) -> int:
    """Find known traps in quantized models; MODEL may be a folder.

    Without --target, lint looks for faults that affect every runtime, and for silent changes that
    some runtime makes. With --target, it also lists the layers that this target runs in float, and
    the nodes that it cannot load. 'qgraph explain ID' describes a rule.

    Defaults are read from [tool.qgraph.lint] of pyproject.toml, or from [lint] of qgraph.toml, in
    the current folder or the nearest parent folder with one of these files.

    --fix applies the passes that findings name. Passes that keep every value are always applied,
    others if the prover shows that the result is equal, or bounded by the limit of --within.

    --format github prints annotations for a GitHub workflow.

    Exit status: 1 if there is a finding of severity warning or worse, see --fail-on; 3 if a model
    cannot be read.
    """
    from qgraph.lint.engine import read_baseline, report_of, written_baseline
    from qgraph.reporting.lint_view import github_annotations
    from qgraph.reporting.pages import page_of

    views.check()
    lint.check()
    paths = [model.path for model in found_models(models, talk)]
    fixing.check(paths, jobs)
    read = (lint.baseline, inputs.bundle, *inputs.files.values())
    targets = (lint.write_baseline, *views.paths)
    # Models that are replaced are guarded by what writes them.
    guarded = () if fixing.in_place else paths
    with planned(targets, models=guarded, files=read) as outputs:
        listed = None if lint.baseline is None else read_baseline(lint.baseline)
        fix = partial(fixing.apply, outputs=outputs) if fixing.is_wanted else None
        alone = len(paths) == 1
        tasks = [
            _LintTask(
                "lint", p, {}, talk, lint=lint, inputs=inputs, known=listed, fix=fix, is_alone=alone
            )
            for p in paths
        ]
        results: list[LintReport] = []
        failed: dict[str, str] = {}
        found = results_of(tasks, jobs)
        with ProgressBar(talk) as bar:
            for number, path in enumerate(paths):
                bar.tell(f"reading {path.name}", number, len(paths))
                result = next(found)
                if result.status:
                    failed[str(path)] = result.message
                else:
                    results.append(result.document)
        document = report_of(results, lint.target, failed)
        views.write(document, None, outputs)
        if lint.write_baseline is not None:
            outputs.write_text(
                lint.write_baseline, written_baseline(results, lint.write_baseline.parent)
            )
        if talk.form == "github":
            # Lines that begin like a workflow command are shown otherwise, unless they are meant.
            sys.stdout.writelines(f"{line}\n" for line in github_annotations(document))
        else:
            show_document(talk, document, page_of, paths)
    if lint.write_baseline is not None:
        talk.note(f"wrote {lint.write_baseline}: pass it to --baseline to ignore these findings")
    if failed:
        return UNUSABLE
    return DIFFERENT if lint.fails(results) else 0


@dataclass(frozen=True, kw_only=True)
class _LintTask(Task):
    """The linting of one model.

    Attributes:
        known: findings to leave out; None for none.
        fix: fixes the model; None to leave it.
        is_alone: whether a fault of the model is one of the command.
    """

    lint: LintOptions
    inputs: InputOptions
    known: LintBaseline | None
    fix: Callable[..., LintReport] | None
    is_alone: bool

    def handle(self) -> TaskResult:
        """Return the report of the model as the document."""
        from qgraph.lint.engine import lint as find
        from qgraph.model import load

        try:
            model, inputs, lint = load(self.model), self.inputs, self.lint
            batches: Iterable[Any] = ()
            if inputs.files or inputs.bundle or inputs.random:
                batches = inputs.batches(model, inputs.feeds(self.talk, model))
            result = find(model, lint.target, **lint.rules, inputs=list(batches))
            if self.fix is not None:
                result = self.fix(self.talk, self.model, self.lint, known=self.known)
            elif self.known is not None:
                result = self.known.without(result)
        except OptionError:
            raise
        except QGraphError as error:
            if self.is_alone:
                raise
            return TaskResult(self.model, UNUSABLE, print_failure(error, self.talk).message)
        return TaskResult(self.model, 0, document=result)


_FILES = (("qgraph.toml", ("lint",)), ("pyproject.toml", ("tool", "qgraph", "lint")))
"""Settings files and the names of their tables; the first existing file of a folder is used."""

_LISTS = ("select", "ignore")
_WORDS = ("target", "fail-on", "baseline")


def project_settings(folder: Path) -> Mapping[str, Any]:
    """Return the settings of the project that contains a folder; empty if there are none.

    Paths are relative to the settings file.

    Raises:
        OptionError: a setting is not known, or has another type.
    """
    for parent in (folder, *folder.parents):
        for name, keys in _FILES:
            file = parent / name
            if file.is_file():
                table = _table(file, keys)
                if table is not None:
                    return _checked(file, table)
    return {}


def _table(file: Path, keys: Sequence[str]) -> Mapping[str, Any] | None:
    try:
        table: Any = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(
            f"{file}: cannot be read ({plain_message(error)}), expected TOML. Correct it."
        ) from error
    others = [key for key in table if key not in keys] if len(keys) == 1 else []
    if others:  # the file has nothing else
        raise OptionError(
            f"{file}: there is {shown(others[0])}, expected the table [{keys[0]}]. Correct it."
        )
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    return table if isinstance(table, Mapping) else None


def _checked(file: Path, table: Mapping[str, Any]) -> Mapping[str, Any]:
    settings = dict(table)
    keys = (*_LISTS, *_WORDS)
    for key, value in table.items():
        if key not in keys:
            raise OptionError(
                f"{file}: there is no setting {shown(key)} of lint, expected one of "
                f"{', '.join(keys)}.{meant(key, keys)}"
            )
        is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
        if not (is_list if key in _LISTS else isinstance(value, str)):
            wanted = "a list of strings" if key in _LISTS else "a string"
            raise OptionError(f"{file}: {key} is {shown(value)}, expected {wanted}. Correct it.")
    if settings.get("fail-on", "warning") not in LEVELS:
        raise OptionError(
            f"{file}: fail-on is {shown(settings['fail-on'])}, expected one of "
            f"{', '.join(LEVELS)}. Correct it."
        )
    if "baseline" in settings:
        settings["baseline"] = file.parent / settings["baseline"]
    if str(settings.get("target", "")).endswith(".toml"):
        settings["target"] = str(file.parent / settings["target"])
    return settings
