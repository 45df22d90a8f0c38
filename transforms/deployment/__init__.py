"""Rewrite models so that their runtime executes them in integers."""
