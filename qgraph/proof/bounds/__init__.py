"""Bounds on how far two models differ: sums rounded in any order, other scales, moved biases."""
