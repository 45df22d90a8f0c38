"""One file for each command, with a click command named ``command``."""
