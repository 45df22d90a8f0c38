"""Operators on integer codes: reading, bounding and running products and tables."""
