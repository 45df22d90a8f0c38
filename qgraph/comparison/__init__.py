"""Run models on data and compare them: check, reduce, inputs, counterexamples."""
