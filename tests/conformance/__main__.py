"""Write docs/conformance.md: ``python -m tests.conformance`` in the root of the repository."""

from __future__ import annotations

from pathlib import Path

from tests.conformance.document import document
from tests.conformance.table import whole_table

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"

if __name__ == "__main__":
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(document(whole_table()))
