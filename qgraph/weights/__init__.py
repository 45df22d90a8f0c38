"""Weights as packed codes, at any size."""
