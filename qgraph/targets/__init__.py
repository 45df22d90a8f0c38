"""The operators and types that runtimes support."""
