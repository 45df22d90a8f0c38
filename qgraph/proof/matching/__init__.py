"""Matching of two graphs: which values are equal, and why."""
