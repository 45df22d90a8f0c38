"""Operators: one file each, with schema, definition over primitives, and NumPy kernel."""
