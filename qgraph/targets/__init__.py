"""The operators and types that runtimes support; called, it is ``qgraph.targets``."""

from qgraph.text import let_call

let_call(__name__)
