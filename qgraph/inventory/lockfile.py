"""Lock files: a text description of all quantizers of a model, for version control.

It is TOML with a table for each quantizer and a line for each fact, so a review shows a changed
fact as one changed line.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qgraph.errors import QGraphError, plain_message
from qgraph.inventory.description import (
    Described,
    Description,
    Numbers,
    coded_descriptions,
    descriptions,
)
from qgraph.inventory.differences import ModelDifferences, between
from qgraph.quantizers.movement import prepared
from qgraph.storage.places import MOST_TEXT, bounded

FORM = 1
"""Version of the file format."""

SUFFIX = ".lock"
"""The lock of ``model.onnx`` is ``model.onnx.lock``, unless another name is given."""

_HEAD = f"""\
# The quantizers of a model, independent of the dialect. Written by qgraph; do not edit.
# Compare: qgraph lock MODEL --check FILE     Write again: qgraph lock MODEL -o FILE
form = {FORM}
"""

_NUMBERS = re.compile(r"(?P<low>\S+?)(?: \.\. (?P<high>\S+))?(?: #(?P<digest>[0-9a-f]+))?")


def lock_text(model: ir.Model, *, keep_inputs: bool = False) -> str:
    """Return the text of a model's lock file.

    With ``keep_inputs``, initializers that are inputs too are not constant.
    """
    quantizers = _described(model, keep_inputs=keep_inputs)
    return _HEAD + "".join(_table(described.description) for described in quantizers)


def check_lock(model: ir.Model, path: Path, *, keep_inputs: bool = False) -> ModelDifferences:
    """Compare a lock file, the reference, with a model.

    Names help to pair the quantizers, and are not compared.

    Raises:
        QGraphError: the file cannot be read, or is no lock file.
    """
    return between(read_lock(path), _described(model, keep_inputs=keep_inputs))


def read_lock(path: Path) -> list[Description]:
    """Return the descriptions in a lock file.

    Raises:
        QGraphError: the file cannot be read, or is no lock file.
    """
    remedy = "Write it with 'qgraph lock MODEL -o FILE', or --write-beside."
    try:
        document = tomllib.loads(bounded(path, MOST_TEXT).decode())
    except OSError as error:
        raise QGraphError(
            f"{path}: cannot be read ({plain_message(error)}), expected a lock file. {remedy}"
        ) from error
    except ValueError as error:
        raise QGraphError(
            f"{path}: is not TOML ({plain_message(error)}), expected a lock file. {remedy}"
        ) from error
    form = document.get("form")
    if form is None:
        raise QGraphError(f"{path}: has no 'form = {FORM}', expected a lock file. {remedy}")
    if form != FORM:
        raise QGraphError(
            f"{path}: has form {form!r}, expected {FORM}, which this version writes. {remedy}"
        )
    try:
        return [_description(table) for table in document.get("quantizer", [])]
    except (AttributeError, TypeError, ValueError) as error:
        raise QGraphError(f"{path}: {error}, expected a lock file. {remedy}") from error


def lock_of(model: Path) -> Path:
    """Return the path of the lock file next to a model."""
    return model.with_name(model.name + SUFFIX)


def _described(model: ir.Model, *, keep_inputs: bool) -> list[Described]:
    standard = model if keep_inputs else prepared(model)
    return [*descriptions(standard), *coded_descriptions(standard)]


def _table(description: Description) -> str:
    facts = {key: value for key, value in vars(description).items() if value is not None}
    lines = [
        f"{key} = {value if isinstance(value, int) else _string(str(value))}"
        for key, value in facts.items()
    ]
    return "\n".join(["", "[[quantizer]]", *lines]) + "\n"


def _string(text: str) -> str:
    """Return a TOML string: the JSON form, with one more escaped character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _description(table: dict[str, Any]) -> Description:
    fields = Description.__dataclass_fields__
    unknown = table.keys() - fields.keys()
    if unknown or "name" not in table:
        what = f"has {', '.join(sorted(unknown))}" if unknown else "has no name"
        raise ValueError(f"a quantizer {what}")
    for key, value in table.items():
        if not isinstance(value, int | str):
            raise TypeError(f"{key} of {table['name']!r} is {value!r}, neither a number nor text")
    facts: dict[str, Any] = dict(table)
    for key in ("scale", "zero_point"):
        if key in facts:
            facts[key] = _numbers(key, facts[key])
    return Description(**facts)


def _numbers(key: str, text: str) -> Numbers:
    match = _NUMBERS.fullmatch(text)
    if match is None:
        raise ValueError(f"{key} is {text!r}")
    low = float(match["low"])
    return Numbers(low, low if match["high"] is None else float(match["high"]), match["digest"])


def models_of(paths: Iterable[Path]) -> list[Path]:
    """Return the models for paths of models or lock files; each model once."""
    models = (path.with_suffix("") if path.suffix == SUFFIX else path for path in paths)
    return list(dict.fromkeys(models))
