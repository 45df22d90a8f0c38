"""Ranges of FakeQuantize: the grids they divide, and what moving them changes."""
