"""Match two graphs: find equal values, and the claims needed to prove outputs equal."""
