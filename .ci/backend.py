"""Builds the distributions with setuptools, which would add files of earlier builds to a wheel.

setuptools copies modules into ``build/lib`` and keeps them there. A wheel that is built from a
checkout after an update would contain modules that the update removed. So each wheel is built in a
new folder, and nothing is written to the checkout, which may be read-only.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401 - what a build backend has to define
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
)


@contextmanager
def _new_folder() -> Iterator[None]:
    """Let setuptools write to a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "distutils.cfg")
        lines = f"[build]\nbuild_base = {folder}\n[egg_info]\negg_base = {folder}\n"
        config.write_text(lines, "utf-8")
        os.environ["DIST_EXTRA_CONFIG"] = str(config)
        yield


def get_requires_for_build_wheel(*arguments: Any) -> list[str]:
    """Return what a build needs besides setuptools."""
    with _new_folder():
        return build_meta.get_requires_for_build_wheel(*arguments)


def prepare_metadata_for_build_wheel(*arguments: Any) -> str:
    """Write the metadata, and return the name of their folder."""
    with _new_folder():
        return build_meta.prepare_metadata_for_build_wheel(*arguments)


def build_wheel(*arguments: Any) -> str:
    """Build a wheel, and return its name."""
    with _new_folder():
        return build_meta.build_wheel(*arguments)
