"""Which parts of two models compute the same, by structure, and what remains to be shown."""
