"""The operators and types that runtimes support; called, it is ``qgraph.targets``."""
