"""The libraries that draw: installed as an extra, and imported when something is drawn."""

from __future__ import annotations

import importlib.util

from qgraph.errors import OptionError

_NEEDED = ("matplotlib", "jinja2")


def require_drawing(what: str) -> None:
    """See that pictures and pages can be made, before any work is done for them.

    Args:
        what: the option or command that asks for them.

    Raises:
        OptionError: a library is not installed.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(
            f"{what}: needs {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed; expected the libraries that "
            "draw. Install them with: pip install 'qgraph[report]'."
        )
