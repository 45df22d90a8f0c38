"""The operators and types that runtimes support; called, it is ``qgraph.targets``."""

from qgraph.display import let_call

let_call(__name__)
