"""Versions of operators, and raising models to later ones."""
