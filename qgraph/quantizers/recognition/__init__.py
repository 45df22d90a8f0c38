"""Quantizers recognised among plain operators."""
