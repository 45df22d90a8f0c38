"""How fast models run in a runtime, and which kernels it runs them in."""
