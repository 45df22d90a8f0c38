"""Quantizers: description, readers, writers, comparison and weights."""
