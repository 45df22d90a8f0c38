"""Quantizers: their meaning, readers, writers, comparison and weights."""
