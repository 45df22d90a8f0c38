"""Checking a certificate by programs that know nothing of the search that found it."""
