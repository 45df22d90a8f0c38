"""numba, if it is installed: it compiles loops to vector instructions."""

from __future__ import annotations

import functools
import logging
from typing import Any

logger = logging.getLogger(__name__)


@functools.cache
def find_numba() -> Any:
    """Return the module numba; None if it is not installed, or does not compile."""
    try:
        import numba
    except ImportError as error:
        logger.debug("NumPy is used alone: %s", error)
        return None
    return None if getattr(numba.config, "DISABLE_JIT", False) else numba
