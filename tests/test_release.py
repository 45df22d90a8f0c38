"""The distributions of a release name the address of the project; see ``.ci/release``."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import qgraph

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / ".ci" / "release"
ADDRESS = "https://example.com/someone/qgraph"

PAGE = """See [docs](docs/a.md),
[one part](docs/a.md#part), [here](#more).
And [there](https://example.org/x).
![a picture with [marks]](docs/img/a.svg)

```python
model[0](x)
```
"""
PAGE_WITH_ADDRESS = """See [docs](A/blob/v1/docs/a.md),
[one part](A/blob/v1/docs/a.md#part), [here](#more).
And [there](https://example.org/x).
![a picture with [marks]](A/raw/v1/docs/img/a.svg)

```python
model[0](x)
```
"""


@pytest.fixture(scope="module")
def program() -> dict[str, object]:
    return runpy.run_path(str(PROGRAM))


def test_relative_links_and_pictures_get_the_address(program):
    assert program["with_absolute_links"](PAGE, "A", "v1") == PAGE_WITH_ADDRESS


def test_a_prepared_copy_links_to_files_that_exist(program, tmp_path):
    for name in ("README.md", "pyproject.toml", "qgraph/version.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    program["prepare"](tmp_path, ADDRESS)
    targets = re.findall(r"\]\(([^)\s]+)\)", (tmp_path / "README.md").read_text("utf-8"))
    own = [target for target in targets if target.startswith(ADDRESS)]
    assert len(own) > 20
    assert all(each.startswith(("https://", "#")) for each in targets)
    for each in own:
        kind, tag, path = each.removeprefix(f"{ADDRESS}/").partition("#")[0].split("/", 2)
        assert tag == f"v{qgraph.__version__}"
        assert (ROOT / path).exists()
        assert (kind == "raw") == path.endswith((".svg", ".png"))
    before, after = (
        tomllib.loads((folder / "pyproject.toml").read_text("utf-8")) for folder in (ROOT, tmp_path)
    )
    urls = after["project"].pop("urls")
    assert after == before, "nothing else has changed"
    assert urls["Homepage"] == ADDRESS
    assert urls["Changelog"] == f"{ADDRESS}/blob/v{qgraph.__version__}/CHANGELOG.md"


@pytest.mark.parametrize(
    "address", ["example.com/someone/qgraph", "https://example.com", "https://a b/c"]
)
def test_what_is_no_address_is_refused(address):
    done = subprocess.run(
        [sys.executable, PROGRAM, address], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "expected https://HOST/OWNER/qgraph" in done.stderr
