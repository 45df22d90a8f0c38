"""Dialects: reading quantizers from their operators, and writing them."""
