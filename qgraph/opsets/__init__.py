"""Versions of operator sets: what changed between them, and raising models over it."""
