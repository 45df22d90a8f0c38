"""Operators on codes: raising from and lowering to operators on real numbers."""
