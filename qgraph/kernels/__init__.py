"""Operators that NumPy computes, each by its definition."""
