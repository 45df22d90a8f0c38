"""The differences that runtimes cause in one model."""
