"""Which quantizer costs what: local errors, and quantizers exchanged one at a time."""
