"""Deciding equality of two small graphs over all float32 inputs."""
