"""Runtimes that load models in processes of their own: how long that may take, why it failed."""

from __future__ import annotations

import re
from pathlib import Path

LOADING_SECONDS = 300
"""After so long, a runtime is taken not to return: some passes of OpenVINO take twice as long for
each If inside another."""

_LONGEST = 300
"""Maximum length of an error message, in characters."""


def reason(error: Exception, folder: Path) -> str:
    """Return the message of a runtime's error, without places in its source, or in a folder."""
    lines = [line.strip() for line in str(error).splitlines()]
    causes = [line for line in lines if line and not line.startswith(("Exception from", "Check '"))]
    text = " ".join((causes or lines or [type(error).__name__])[:3])
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    return text.replace(f"{folder}/", "")[:_LONGEST]
