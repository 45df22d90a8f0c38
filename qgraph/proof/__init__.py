"""Proofs that two models compute equal outputs for every input."""
