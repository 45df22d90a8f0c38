"""What a quantizer means: its readers, writers and weights."""
