"""Operators on codes: how they are read from real numbers, and spelled in them."""
