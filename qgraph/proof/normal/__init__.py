"""A normal form of data movement, maxima, activations and products of codes."""
