"""The checker of certificates. It uses the definitions of operators and nothing of the prover."""

from qgraph.display import let_call

let_call(__name__)
