"""Time models in a runtime, and read its kernels."""
