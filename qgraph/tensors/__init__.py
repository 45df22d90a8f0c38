"""Tensors that are read, made and written piece by piece."""
