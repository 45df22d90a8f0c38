"""Operators that work on integer codes: their kernels, and what is known of their sums."""
