"""Dialects: one file each, with a reader and a writer of quantizers."""
