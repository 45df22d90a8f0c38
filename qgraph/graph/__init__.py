"""The graph of a model: what its names and versions mean, and how it is edited."""
