"""Proofs that two models are equal for every input, and counts of where they are not."""
