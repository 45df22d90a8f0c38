"""Definitions of operators, one file each."""
