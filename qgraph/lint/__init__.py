"""Rules about quantized models, a file for each family."""

from qgraph.text import let_call

let_call(__name__)
