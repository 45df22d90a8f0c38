"""Model files and their data files."""
