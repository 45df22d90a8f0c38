"""Baseline files with known findings, for projects with old models."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qgraph.errors import ModelError
from qgraph.lint.engine import LintFinding, LintReport
from qgraph.text import json_text
from qgraph.version import head

_Key = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True)
class LintBaseline:
    """Known findings: number of findings of each rule and node, by path of the model.

    Attributes:
        findings: number of findings by path, id and nodes.
        folder: the folder that paths are relative to.
    """

    findings: Mapping[_Key, int]
    folder: Path = Path()

    def without(self, result: LintReport) -> LintReport:
        """Return the findings in a model that are not known."""
        left = Counter(self.findings)
        kept: list[LintFinding] = []
        for finding in result.findings:
            key = _key(result, finding, self.folder)
            if left[key] > 0:
                left[key] -= 1
            else:
                kept.append(finding)
        return replace(result, findings=tuple(kept), known=len(result.findings) - len(kept))


def written_baseline(results: Iterable[LintReport], folder: Path) -> str:
    """Return the text of a file in a folder, with all findings in some models."""
    count = Counter(_key(each, finding, folder) for each in results for finding in each.findings)
    entries = [
        {"path": path, "id": rule_id, "nodes": list(nodes), "count": number}
        for (path, rule_id, nodes), number in sorted(count.items())
    ]
    return json_text({**head("lint-baseline"), "findings": entries})


def read_baseline(path: Path) -> LintBaseline:
    """Return the known findings of a file.

    Raises:
        ModelError: it cannot be read, or is no such file.
    """
    if not path.is_file():
        raise ModelError(
            f"{path}: there is no such file, expected a baseline. Write it with 'qgraph lint "
            "--write-baseline'."
        )
    try:
        document = json.loads(path.read_text("utf-8"))
        entries: Sequence[Mapping[str, Any]] = document["findings"]
        counts = {
            (str(e["path"]), str(e["id"]), tuple(map(str, e["nodes"]))): int(e["count"])
            for e in entries
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{path}: is no baseline ({error}), expected a file that 'qgraph lint "
            "--write-baseline' wrote. Write it again."
        ) from error
    return LintBaseline(counts, path.parent)


def _key(result: LintReport, finding: LintFinding, folder: Path) -> _Key:
    path = "" if result.model.path is None else _relative(result.model.path, folder)
    return path, finding.rule.id, finding.nodes


def _relative(path: str, folder: Path) -> str:
    """Return a path as seen from a folder, so that it is the same wherever a command runs."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:
        return Path(path).absolute().as_posix()  # on another drive
