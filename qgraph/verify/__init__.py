"""Checks certificates by definitions alone; nothing here knows the prover."""
