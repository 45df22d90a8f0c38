"""The target mychip."""

from pathlib import Path

from qgraph.plugin import add_target

add_target(Path(__file__).with_name("mychip.toml"))
