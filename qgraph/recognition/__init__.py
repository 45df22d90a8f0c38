"""Quantizers found in a graph, however many operators spell them."""
