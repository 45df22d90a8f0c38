"""Builds the distributions with setuptools, which would add files of earlier builds to a wheel.

setuptools copies modules into ``build/lib`` and keeps them there. A wheel that is built from a
checkout after an update would contain modules that the update removed. So each wheel is built in a
new folder.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401 - what a build backend has to define
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)


def build_wheel(wheel_directory: str, *arguments: Any) -> str:
    """Build a wheel, and return its name."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "distutils.cfg")
        config.write_text(f"[build]\nbuild_base = {folder}\n", "utf-8")
        os.environ["DIST_EXTRA_CONFIG"] = str(config)
        return build_meta.build_wheel(wheel_directory, *arguments)
