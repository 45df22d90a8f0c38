"""Ranges of FakeQuantize: their grids of codes, and the effect of changed ranges."""
