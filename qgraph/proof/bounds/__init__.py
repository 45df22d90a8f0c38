"""Bounds on the difference of two models: other orders of additions, other scales, moved biases."""
