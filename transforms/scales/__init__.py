"""Factors of outputs, and the constants that take them in."""
