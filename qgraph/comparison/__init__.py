"""Models run on data and compared: check, reduce, inputs, counterexamples."""
