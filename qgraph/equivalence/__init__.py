"""Comparing nodes with nodes, and models with models."""
