"""Weights stored as codes, computed while the file is written."""
