"""Equality of two functions of one number, proved over all inputs."""
